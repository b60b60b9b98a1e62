"""Maps of tiles on a page: one for heads that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from ..model.layout_run import HIDDEN, LEVELS, MATCH, Head, Intermediate, Run
from ..model.number import in_words, ratio
from .notation import heads_by_batch

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
        rows, cols = intermediate.tile
        words = f"a tile is {rows} x {cols}, rows downwards"
        if intermediate.shown:
            words = f"a line is one of rows {in_words(intermediate.shown, 6)}, {words}"
        if maps:
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
    shapes = Markup("").join(map(shape.format, paths, paths.values()))
    size = max(4, min(14, 112 // max(wide, tall)))
    return Markup(
        '<svg class="map" viewBox="0 0 {} {}" width="{}" role="img" aria-label="{}">{}</svg>'
    ).format(wide, tall, wide * size, label, shapes)
