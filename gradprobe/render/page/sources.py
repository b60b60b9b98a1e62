"""Sources: the lines that a cause names among their neighbours, and its edit, line by line as a page shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...model.report import Diagnosis, Listing, Report, Where
from ..places import Base

# Neighbours that stand beside the first line of a cause; its siblings stand alone. How many of all lines are shown at
# once: a screen has room for no more.
_AROUND, _MOST = 2, 6


@dataclass(frozen=True)
class CodeLine:
    """A line of source, in three pieces."""

    number: int | None
    """None of lines that are left out."""
    before: str
    wrong: str = ""
    after: str = ""
    note: str = ""
    """What stands there; of several that say the same, at the first."""
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
    noted = {where.note: where.line for where in reversed(wheres)}
    named = {where.line: _named(listings, where, where.note * (noted[where.note] == where.line)) for where in wheres}
    found = _near(listings, wheres[0]) | named
    in_order, lines = sorted(found), list[CodeLine]()
    for number in in_order:
        if lines and number - 1 not in found:
            lines.append(CodeLine(None, ""))
        lines.append(found[number])
    places = [f"{where.line} in {where.kernel}" if where.kernel else str(where.line) for where in wheres]
    return CodeBlock(f"{base.short(wheres[0].file)}:{', '.join(places)}", tuple(lines))


def _listed(listings: Iterable[Listing], where: Where) -> Listing | None:
    """The listing that holds a line as it was accused."""
    for one in listings:
        at = where.line - one.first
        if one.file == where.file and 0 <= at < len(one.lines) and one.lines[at].strip() == where.code:
            return one
    return None


def _near(listings: Sequence[Listing], where: Where) -> dict[int, CodeLine]:
    """The neighbours of a line: of its listing, else those that the cause itself holds."""
    listing = _listed(listings, where)
    if listing is None:
        beside = zip((where.line - 1, where.line + 1), where.around, strict=True)
        return {number: CodeLine(number, line) for number, line in beside if line}
    at = where.line - listing.first
    chosen = range(max(0, at - _AROUND), min(len(listing.lines), at + _AROUND + 1))
    return {listing.first + one: CodeLine(listing.first + one, listing.lines[one]) for one in chosen}


def _named(listings: Sequence[Listing], where: Where, note: str = "") -> CodeLine:
    """A line that is named, with what is wrong in it apart, where a piece of it is."""
    listing = _listed(listings, where)
    whole = " " * where.margin + where.code if listing is None else listing.lines[where.line - listing.first]
    start = len(whole) - len(whole.lstrip()) + (where.column or 0)
    stop = start + where.length
    return CodeLine(where.line, whole[:start], whole[start:stop], whole[stop:], note, is_named=True)


def whole_listings(report: Report, cause: Diagnosis, base: Base) -> list[CodeBlock]:
    """The functions that hold the lines of a cause, whole."""
    found: dict[Listing, dict[int, CodeLine]] = {}
    for where in cause.where:
        if (listing := _listed(report.listings, where)) is not None:
            found.setdefault(listing, {})[where.line] = _named(report.listings, where, where.note)
    return [_whole(listing, named, base) for listing, named in found.items()]


def _whole(listing: Listing, named: dict[int, CodeLine], base: Base) -> CodeBlock:
    numbered = enumerate(listing.lines, listing.first)
    lines = tuple(named.get(number) or CodeLine(number, line) for number, line in numbered)
    return CodeBlock(f"{base.short(listing.file)}:{listing.first}", lines)


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """The lines of a diff, each with what it is: added, removed, place or context."""
    kinds = {"+": "added", "-": "removed", "@": "place"}
    files = 2  # whose names are the first lines
    return [
        ("place" if at < files else kinds.get(line[:1], "context"), line) for at, line in enumerate(diff.splitlines())
    ]
