"""Maps: the worst error of every head, and of every tile of a head, as pictures on one scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from ...model.number import in_words
from ...model.run import MATCH, CloseUp, Head, Intermediate, Run
from ..text import UTF8, ratio
from .closeups import Opens, View, view_of
from .graph import WORDS
from .scale import class_of, sign_of

_MARKS = {"mismatch": UTF8.mismatch, "inherited": UTF8.inherited}
# Of all maps of a page, of which what is wrong comes first, and of the tiles that are drawn of them: some 450 bytes
# each and 26, of two megabytes.
MOST_MAPS, MOST_TILES = 1500, 24_000
# Cells of the overview that lead each to its map; of more, a row leads to the first.
MOST_LINKS = 2000


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
    scaled = [[f"{at * height / length:.3g}" for at in (first, last + 1)] for first, last in wrong]
    paths |= {"rows": [f"M{width}.5 {first}V{last}" for first, last in scaled]} if wrong else {}
    order = sorted(paths, key=lambda name: name in _OVERLAYS)
    shapes = [Markup('<path class="{}" d="{}"/>').format(name, "".join(paths[name])) for name in order]
    return Markup('<svg class="map" viewBox="0 0 {} {}" aria-hidden="true">{}</svg>').format(
        width + 1, height, Markup("").join(shapes)
    )


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
    """The map of one head."""

    id: str
    name: str
    """`batch 0, head 1`."""
    short: str
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
    views: tuple[View, ...]


def id_of(one: Intermediate) -> str:
    """The place of an intermediate on the page."""
    return "map-" + "-".join(
        filter(None, (one.name, "".join(c if c.isalnum() or c in "_." else "-" for c in one.kernel or "")))
    )


def chapters(run: Run, close_ups: Sequence[CloseUp], opens: Opens) -> list[Chapter]:
    """Every intermediate that came, in dataflow order, with as many maps as the page has room for.

    Args:
        opens: whether a tile of a map, by its id, opens to all of its values.
    """
    every = [(head.status == MATCH, y, x) for y, one in enumerate(run.compares) for x, head in enumerate(one.heads)]
    kept: dict[int, list[Head]] = {}
    for _, y, x in sorted(every)[:MOST_MAPS]:
        kept.setdefault(y, []).append(run.compares[y].heads[x])
    tiles = sum(len(line) for heads in kept.values() for head in heads for line in head.tiles)
    step = math.ceil(math.sqrt(max(1.0, tiles / MOST_TILES)))
    return [_chapter(one, kept.get(y, ()), step, _of(run, one, close_ups), opens) for y, one in enumerate(run.compares)]


def _of(run: Run, one: Intermediate, close_ups: Sequence[CloseUp]) -> list[CloseUp]:
    return [view for view in close_ups if (view.element.title, view.layout) == (one.title, run.layout)]


def _chapter(
    one: Intermediate, heads: Sequence[Head], step: int, close_ups: Sequence[CloseUp], opens: Opens
) -> Chapter:
    return Chapter(
        id=id_of(one),
        title=one.title,
        status=one.status,
        words=_words(one),
        told=_told(one),
        tile=one.tile,
        lines=_shown(one),
        heads=tuple(_head_map(one, head, step) for head in sorted(heads, key=one.heads.index)),
        left_out=len(one.heads) - len(heads),
        views=tuple(
            view_of(f"{id_of(one)}-{view.batch or 0}-{view.head}", view, one.tile, opens) for view in close_ups
        ),
    )


def _words(one: Intermediate) -> str:
    wrong = sum(head.status != MATCH for head in one.heads)
    of = f"{wrong} of {len(one.heads)} heads wrong, " if wrong else ""
    return f"{WORDS[one.status]}: {of}worst {ratio(one.ratio)}x what is allowed"


def _told(one: Intermediate) -> str:
    rows, cols = one.tile
    if not rows or not any(head.tiles for head in one.heads):
        return ""
    tile = f"A tile is {rows} x {cols}, rows downwards; wrong rows are marked at the right of each map."
    if one.shown:
        of = f"one of the {len(_shown(one))} rows that were shown ({in_words(one.shown, 6)})"
        tile = f"A line is {of}, a tile {cols} of its entries; wrong rows are marked at the right of each map."
    passed = " Right results carry an upper bound per tile."
    return tile + (passed if one.bounded else "")


def _shown(one: Intermediate) -> tuple[int, ...]:
    return tuple(row for first, last in one.shown for row in range(first, last + 1))


def _marked(one: Intermediate, head: Head) -> tuple[list[tuple[int, int]], int]:
    """The wrong rows of a head as those of its map, and how many there are in all."""
    if not one.shown:
        return [*head.rows], one.length or 1
    shown = _shown(one)
    wrong = [at for at, row in enumerate(shown) if any(first <= row <= last for first, last in head.rows)]
    return [(at, at) for at in wrong], len(shown)


def _place(head: Head) -> str:
    return ("" if head.batch is None else f"batch {head.batch}, ") + f"head {head.head}"


def _short(head: Head) -> str:
    return ("" if head.batch is None else f"{head.batch}.") + str(head.head)


def _head_map(one: Intermediate, head: Head, step: int) -> HeadMap:
    words = f"{WORDS[head.status]}, worst {ratio(head.ratio)}x"
    if head.rows:
        words += f", rows {in_words(head.rows, 4)}"
    signs = pooled(head.tiles, step) if head.tiles else [""]
    return HeadMap(
        id=f"{id_of(one)}-{head.batch or 0}-{head.head}",
        name=_place(head),
        short=_short(head),
        status=head.status,
        words=words,
        picture=drawn(signs, *_marked(one, head)) if head.tiles else None,
        signs="|".join(head.tiles),
        pixels=(len(signs[0]) + 1) * max(4, min(14, 112 // max(1, len(signs), len(signs[0])))),
    )


def overview(run: Run) -> Markup:
    """Heads against intermediates: a row an intermediate, a column a head of each batch."""
    heads, rows = max(len(one.heads) for one in run.compares), len(run.compares)
    step = max(4.0, min(_WIDE, 1040 / heads))
    left = round(_LETTER * max(6, *(len(one.title) for one in run.compares)))
    row = _overview_row if heads * rows <= MOST_LINKS else _row_of_many
    parts = list(_columns(run, left, step))
    parts += [part for y, one in enumerate(run.compares, 1) for part in row(one, y * _TALL, left, step * heads)]
    label = "The worst error of each head: rows are intermediates, columns are heads"
    return Markup(
        '<svg class="overview" viewBox="0 0 {0} {1}" width="{0}" role="group" aria-label="{2}">{3}</svg>'
    ).format(round(left + step * heads), (rows + 1) * _TALL, label, Markup("").join(parts))


_TALL, _NAME = 22, 40
# Cells that hold a number: a mark and five digits. A letter of a row's name, in bold, is this wide at most on average.
_WIDE, _LETTER = 50.0, 8.2


def _columns(run: Run, left: int, step: float) -> Iterator[Markup]:
    """The names of the columns, batch and head, of as many as there is room for."""
    longest = max(run.compares, key=lambda one: len(one.heads))
    every = math.ceil(_NAME / step)
    for at, head in list(enumerate(longest.heads))[::every]:
        yield Markup('<text class="column" x="{:.1f}" y="15">{}</text>').format(left + (at + 0.5) * step, _short(head))


def _overview_row(one: Intermediate, y: int, left: int, width: float) -> Iterator[Markup]:
    """A cell a head, each of which leads to its map."""
    yield _row_name(one, y)
    step = width / max(1, len(one.heads))
    for at, head in enumerate(one.heads):
        x, kind, mark = left + at * step, class_of(sign_of(head.ratio)), _MARKS.get(head.status, "")
        text = f"{mark}{ratio(head.ratio)}" if step >= _WIDE else mark if step >= 12 else ""
        box = Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="20"/>').format(kind, x, y, step - 1)
        if text:
            middle = (kind, x + step / 2 - 0.5, y + 14, text)
            box += Markup('<text class="in {}" x="{:.1f}" y="{}">{}</text>').format(*middle)
        id = f"{id_of(one)}-{head.batch or 0}-{head.head}"
        label = f"{one.title}, {_place(head)}: {WORDS[head.status]}, {ratio(head.ratio)}x"
        yield Markup('<a href="#{}" aria-label="{}">{}</a>').format(id, label, box)


def _row_of_many(one: Intermediate, y: int, left: int, width: float) -> Iterator[Markup]:
    """A path a class; the whole row leads to the maps."""
    yield _row_name(one, y)
    step = width / max(1, len(one.heads))
    paths: dict[str, list[str]] = {}
    for at, head in enumerate(one.heads):
        kind = class_of(sign_of(head.ratio))
        paths.setdefault(kind, []).append(f"M{left + at * step:.1f} {y}h{step - 0.5:.1f}v20h-{step - 0.5:.1f}z")
    shapes = [Markup('<path class="{}" d="{}"/>').format(kind, "".join(path)) for kind, path in paths.items()]
    label = f"{one.title}: {_words(one)}, to its maps"
    yield Markup('<a href="#{}" aria-label="{}">{}</a>').format(id_of(one), label, Markup("").join(shapes))


def _row_name(one: Intermediate, y: int) -> Markup:
    return Markup('<text class="name" x="0" y="{}">{}</text>').format(y + 15, one.title)
