"""Why: the causes with their lines and edits, on one screen or in full; else what is known."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from ..model.number import plural
from ..model.report import (
    CONSISTENT,
    CauseLine,
    Diagnosis,
    Replacement,
    Report,
    TriedEdit,
    passing_edit,
    replacements_of,
)
from .notation import BAD, CAUTION, GOOD, edit_name
from .notes import facts_of, in_short
from .rows import folded, headed_in, short
from .source_places import Base, base_of

FACTS = 3
"""Sentences about an error without a cause that one screen shows."""
# Lines of one cause that are shown in full; the others are in the JSON.
_MOST_LINES = 4
_ALL = 1000
# Of what is wrong in a long line, as many characters stand around it at least.
_AROUND = 12
_CUT = " ..."


def named_causes(report: Report) -> list[tuple[str, Diagnosis]]:
    """What is told as the cause, each with the word before it: the causes, else what came is consistent with."""
    if report.causes:
        words = ["CAUSE", *["AND ALSO"] * len(report.causes)]
        return list(zip(words, report.causes, strict=False))
    consistent = [one for one in report.diagnoses[:1] if one.explained >= CONSISTENT]
    return [("CONSISTENT WITH", one) for one in consistent]


def render_reasons(report: Report, width: int) -> Iterator[Text]:
    """All causes with their evidence, their lines and their edits, and what else is known."""
    base, named = base_of(report), named_causes(report)
    for head, cause in named:
        yield from headed_in(head, BAD, f"{cause.summary} ({cause.fault})", width, _ALL)
        for sentence in cause.evidence:
            yield from folded(sentence, width)
        groups = _alike(cause.where)
        for group in groups[:_MOST_LINES]:
            yield from excerpt(group, base, width)
        if len(groups) > _MOST_LINES:
            yield Text(f"  and {plural(len(groups) - _MOST_LINES, 'line')} more, in --json FILE")
        if cause.fix and not cause.is_certain:
            yield from folded(f"fix: {cause.fix}", width)
        if cause.edit is not None:
            yield from _edit(cause.edit, cause, base, width)
    if not named:
        yield from _unnamed(report)
    for sentence in report.known:
        yield from folded(sentence, width)


def cause_lines(report: Report, width: int) -> Iterator[Text]:
    """The first cause and its line; else what is known."""
    named = named_causes(report)
    if not named:
        yield from _unnamed(report)
        for sentence in facts_of(report)[:FACTS]:
            yield from short(sentence, width)
        return
    head, cause = named[0]
    yield from _summary(head, cause, width, 2)
    if cause.where:
        yield from excerpt(_alike(cause.where)[0], base_of(report), width)


def edit_lines(report: Report, width: int) -> Iterator[Text]:
    """The edit that was tried, as a diff; else the one that the cause asks for, in words."""
    cause = next(iter(report.causes or report.diagnoses[:1]), None)
    if cause is None:
        return
    edit = cause.edit if cause.edit is not None and cause.edit.diff else passing_edit(report)
    if edit is not None:
        yield from _edit(edit, cause, base_of(report), width, is_brief=True)
        return
    yield from headed_in("FIX", f"bold {CAUTION}", cause.fix, width) if cause.fix else ()
    yield from short(cause.edit.words, width) if cause.edit is not None else ()


def second_cause(report: Report, width: int) -> Iterator[Text]:
    """The second cause in two lines."""
    if len(report.causes) < 2:
        return
    _, second, *others = report.causes
    yield from _summary("AND ALSO", second, width, 1)
    words = second.fix
    if second.where:
        first = second.where[0]
        words = f"{base_of(report).short(first.file)}:{first.place}: {words or first.code}"
    more = f" (and {plural(len(others), 'cause')} more)" if others else ""
    yield from short(f"{words}{more}", width, 1)


def _summary(head: str, cause: Diagnosis, width: int, rows: int) -> list[Text]:
    """The sentence of a cause, and its key where that takes no row of its own."""
    sentence = in_short(cause.summary)
    alone = headed_in(head, BAD, sentence, width, rows)
    with_key = headed_in(head, BAD, f"{sentence} ({cause.fault})", width, rows)
    return with_key if len(with_key) == len(alone) else alone


def _unnamed(report: Report) -> Iterator[Text]:
    if report.diagnoses or report.known:
        words = ("NO HYPOTHESIS FITS", "; what is known:")
        words = words if report.sought else ("NO CAUSE SOUGHT", ":")
        yield Text.assemble((words[0], f"bold {CAUTION}"), words[1])


def _edit(
    edit: TriedEdit, cause: Diagnosis, base: Base, width: int, *, is_brief: bool = False
) -> Iterator[Text]:
    """What was tried, as a diff where anything helped."""
    if not edit.diff:
        yield from folded(f"{edit.words} ({edit.seconds:.0f} s)", width)
        return
    head, style = (
        f"{edit_name(edit).upper()}, tried",
        GOOD if edit.is_certain else f"bold {CAUTION}",
    )
    if is_brief:
        words = "; ".join(edit.reservations) or edit.words
    else:
        certain = ": the cause is certain" if edit.is_certain else ""
        words = (
            f"{edit.words} ({plural(edit.tried, 'edit')} tried, {edit.seconds:.0f} s){certain}"
        )
    lines = short(f"{head}: {words}", width, 2 if is_brief else _ALL, indent="")
    lines[0].stylize(style, 0, len(head) + 1)
    yield from lines
    yield from changes(edit, cause.where[0].file if cause.where else "", base, width)
    others = [f"so does another: {other}" for other in edit.others]
    for sentence in others if is_brief else (*edit.reservations, *edit.limits, *others):
        yield from short(sentence, width, 1) if is_brief else folded(sentence, width)


def _alike(wheres: Sequence[CauseLine]) -> list[list[CauseLine]]:
    """Each line of a cause once, with its places."""
    groups: dict[tuple[str, int | None, str], list[CauseLine]] = {}
    for where in wheres:
        groups.setdefault((where.code, where.column, where.file), []).append(where)
    return list(groups.values())


def excerpt(alike: Sequence[CauseLine], base: Base, width: int) -> Iterator[Text]:
    """A line of a cause: its places, the code, and a mark below what is wrong in it."""
    where = alike[0]
    yield Text(
        _place(where, [str(one.line) for one in alike[1:]], base, width), overflow="ignore"
    )
    gutter = f"  {where.line} | "
    room = width - len(gutter)
    code, first = code_window(where.code, where.column or 0, where.length, room)
    yield Text.assemble((gutter, "dim"), code)
    if mark := _mark(where, first, room):
        yield Text.assemble((f"{'| ':>{len(gutter)}}", "dim"), (mark, BAD))


def _place(where: CauseLine, others: Sequence[str], base: Base, width: int) -> str:
    """`my_lazy.py:145 in lazy_dq_kernel (the same in lines 203, 275)`, as far as that fits."""
    more = f" (the same in line{'s' * (len(others) > 1)} {', '.join(others)})" if others else ""
    file, place = base.short(where.file), where.place
    for words in (f"{place}{more}", place, str(where.line)):
        if len(file) + len(words) + 3 <= width:
            return f"  {file}:{words}"
    return f"  .../{os.path.basename(file)}:{where.line}"


def _mark(where: CauseLine, first: int, room: int) -> str:
    """Carets below what is wrong and beside them what stands there, of which the first clause where all is too long."""
    if where.column is None:
        return "".join(line.plain for line in short(where.note, room, 1, indent=""))
    carets = " " * first + "^" * max(1, min(where.length, room - first))
    for note in (where.note, where.note.partition(";")[0]):
        if len(carets) + 1 + len(note) <= room:
            return f"{carets} {note}".rstrip()
    return carets


def code_window(
    code: str, first: int, length: int, room: int, longest: int = 0
) -> tuple[str, int]:
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


def changes(edit: TriedEdit, file: str, base: Base, width: int) -> Iterator[Text]:
    """What an edit replaces, in the lines of a diff; the same change in several places once.

    Args:
        file: which file was named just above.
    """
    is_named = os.path.realpath(edit.file) == os.path.realpath(file)
    groups: dict[tuple[str, str], list[Replacement]] = {}
    for change in replacements_of(edit.diff):
        key = tuple("\n".join(map(str.strip, lines)) for lines in (change.old, change.new))
        groups.setdefault((key[0], key[1]), []).append(change)
    for alike in groups.values():
        yield Text(_changed(alike, "" if is_named else base.short(edit.file), width), "cyan")
        for sign, style, code in _lines(alike[0], width - 4):
            yield Text(f"  {sign} {code}", style)


def _changed(alike: Sequence[Replacement], file: str, width: int) -> str:
    """`@@ line 146 of other.py, and the same in lines 204, 276 @@`."""
    others, also = [str(one.line) for one in alike[1:]], ""
    if others:
        also = f", and the same in line{'s' * (len(others) > 1)} {', '.join(others[:4])}"
        also += f" and {len(others) - 4} more" * (len(others) > 4)
    for name in (file, os.path.basename(file)):
        words = f"  @@ line {alike[0].line}{f' of {name}' if name else ''}{also} @@"
        if len(words) <= width:
            break
    return words


def _lines(change: Replacement, room: int) -> Iterator[tuple[str, str, str]]:
    """Sign, style and code of each line; of a long one what changes in it, cut alike before and after."""
    whole = textwrap.dedent("\n".join([*change.old, *change.new])).split("\n")
    old, new = whole[: len(change.old)], whole[len(change.old) :]
    for sign, style, lines, others in (("-", "red", old, new), ("+", "green", new, old)):
        for at, line in enumerate(lines):
            other = others[at] if len(old) == len(new) else line
            first, longest = len(os.path.commonprefix((line, other))), max(len(line), len(other))
            tail = len(os.path.commonprefix((line[first:][::-1], other[first:][::-1])))
            yield sign, style, code_window(line, first, longest - tail - first, room, longest)[0]
