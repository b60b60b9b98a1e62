"""Sources: the lines that a cause names among their neighbours, as a page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.report import CauseLine, Diagnosis, Listing, Report
from ..source_places import Base

# Neighbours of a named line, and how many of all lines are shown: a screen has room for no more.
_AROUND, _MOST = 2, 6


@dataclass(frozen=True)
class CodeLine:
    """A line of source."""

    number: int
    text: tuple[str, str, str]
    """What stands before what is wrong, that, and what stands behind it."""
    note: str = ""
    is_named: bool = False


@dataclass(frozen=True)
class CodeBlock:
    """Lines of one file."""

    title: str
    """`lazy.py:203 in lazy_dkdv_kernel`."""
    lines: tuple[CodeLine, ...]


def excerpts(report: Report, cause: Diagnosis, base: Base) -> list[CodeBlock]:
    """The lines that a cause names, file by file: the first among its neighbours, then the others."""
    files: dict[str, list[CauseLine]] = {}
    for where in cause.where[:_MOST]:
        files.setdefault(where.file, []).append(where)
    return [_block(report.listings, wheres, base) for wheres in files.values()]


def _block(listings: Sequence[Listing], wheres: Sequence[CauseLine], base: Base) -> CodeBlock:
    lines = _neighbours(listings, wheres[0])
    for where in wheres:
        lines[where.line] = _named(where)
    places = ", ".join(dict.fromkeys(where.place for where in wheres))
    return CodeBlock(
        f"{base.short(wheres[0].file)}:{places}", tuple(lines[number] for number in sorted(lines))
    )


def _neighbours(listings: Sequence[Listing], where: CauseLine) -> dict[int, CodeLine]:
    """The lines beside one: of its listing, else those that the cause itself holds."""
    found = {}
    for number, line in zip((where.line - 1, where.line + 1), where.around, strict=True):
        if line:
            found[number] = _plain(number, line)
    for listing in listings:
        at = where.line - listing.first
        if (
            listing.file == where.file
            and 0 <= at < len(listing.lines)
            and listing.lines[at].strip() == where.code
        ):
            first = max(0, at - _AROUND)
            numbered = enumerate(listing.lines[first : at + _AROUND + 1], listing.first + first)
            return {number: _plain(number, line) for number, line in numbered}
    return found


def _plain(number: int, line: str) -> CodeLine:
    return CodeLine(number, (line, "", ""))


def _named(where: CauseLine) -> CodeLine:
    start = where.column or 0
    end = start + where.length
    margin = " " * max(where.margin, 4)
    pieces = (margin + where.code[:start], where.code[start:end], where.code[end:])
    return CodeLine(where.line, pieces, where.note, is_named=True)


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """The lines of a diff, each with what it is: added, removed, place or context."""
    kinds = {"+": "added", "-": "removed", "@": "place"}
    found = []
    for at, line in enumerate(diff.splitlines()):
        # The names of the files are the first two.
        found.append(("place" if at < 2 else kinds.get(line[:1], "context"), line))
    return found
