"""Lines of source: what a cause names, with a mark below what is wrong in it, and what an edit changes."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text

from ..model.report import CauseLine, Listing, Replacement, TriedEdit, replacements_of
from .notation import BAD
from .rows import short
from .source_places import Base

# Of what is wrong in a long line, as many characters stand around it at least; and how many lines on a page.
_AROUND, _NEIGHBOURS = 12, 2
_CUT = " ..."
_MOST_PLACES = 4


@dataclass(frozen=True)
class Excerpt:
    """A line of a cause, once for all places where it stands."""

    wheres: Sequence[CauseLine]
    base: Base
    listings: Sequence[Listing] = ()
    kind: ClassVar[str] = "excerpt"

    def lines(self, width: int) -> Sequence[Text]:
        """Its places, the code, and a mark below what is wrong in it."""
        where = self.wheres[0]
        gutter = f"  {where.line} | "
        room = width - len(gutter)
        code, first = code_window(where.code, where.column or 0, where.length, room)
        place = Text(self.place(width), overflow="ignore")
        lines = [place, Text.assemble((gutter, "dim"), code)]
        if mark := _mark(where, first, room):
            lines.append(Text.assemble((f"{'| ':>{len(gutter)}}", "dim"), (mark, BAD)))
        return lines

    def place(self, width: int) -> str:
        """`my_lazy.py:145 in lazy_dq_kernel (the same in lines 203, 275)`, as far as that fits."""
        where = self.wheres[0]
        file, place = self.base.short(where.file), where.place
        also = _and_lines("(the same in", [one.line for one in self.wheres[1:]], len(self.wheres))
        for words in (f"{place} {also})" if also else place, place, str(where.line)):
            if len(file) + len(words) + 3 <= width:
                return f"  {file}:{words}"
        return f"  .../{os.path.basename(file)}:{where.line}"

    def listing(self) -> list[tuple[int, str, str, str]]:
        """Number and text of the line and its neighbours; the text in three, of which the second is wrong."""
        where = self.wheres[0]
        rows = {number: (line, "", "") for number, line in self._neighbours(where)}
        start, margin = where.column or 0, " " * max(where.margin, 4)
        end = start + where.length
        rows[where.line] = margin + where.code[:start], where.code[start:end], where.code[end:]
        return [(number, *rows[number]) for number in sorted(rows)]

    def _neighbours(self, where: CauseLine) -> Iterator[tuple[int, str]]:
        for listing in self.listings:
            at = where.line - listing.first
            is_here = listing.file == where.file and 0 <= at < len(listing.lines)
            if is_here and listing.lines[at].strip() == where.code:
                first = max(0, at - _NEIGHBOURS)
                lines = listing.lines[first : at + _NEIGHBOURS + 1]
                yield from enumerate(lines, listing.first + first)
                return


def _mark(where: CauseLine, first: int, room: int) -> str:
    """Carets below what is wrong and what stands there, of which the first clause where all is too long."""
    if where.column is None:
        return "".join(line.plain for line in short(where.note, room, 1, indent=""))
    carets = " " * first + "^" * max(1, min(where.length, room - first))
    for note in (where.note, where.note.partition(";")[0]):
        if len(carets) + 1 + len(note) <= room:
            return f"{carets} {note}".rstrip()
    return carets


def _and_lines(words: str, lines: Sequence[int], most: int) -> str:
    """`and the same in lines 204, 276`; "" of none."""
    if not lines:
        return ""
    more = f" and {len(lines) - most} more" if len(lines) > most else ""
    noun = "lines" if len(lines) > 1 else "line"
    return f"{words} {noun} {', '.join(map(str, lines[:most]))}{more}"


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


@dataclass(frozen=True)
class EditDiff:
    """What an edit replaces, as a diff; the same change in several places once."""

    edit: TriedEdit
    base: Base
    named: str = ""
    """The file that was named just above."""
    kind: ClassVar[str] = "changes"

    def lines(self, width: int) -> Sequence[Text]:
        """The lines that change."""
        groups: dict[tuple[str, ...], list[Replacement]] = {}
        for change in replacements_of(self.edit.diff):
            both = (change.old, change.new)
            key = tuple("\n".join(map(str.strip, lines)) for lines in both)
            groups.setdefault(key, []).append(change)
        lines = list[Text]()
        for alike in groups.values():
            lines.append(Text(self._place(alike, width), "cyan"))
            for sign, style, code in _changed_lines(alike[0], width - 4):
                lines.append(Text(f"  {sign} {code}", style))
        return lines

    def _place(self, alike: Sequence[Replacement], width: int) -> str:
        """`@@ line 146 of other.py, and the same in lines 204, 276 @@`."""
        is_named = os.path.realpath(self.edit.file) == os.path.realpath(self.named)
        file = "" if is_named else self.base.short(self.edit.file)
        others = [one.line for one in alike[1:]]
        also = _and_lines(", and the same in", others, _MOST_PLACES)
        for name in (file, os.path.basename(file)):
            words = f"  @@ line {alike[0].line}{f' of {name}' if name else ''}{also} @@"
            if len(words) <= width:
                break
        return words

    def all_lines(self) -> Iterator[tuple[str, str]]:
        """The lines of the whole diff, each with what it is: added, removed, place or context."""
        kinds = {"+": "added", "-": "removed", "@": "place"}
        for at, line in enumerate(self.edit.diff.splitlines()):
            yield "place" if at < 2 else kinds.get(line[:1], "context"), line


def _changed_lines(change: Replacement, room: int) -> Iterator[tuple[str, str, str]]:
    """Sign, style and code of each line; of a long one what changes in it, cut alike before and after."""
    whole = textwrap.dedent("\n".join([*change.old, *change.new])).split("\n")
    old, new = whole[: len(change.old)], whole[len(change.old) :]
    for sign, style, lines, others in (("-", "red", old, new), ("+", "green", new, old)):
        for at, line in enumerate(lines):
            other = others[at] if len(old) == len(new) else line
            first, longest = len(os.path.commonprefix((line, other))), max(len(line), len(other))
            tail = len(os.path.commonprefix((line[first:][::-1], other[first:][::-1])))
            yield sign, style, code_window(line, first, longest - tail - first, room, longest)[0]
