"""What a page shows beside words: maps of tiles, one for heads that are alike, and lines of source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from ..model.layout_run import HIDDEN, LEVELS, MATCH, WITHIN, Head, Intermediate, Run
from ..model.number import in_words, ratio
from ..model.report import CauseLine, Diagnosis, Listing, Report
from .notation import heads_by_batch
from .source_places import Base

SCALE = (
    ("r0", "at most half of what is allowed"), ("r1", "all of it"), ("w1", "up to 16 times"), ("w2", "up to 256 times"),
    ("w3", "up to 4,096 times"), ("w4", "more, or not finite"), ("hidden", "masked"),
)  # fmt: skip
"""The classes of tiles, with their words."""
_CLASSES = {"a": "r0", "b": "r0", "c": "r1", HIDDEN: "hidden"}
# Of a page: some kilobytes each of two megabytes.
MOST_MAPS = 400


def class_of(sign: str) -> str:
    """The class of a tile, by its letter."""
    sign = sign.lower()
    return _CLASSES.get(sign) or f"w{min(4, 1 + (LEVELS.index(sign) - LEVELS.index('d')) // 4)}"


def sign_of(times: float | None) -> str:
    """The letter of a tile whose worst error is so many times the budget; None where all is masked."""
    if times is None:
        return HIDDEN
    for at, letter in enumerate(LEVELS):
        if times <= 2.0 ** (at - LEVELS.index(WITHIN)):
            return letter
    return LEVELS[-1]


@dataclass(frozen=True)
class TileMap:
    """The map of one head, or of several whose maps are the same."""

    name: str
    """`batch 0, heads 1-3, 6`."""
    status: str
    words: str
    """`worst 40x what is allowed, rows 3-7`."""
    picture: Markup


def maps_of(run: Run) -> list[tuple[str, str, list[TileMap]]]:
    """Of each wrong intermediate its title, what a tile of it is, and its maps, as many as a page has room for."""
    found, room = [], MOST_MAPS
    for intermediate in run.compares:
        alike: dict[object, list[Head]] = {}
        for head in intermediate.heads:
            if head.tiles and head.status != MATCH:
                alike.setdefault((head.status, head.rows, head.tiles), []).append(head)
        maps = [_tile_map(intermediate, those) for those in list(alike.values())[:room]]
        room -= len(maps)
        if maps:
            rows, cols = intermediate.tile
            shown = f"a line is one of rows {in_words(intermediate.shown, 6)}, "
            words = (
                f"{shown if intermediate.shown else ''}a tile is {rows} x {cols}, rows downwards"
            )
            found.append((intermediate.title, words, maps))
    return found


def _tile_map(intermediate: Intermediate, heads: Sequence[Head]) -> TileMap:
    first = heads[0]
    words = f"worst {ratio(max(head.ratio for head in heads))}x what is allowed"
    words += f", rows {in_words(first.rows, 4)}" if first.rows else ""
    name = heads_by_batch(heads, {head.batch for head in intermediate.heads})
    picture = drawn(first.tiles, f"{intermediate.title}, {name}: {words}")
    return TileMap(name, first.status, words, picture)


def drawn(lines: Sequence[str], label: str) -> Markup:
    """A map, a tile a unit: what is wrong is crossed."""
    paths: dict[str, str] = {}
    for y, line in enumerate(lines):
        x = 0
        for name, those in groupby(map(class_of, line)):
            long = len(list(those))
            paths[name] = paths.get(name, "") + f"M{x} {y}h{long}v1h-{long}z"
            x += long
    # Crosses lie over what they cross.
    for name in [name for name in paths if name[0] == "w"]:
        cross = "crossed" if name in ("w3", "w4") else "cross"
        paths[cross] = paths.get(cross, "") + paths[name]
    shape, wide, tall = Markup('<path class="{}" d="{}"/>'), len(lines[0]), len(lines)
    shapes = Markup("").join(shape.format(name, paths[name]) for name in paths)
    size = max(4, min(14, 112 // max(wide, tall)))
    return Markup(
        '<svg class="map" viewBox="0 0 {} {}" width="{}" role="img" aria-label="{}">{}</svg>'
    ).format(wide, tall, wide * size, label, shapes)


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


def excerpts(report: Report, cause: Diagnosis, base: Base) -> Iterator[CodeBlock]:
    """The lines that a cause names, file by file: the first among its neighbours, then the others."""
    files: dict[str, list[CauseLine]] = {}
    for where in cause.where[:_MOST]:
        files.setdefault(where.file, []).append(where)
    for file, wheres in files.items():
        lines = {
            number: CodeLine(number, (line, "", ""))
            for number, line in _neighbours(report.listings, wheres[0])
        }
        lines |= {where.line: _named(where) for where in wheres}
        places = ", ".join(dict.fromkeys(where.place for where in wheres))
        ordered = tuple(lines[number] for number in sorted(lines))
        yield CodeBlock(f"{base.short(file)}:{places}", ordered)


def _neighbours(listings: Sequence[Listing], where: CauseLine) -> list[tuple[int, str]]:
    """The lines beside one: of its listing, else those that the cause itself holds."""
    for listing in listings:
        at = where.line - listing.first
        is_here = listing.file == where.file and 0 <= at < len(listing.lines)
        if is_here and listing.lines[at].strip() == where.code:
            first = max(0, at - _AROUND)
            return list(enumerate(listing.lines[first : at + _AROUND + 1], listing.first + first))
    beside = zip((where.line - 1, where.line + 1), where.around, strict=True)
    return [(number, line) for number, line in beside if line]


def _named(where: CauseLine) -> CodeLine:
    start, margin = where.column or 0, " " * max(where.margin, 4)
    end = start + where.length
    pieces = (margin + where.code[:start], where.code[start:end], where.code[end:])
    return CodeLine(where.line, pieces, where.note, is_named=True)


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """The lines of a diff, each with what it is: added, removed, place or context."""
    kinds = {"+": "added", "-": "removed", "@": "place"}
    found = [(kinds.get(line[:1], "context"), line) for line in diff.splitlines()]
    return [
        *(("place", line) for _, line in found[:2]),
        *found[2:],
    ]  # the names of the files first
