"""Maps: the worst error of every tile of a wrong head as a picture, one for heads that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from ...model.layout_run import HIDDEN, LEVELS, MATCH, UNMEASURED, WITHIN, Head, Intermediate, Run
from ...model.number import in_words, ratio, spans

SCALE = (
    ("r0", "at most half of what is allowed"), ("r1", "all of it"), ("w1", "up to 16 times"), ("w2", "up to 256 times"),
    ("w3", "up to 4,096 times"), ("w4", "more, or not finite"), ("hidden", "masked"),
)  # fmt: skip
"""The classes of tiles, with their words."""
_CLASSES = {"a": "r0", "b": "r0", "c": "r1", HIDDEN: "hidden", UNMEASURED: "r0"}
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
    beyond = (
        at for at, letter in enumerate(LEVELS) if times <= 2.0 ** (at - LEVELS.index(WITHIN))
    )
    return LEVELS[next(beyond, len(LEVELS) - 1)]


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
        heads = [head for head in intermediate.heads if head.tiles and head.status != MATCH]
        alike: dict[object, list[Head]] = {}
        for head in heads:
            alike.setdefault((head.status, head.rows, head.tiles), []).append(head)
        maps = [_tile_map(intermediate, those) for those in list(alike.values())[:room]]
        room -= len(maps)
        if maps:
            rows, cols = intermediate.tile
            lines = (
                f"a line is one of rows {in_words(intermediate.shown, 6)}, "
                if intermediate.shown
                else ""
            )
            found.append(
                (intermediate.title, f"{lines}a tile is {rows} x {cols}, rows downwards", maps)
            )
    return found


def _tile_map(intermediate: Intermediate, heads: Sequence[Head]) -> TileMap:
    first = heads[0]
    words = f"worst {ratio(max(head.ratio for head in heads))}x what is allowed"
    words += f", rows {in_words(first.rows, 4)}" if first.rows else ""
    name = places(heads)
    return TileMap(
        name, first.status, words, drawn(first.tiles, f"{intermediate.title}, {name}: {words}")
    )


def places(heads: Sequence[Head]) -> str:
    """`batch 0, heads 0-2, 5; batch 1, head 3`."""
    found = []
    for batch, those in groupby(heads, key=lambda head: head.batch):
        ranges = in_words(spans(sorted(head.head for head in those)), len(heads))
        noun = "head" if ranges.isdigit() else "heads"
        found.append(("" if batch is None else f"batch {batch}, ") + f"{noun} {ranges}")
    return "; ".join(found)


def drawn(lines: Sequence[str], label: str) -> Markup:
    """A map, a tile a unit: what is wrong is crossed."""
    paths: dict[str, list[str]] = {}
    for y, line in enumerate(lines):
        for name, x, long in _runs(line):
            box = f"M{x} {y}h{long}v1h-{long}z"
            paths.setdefault(name, []).append(box)
            if name[0] == "w":
                cross = "crossed" if name in ("w3", "w4") else "cross"
                paths.setdefault(cross, []).append(box)
    order = sorted(paths, key=lambda name: name.startswith("cross"))
    shapes = [
        Markup('<path class="{}" d="{}"/>').format(name, "".join(paths[name])) for name in order
    ]
    wide, tall = len(lines[0]), len(lines)
    size = max(4, min(14, 112 // max(wide, tall)))
    return Markup(
        '<svg class="map" viewBox="0 0 {} {}" width="{}" role="img" aria-label="{}">{}</svg>'
    ).format(wide, tall, wide * size, label, Markup("").join(shapes))


def _runs(line: str) -> Iterator[tuple[str, int, int]]:
    """Neighbours of one class together: their class, where they begin, and how many they are."""
    first = 0
    for name, those in groupby(map(class_of, line)):
        count = len(list(those))
        yield name, first, count
        first += count
