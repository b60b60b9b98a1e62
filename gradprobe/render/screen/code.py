"""Lines of source: the one that is wrong, marked, and an edit of it, its hunks that say the same as one."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from ...model.report import CauseLine, TriedEdit
from ..rows import lines_of
from ..source_places import Base

_MARKED, _DROPPED, _ADDED = "bold red", "red", "green"
# Of what is wrong in a long line, as many characters stand around it at least.
_AROUND = 12
_CUT = " ..."


def excerpt(wheres: Sequence[CauseLine], base: Base, width: int) -> Iterator[Text]:
    """The first line of a cause: its place, the code, and a mark below what is wrong in it."""
    where = wheres[0]
    alike = [
        one
        for one in wheres
        if (one.file, one.code, one.column) == (where.file, where.code, where.column)
    ]
    yield Text(
        _place(where, [str(one.line) for one in alike[1:]], base, width), overflow="ignore"
    )
    gutter = f"  {where.line} | "
    room = width - len(gutter)
    code, first = window(where.code, where.column or 0, where.length, room)
    yield Text.assemble((gutter, "dim"), code)
    if mark := _mark(where, first, room):
        yield Text.assemble((f"{'| ':>{len(gutter)}}", "dim"), (mark, _MARKED))


def _place(where: CauseLine, others: Sequence[str], base: Base, width: int) -> str:
    """`my_lazy.py:145 in lazy_dq_kernel (the same in lines 203, 275)`, as far as that fits."""
    function = where.function or where.kernel
    file, place = (
        base.short(where.file),
        f":{where.line}" + (f" in {function}" if function else ""),
    )
    more = f" (the same in line{'s' * (len(others) > 1)} {', '.join(others)})" if others else ""
    for words in (f"{place}{more}", place, f":{where.line}"):
        if len(file) + len(words) + 2 <= width:
            return f"  {file}{words}"
    return f"  .../{os.path.basename(file)}:{where.line}"


def _mark(where: CauseLine, first: int, room: int) -> str:
    """Carets below what is wrong and beside them what stands there, of which the first clause where all is too long."""
    if where.column is None:
        return _first_line(where.note, room)
    carets = " " * first + "^" * max(1, min(where.length, room - first))
    for note in (where.note, where.note.partition(";")[0]):
        if len(carets) + 1 + len(note) <= room:
            return f"{carets} {note}".rstrip()
    return carets


def _first_line(words: str, room: int) -> str:
    lines = lines_of(words, room)
    return "".join(lines) if len(lines) < 2 else f"{lines_of(words, room - 4)[0]} ..."


def window(code: str, first: int, length: int, room: int, longest: int = 0) -> tuple[str, int]:
    """As much of a line as there is room for around a part of it, and where that part begins there.

    Args:
        longest: how long the longest line is that is to be cut like it; 0 for its own length.
    """
    longest = max(longest, len(code))
    if longest <= room:
        return code, first
    if first + length > room - len(_CUT):
        start = max(0, min(first - _AROUND, longest - room + len(_CUT)))
        code, first = f"... {code[start:]}", first - start + len(_CUT)
    return (code if len(code) <= room else code[: room - len(_CUT)] + _CUT), first


@dataclass
class _Change:
    """Lines that an edit replaces in one place."""

    line: int
    """Of the file before the edit."""
    dropped: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    """The lines at which the same is replaced."""

    @property
    def unindented(self) -> tuple[str, ...]:
        """The same for the same edit, however far it is indented."""
        return (
            *(f"-{line.strip()}" for line in self.dropped),
            *(f"+{line.strip()}" for line in self.added),
        )


def changes(edit: TriedEdit, file: str, base: Base, width: int) -> Iterator[Text]:
    """What an edit replaces, in the lines of a diff; the same change in several places once.

    Args:
        file: which file was named just above.
    """
    file_words = (
        ""
        if os.path.realpath(edit.file) == os.path.realpath(file)
        else f" of {base.short(edit.file)}"
    )
    for change in _folded(edit.diff):
        also = f", and the same in {_numbers(change.others)}" if change.others else ""
        place = f"  @@ line {change.line}{file_words}{also} @@"
        if len(place) > width:
            name = f" of {os.path.basename(edit.file)}" if file_words else ""
            place = f"  @@ line {change.line}{name}{also} @@"
        yield Text(place, "cyan")
        for sign, style, code in _lines(change, width - 4):
            yield Text(f"  {sign} {code}", style)


def _numbers(lines: Sequence[int]) -> str:
    shown = [str(line) for line in lines[:4]]
    return f"line{'s' * (len(lines) > 1)} {', '.join(shown)}" + (
        f" and {len(lines) - 4} more" * (len(lines) > 4)
    )


def _folded(diff: str) -> list[_Change]:
    """The changes of a unified diff, those that say the same as one."""
    found: dict[tuple[str, ...], _Change] = {}
    for change in _changes(diff):
        first = found.setdefault(change.unindented, change)
        if first is not change:
            first.others.append(change.line)
    return list(found.values())


def _changes(diff: str) -> Iterator[_Change]:
    line, change = 0, _Change(0)
    for text in diff.splitlines():
        sign, code = text[:1], text[1:]
        if sign not in ("-", "+") or text.startswith(("--- ", "+++ ")):
            if change.unindented:
                yield change
            begins = re.match(r"@@ -(\d+)", text)
            line = int(begins[1]) if begins else line + (sign == " ")
            change = _Change(line)
        elif sign == "-":
            change.dropped.append(code)
            line += 1
        else:
            change.added.append(code)
    if change.unindented:
        yield change


def _lines(change: _Change, room: int) -> Iterator[tuple[str, str, str]]:
    """Sign, style and code of each line; of a long one what changes in it."""
    whole = textwrap.dedent("\n".join([*change.dropped, *change.added])).split("\n")
    dropped, added = whole[: len(change.dropped)], whole[len(change.dropped) :]
    pairs = list(zip(dropped, added, strict=False)) if len(dropped) == len(added) else []
    for sign, style, lines in (("-", _DROPPED, dropped), ("+", _ADDED, added)):
        for at, line in enumerate(lines):
            first = len(os.path.commonprefix(pairs[at])) if pairs else 0
            tail = (
                len(os.path.commonprefix([text[first:][::-1] for text in pairs[at]]))
                if pairs
                else 0
            )
            # Both are cut alike, so that what changes stands in one column.
            length = max(len(text) - tail - first for text in pairs[at]) if pairs else 0
            longest = max(map(len, pairs[at])) if pairs else 0
            yield sign, style, window(line, first, length, room, longest)[0]
