"""Sources: the lines that a cause names among their neighbours, and its edit, line by line as a page shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...model.report import Diagnosis, Listing, Report, Where
from ..source_places import Base

# Neighbours that stand beside the first line of a cause; its siblings stand alone. How many of all lines are shown at
# once: a screen has room for no more.
_AROUND, _MOST = 2, 6


@dataclass(frozen=True)
class CodeLine:
    """A line of source."""

    number: int | None
    """None of lines that are left out."""
    pieces: tuple[tuple[str, bool], ...]
    """Its text, and of each piece whether it is wrong."""
    notes: tuple[str, ...] = ()
    """What stands there; of several lines that say the same, at the first."""
    is_named: bool = False


@dataclass(frozen=True)
class CodeBlock:
    """Lines of one file."""

    title: str
    """`lazy.py:203 in lazy_dkdv_kernel`."""
    lines: tuple[CodeLine, ...]


def excerpts(report: Report, cause: Diagnosis, base: Base) -> list[CodeBlock]:
    """The lines that a cause names, file by file: the first among its neighbours, and its siblings.

    Where a piece of some lines is named, what is only named as a whole is left to the listings, as is what is too much.
    """
    files: dict[str, list[Where]] = {}
    for where in ([one for one in cause.where if one.length] or list(cause.where))[:_MOST]:
        files.setdefault(where.file, []).append(where)
    return [_block(report.listings, wheres, base) for wheres in files.values()]


def _block(listings: Sequence[Listing], wheres: Sequence[Where], base: Base) -> CodeBlock:
    named = _named(listings, wheres)
    noted = dict[str, int]()
    for line in named.values():
        for note in line.notes:
            noted.setdefault(note, line.number or 0)
    firsts = {
        number: replace(line, notes=tuple(note for note in line.notes if noted[note] == number))
        for number, line in named.items()
    }
    found = _near(listings, wheres[0]) | _setting_lines(listings, wheres) | firsts
    in_order, lines = sorted(found), list[CodeLine]()
    for number in in_order:
        if lines and number - 1 not in found:
            lines.append(CodeLine(None, ()))
        lines.append(found[number])
    places = [where.place for where in wheres]
    return CodeBlock(f"{base.short(wheres[0].file)}:{', '.join(dict.fromkeys(places))}", tuple(lines))


def _listed(listings: Iterable[Listing], where: Where) -> Listing | None:
    """The listing that holds a line as it was accused."""
    for listing in listings:
        at = where.line - listing.first
        if listing.file == where.file and 0 <= at < len(listing.lines) and listing.lines[at].strip() == where.code:
            return listing
    return None


def _near(listings: Sequence[Listing], where: Where) -> dict[int, CodeLine]:
    """The neighbours of a line: of its listing, else those that the cause itself holds."""
    listing = _listed(listings, where)
    if listing is None:
        beside = zip((where.line - 1, where.line + 1), where.around, strict=True)
        return {number: _plain(number, line) for number, line in beside if line}
    at = where.line - listing.first
    chosen = range(max(0, at - _AROUND), min(len(listing.lines), at + _AROUND + 1))
    return {listing.first + one: _plain(listing.first + one, listing.lines[one]) for one in chosen}


def _plain(number: int, line: str, *notes: str) -> CodeLine:
    return CodeLine(number, ((line, False),), notes)


def _setting_lines(listings: Sequence[Listing], wheres: Sequence[Where]) -> dict[int, CodeLine]:
    """Where what is wrong in a line is a name: the last line above that sets it."""
    found = dict[int, CodeLine]()
    for where in wheres:
        listing, name = _listed(listings, where), where.code[where.column or 0 :][: where.length]
        if listing is None or not name.isidentifier():
            continue
        sets = re.compile(rf"\s*{name}\s*[-+*/]?=(?!=)")
        above = enumerate(listing.lines[: where.line - listing.first], listing.first)
        at = [(number, line) for number, line in above if sets.match(line)]
        found |= {at[-1][0]: _plain(*at[-1], f"{name} is set here")} if at else {}
    return found


def _named(listings: Sequence[Listing], wheres: Sequence[Where]) -> dict[int, CodeLine]:
    """The lines that are named, with what is wrong in each apart, where pieces of it are."""
    lines: dict[int, list[Where]] = {}
    for where in wheres:
        lines.setdefault(where.line, []).append(where)
    return {number: _in_pieces(listings, of_line) for number, of_line in lines.items()}


def _in_pieces(listings: Sequence[Listing], wheres: Sequence[Where]) -> CodeLine:
    where = wheres[0]
    listing = _listed(listings, where)
    whole = " " * where.margin + where.code if listing is None else listing.lines[where.line - listing.first]
    pieces, done, before = list[tuple[str, bool]](), 0, len(whole) - len(whole.lstrip())
    for start, long in sorted({(before + (one.column or 0), one.length) for one in wheres if one.length}):
        if start >= done:
            pieces += [(whole[done:start], False), (whole[start : start + long], True)]
            done = start + long
    notes = tuple(dict.fromkeys(one.note for one in wheres if one.note))
    return CodeLine(where.line, (*pieces, (whole[done:], False)), notes, is_named=True)


def whole_listings(report: Report, cause: Diagnosis, base: Base) -> list[CodeBlock]:
    """The functions that hold the lines of a cause, whole."""
    found: dict[Listing, list[Where]] = {}
    for where in cause.where:
        if (listing := _listed(report.listings, where)) is not None:
            found.setdefault(listing, []).append(where)
    return [_whole(listing, _named(report.listings, wheres), base) for listing, wheres in found.items()]


def _whole(listing: Listing, named: dict[int, CodeLine], base: Base) -> CodeBlock:
    numbered = enumerate(listing.lines, listing.first)
    lines = tuple(named.get(number) or _plain(number, line) for number, line in numbered)
    return CodeBlock(f"{base.short(listing.file)}:{listing.first}", lines)


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """The lines of a diff, each with what it is: added, removed, place or context."""
    kinds = {"+": "added", "-": "removed", "@": "place"}
    files = 2  # whose names are the first lines
    return [
        ("place" if at < files else kinds.get(line[:1], "context"), line) for at, line in enumerate(diff.splitlines())
    ]
