"""Maps: the worst error of every tile of a head as a picture, one for heads that are alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from ...model.layout_run import LEVELS, MATCH, CloseUp, Head, Intermediate, Run
from ...model.number import in_words, spans
from ..notation import ratio
from .closeups import WIDE, CloseUpView, Opens, cell, view_of
from .dataflow_picture import WORDS
from .scale import class_of, figure_of

# Of all maps of a page, of which what is wrong comes first, and of the tiles that are drawn of them: some 450 bytes
# each and 26, of two megabytes.
MOST_MAPS, MOST_TILES = 1500, 24_000
# Tiles that hold a figure, of all maps of an intermediate, and beside one another: more are drawn small.
_MOST_FIGURES, _MOST_BESIDE = 120, 8
# How wide the marks of wrong rows are beside figures.
_MARK = 8
# Heads that are named where more stand together.
_NAMED = 2


def drawn(signs: Sequence[str], wrong: Sequence[tuple[int, int]] = (), length: int = 1) -> Markup:
    """A map, a tile a unit: what is wrong is crossed, and where 0 is expected is a dot; beside it the wrong rows.

    Args:
        wrong: the wrong rows, of so many.
    """
    width, height = len(signs[0]), len(signs)
    paths: dict[str, list[str]] = {}
    for y, line in enumerate(signs):
        for name, x, long in (*_runs(map(class_of, line)), *_runs(map(_overlay, line))):
            paths.setdefault(name, []).append(f"M{x} {y}h{long}v1h-{long}z")
    paths.pop("", None)
    if wrong:
        paths["rows"] = [_row_marks(wrong, length, width, height)]
    order = sorted(paths, key=lambda name: name in _OVERLAYS)
    shapes = [Markup('<path class="{}" d="{}"/>').format(name, "".join(paths[name])) for name in order]
    return Markup('<svg class="map" viewBox="0 0 {} {}" aria-hidden="true">{}</svg>').format(
        width + 1, height, Markup("").join(shapes)
    )


def numbered(signs: Sequence[str], wrong: Sequence[tuple[int, int]], length: int) -> Markup:
    """The same in figures: of each tile the bound that its letter stands for, with a dot where 0 is expected."""
    (wide, tall), (height, width) = WIDE, (len(signs), len(signs[0]))
    cells = [
        cell(sign, figure_of(sign) + (" ·" if sign.isupper() else ""), (x * wide, y * tall, wide, tall))
        for y, line in enumerate(signs)
        for x, sign in enumerate(line)
    ]
    marks = Markup('<path class="rows" transform="translate({} 0) scale({} {})" d="{}"/>').format(
        width * (wide - _MARK), _MARK, tall, _row_marks(wrong, length, width, height)
    )
    return Markup('<svg class="map large" viewBox="0 0 {} {}" aria-hidden="true">{}{}</svg>').format(
        width * wide + _MARK, height * tall, Markup("").join(cells), marks if wrong else ""
    )


def _row_marks(wrong: Sequence[tuple[int, int]], length: int, width: int, height: int) -> str:
    """A path at the right of a map, in tiles."""
    scaled = ((f"{at * height / length:.3g}" for at in (first, last + 1)) for first, last in wrong)
    return "".join(f"M{width}.5 {first}V{last}" for first, last in scaled)


def _runs(names: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Equal neighbours together: their name, where they begin, and how many they are."""
    first = 0
    for name, those in groupby(names):
        count = len(list(those))
        yield name, first, count
        first += count


_OVERLAYS = ("cross", "crossed", "zero")
# Crosses of another colour, on the classes whose ground is far from that of the page.
_FAR = ("w3", "w4")


def _overlay(sign: str) -> str:
    """What stands on a tile beside its colour."""
    kind = class_of(sign)
    return ("crossed" if kind in _FAR else "cross") if kind[0] == "w" else "zero" if sign.isupper() else ""


# The letters of tiles that are drawn alike, as the first of them; what nobody measured is not among them.
_FIRST: dict[tuple[str, str], str] = {}
_LOOKS = {ord(sign): _FIRST.setdefault((class_of(sign), _overlay(sign)), sign) for sign in LEVELS + LEVELS.upper()}


def pooled(signs: Sequence[str], step: int) -> list[str]:
    """The worst of so many neighbours along either side, by letter; masked where all of them are."""
    rows = (signs[at : at + step] for at in range(0, len(signs), step))
    starts = range(0, len(signs[0]), step)
    return ["".join(max(("".join(line[x : x + step] for line in row)), key=_order) for x in starts) for row in rows]


def _order(sign: str) -> tuple[str, bool]:
    """HIDDEN and UNMEASURED come before every letter."""
    return sign.lower(), sign.islower()


@dataclass(frozen=True)
class HeadMap:
    """The map of one head, or of several whose maps are drawn alike."""

    id: str
    name: str
    """`batch 0, head 1`, `batch 0, heads 1-3, 6`."""
    short: str
    count: int
    """How many heads it is of."""
    status: str
    words: str
    """`✗ wrong by itself, worst 40x what is allowed`."""
    picture: Markup | None
    signs: str
    """Its lines, with bars between."""
    pixels: int
    """How wide it is drawn."""


@dataclass(frozen=True)
class Chapter:
    """One intermediate."""

    id: str
    title: str
    status: str
    words: str
    told: str
    """What a tile and a line of its maps are; "" where there are none."""
    tile: tuple[int, int]
    lines: tuple[int, ...]
    """The rows that are a line each, where not all were shown."""
    heads: tuple[HeadMap, ...]
    left_out: int
    """How many maps have no room on the page."""
    views: tuple[CloseUpView, ...]


def id_of(intermediate: Intermediate) -> str:
    """The place of an intermediate on the page."""
    return "map-" + "-".join(
        filter(
            None,
            (intermediate.name, "".join(c if c.isalnum() or c in "_." else "-" for c in intermediate.kernel or "")),
        )
    )


def chapters(run: Run, alike: Sequence[Sequence[Alike]], close_ups: Sequence[CloseUp], opens: Opens) -> list[Chapter]:
    """Every intermediate that came, in dataflow order, with as many maps as the page has room for.

    Args:
        alike: what `alike_heads` finds.
        opens: whether a tile of a map, by its id, opens to all of its values.
    """
    every = [(heads[0].status == MATCH, y, x) for y, those in enumerate(alike) for x, heads in enumerate(those)]
    kept: dict[int, list[Alike]] = {}
    for _, y, x in sorted(every)[:MOST_MAPS]:
        kept.setdefault(y, []).append(alike[y][x])
    tiles = sum(len(line) for those in kept.values() for heads in those for line in heads[0].tiles)
    step = math.ceil(math.sqrt(max(1.0, tiles / MOST_TILES)))
    return [
        _chapter(intermediate, kept.get(y, ()), len(alike[y]), step, _of(run, intermediate, close_ups), opens)
        for y, intermediate in enumerate(run.compares)
    ]


Alike = tuple[Head, ...]
"""Heads whose maps are drawn alike."""


def alike_heads(run: Run, opened: Collection[str] = ()) -> list[list[Alike]]:
    """Of each intermediate that came its heads, those that are drawn alike together, in the order of their first.

    Args:
        opened: the ids of maps that open to values: those stand alone.
    """
    return [_alike(one, opened) for one in run.compares]


def _alike(intermediate: Intermediate, opened: Collection[str]) -> list[Alike]:
    found: dict[object, list[Head]] = {}
    for head in intermediate.heads:
        id = _map_id(intermediate, head)
        found.setdefault(id if id in opened else _drawing(head), []).append(head)
    return [tuple(heads) for heads in found.values()]


def _drawing(head: Head) -> object:
    """All that a map shows."""
    return head.status, head.rows, "|".join(head.tiles).translate(_LOOKS)


def _worst(heads: Alike) -> tuple[str, ...]:
    """One map for all of them: of each tile the letter of the head that is furthest off there."""
    lines = zip(*(head.tiles for head in heads), strict=True)
    return tuple("".join(max(signs, key=_order) for signs in zip(*line, strict=True)) for line in lines)


def _of(run: Run, intermediate: Intermediate, close_ups: Sequence[CloseUp]) -> list[CloseUp]:
    return [view for view in close_ups if (view.element.title, view.layout) == (intermediate.title, run.layout)]


def _chapter(
    intermediate: Intermediate, kept: Sequence[Alike], count: int, step: int, close_ups: Sequence[CloseUp], opens: Opens
) -> Chapter:
    tiles = sum(len(line) for heads in kept for line in heads[0].tiles)
    beside = max((len(heads[0].tiles[0]) for heads in kept if heads[0].tiles), default=0)
    in_figures = step == 1 and tiles <= _MOST_FIGURES and beside <= _MOST_BESIDE
    return Chapter(
        id=id_of(intermediate),
        title=intermediate.title,
        status=intermediate.status,
        words=words_of(intermediate),
        told=_describe(intermediate),
        tile=intermediate.tile,
        lines=_shown(intermediate),
        heads=tuple(_head_map(intermediate, heads, step, in_figures=in_figures) for heads in kept),
        left_out=count - len(kept),
        views=tuple(
            view_of(f"{id_of(intermediate)}-{view.batch or 0}-{view.head}", view, intermediate.tile, opens)
            for view in close_ups
        ),
    )


def words_of(intermediate: Intermediate) -> str:
    """`✗ wrong by itself: 6 of 8 heads wrong, worst 40x what is allowed`."""
    wrong = sum(head.status != MATCH for head in intermediate.heads)
    count = f"{wrong} of {len(intermediate.heads)} heads wrong, " if wrong else ""
    return f"{WORDS[intermediate.status]}: {count}worst {ratio(intermediate.ratio)}x what is allowed"


def _describe(intermediate: Intermediate) -> str:
    rows, cols = intermediate.tile
    if not rows or not any(head.tiles for head in intermediate.heads):
        return ""
    tile = f"A tile is {rows} x {cols}, rows downwards; wrong rows are marked at the right of each map."
    if intermediate.shown:
        of = f"one of the {len(_shown(intermediate))} rows that were shown ({in_words(intermediate.shown, 6)})"
        tile = f"A line is {of}, a tile {cols} of its entries; wrong rows are marked at the right of each map."
    passed = " Right results carry an upper bound per tile."
    return tile + (passed if intermediate.bounded else "")


def _map_id(intermediate: Intermediate, head: Head) -> str:
    return f"{id_of(intermediate)}-{head.batch or 0}-{head.head}"


def _shown(intermediate: Intermediate) -> tuple[int, ...]:
    return tuple(row for first, last in intermediate.shown for row in range(first, last + 1))


def _marked(intermediate: Intermediate, head: Head) -> tuple[list[tuple[int, int]], int]:
    """The wrong rows of a head as those of its map, and how many there are in all."""
    if not intermediate.shown:
        return [*head.rows], intermediate.length or 1
    shown = _shown(intermediate)
    wrong = [at for at, row in enumerate(shown) if any(first <= row <= last for first, last in head.rows)]
    return [(at, at) for at in wrong], len(shown)


def _place(head: Head) -> str:
    return ("" if head.batch is None else f"batch {head.batch}, ") + f"head {head.head}"


def _short(head: Head) -> str:
    return ("" if head.batch is None else f"{head.batch}.") + str(head.head)


def places(heads: Alike) -> str:
    """`batch 0, heads 0-2, 5; batch 1, head 3`."""
    if len(heads) == 1:
        return _place(heads[0])
    found = list[str]()
    for batch, those in groupby(heads, key=lambda head: head.batch):
        ranges = in_words(spans(sorted(head.head for head in those)), len(heads))
        found.append(("" if batch is None else f"batch {batch}, ") + f"head{'' if ranges.isdigit() else 's'} {ranges}")
    return "; ".join(found)


def shorts(heads: Alike) -> str:
    """`0.1`, `0.1, 0.2`, `0.0, 0.3 and 41 more`."""
    shown = heads if len(heads) <= _NAMED + 1 else heads[:_NAMED]
    rest = f" and {len(heads) - len(shown)} more" if len(heads) > len(shown) else ""
    return ", ".join(map(_short, shown)) + rest


def _head_map(intermediate: Intermediate, heads: Alike, step: int, *, in_figures: bool) -> HeadMap:
    first = heads[0]
    words = f"{WORDS[first.status]}, worst {ratio(max(head.ratio for head in heads))}x"
    if first.rows:
        words += f", rows {in_words(first.rows, 4)}"
    letters = _worst(heads)
    signs, marked = pooled(letters, step) if letters else [""], _marked(intermediate, first)
    small = (len(signs[0]) + 1) * max(4, min(14, 112 // max(1, len(signs), len(signs[0]))))
    return HeadMap(
        id=_map_id(intermediate, first),
        name=places(heads),
        short=shorts(heads),
        count=len(heads),
        status=first.status,
        words=words,
        picture=(numbered if in_figures else drawn)(signs, *marked) if letters else None,
        signs="|".join(letters),
        pixels=len(signs[0]) * WIDE[0] + _MARK if in_figures and letters else small,
    )


def shared_ids(run: Run, alike: Sequence[Sequence[Alike]]) -> dict[tuple[str, int | None, int], str]:
    """By title, batch and head: the id of the map that shows it."""
    return {
        (intermediate.title, head.batch, head.head): _map_id(intermediate, heads[0])
        for intermediate, those in zip(run.compares, alike, strict=True)
        for heads in those
        for head in heads
    }
