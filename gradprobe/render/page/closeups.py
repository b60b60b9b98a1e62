"""Close-ups: what a report keeps of the values of one head, as a map of tiles that open, and a profile of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import product

from markupsafe import Markup

from ...model.layout_run import LEVELS, CloseUp, CloseUpRow
from ..notation import place_in_words, ratio
from .scale import class_of, sign_of

# Of a tile: wide ones hold their number. Left of them stand the rows.
WIDE, _NARROW, _LEFT, _MOST_WIDE = (54, 24), (18, 18), 64, 16
_BAR = 120
Opens = Callable[[str, tuple[int, int]], bool]
"""Whether a tile of a map, by the id of the map and its place there, opens to all of its values."""


@dataclass(frozen=True)
class TileView:
    """One tile of a close-up, with what the report keeps of its values."""

    id: str
    name: str
    """`rows 0-31, cols 16-31`."""
    rows: tuple[CloseUpRow, ...]
    """The worst element of each row, where it lies in the tile."""


@dataclass(frozen=True)
class CloseUpView:
    """A close-up."""

    name: str
    close_up: CloseUp
    picture: Markup
    profile: Markup
    tiles: tuple[TileView, ...]


def view_of(id: str, close_up: CloseUp, tile: tuple[int, int], opens: Opens) -> CloseUpView:
    """A close-up as it is drawn.

    Args:
        id: that of the map of its head, of which a tile has so many rows and columns.
        opens: whether one of those opens to all of its values; else a tile opens to what is kept of its rows.
    """
    name = f"{id}-tile"
    kept = {one.id: one for one in _tiles(name, close_up)}
    whole = set[str]()
    if not close_up.lines and tile[0]:
        places = product(range(len(close_up.map)), range(len(close_up.map[0])))
        size = close_up.tile
        whole |= {f"{name}-{y}-{x}" for y, x in places if opens(id, (y * size[0] // tile[0], x * size[1] // tile[1]))}
    picture = _map(id, close_up, kept.keys(), whole)
    rest = tuple(one for one in kept.values() if one.id not in whole)
    return CloseUpView(place_in_words(close_up), close_up, picture, _profile(close_up), rest)


def _tiles(name: str, view: CloseUp) -> Iterator[TileView]:
    """The tiles that values are kept of."""
    found: dict[tuple[int, int], list[CloseUpRow]] = {}
    for row in view.rows:
        found.setdefault((row.row // view.tile[0], row.col // view.tile[1]), []).append(row)
    for at, rows in sorted(found.items()):
        yield TileView(f"{name}-{at[0]}-{at[1]}", _spans(view, at), tuple(rows))


def _spans(view: CloseUp, at: tuple[int, int]) -> str:
    words = []
    for axis, place, size, length in zip(("row", "col"), at, view.tile, view.shape, strict=True):
        first, last = place * size, min(place * size + size, length) - 1
        words.append(f"{axis}s {first}-{last}" if last > first else f"{axis} {first}")
    return ", ".join(words)


def _map(head: str, view: CloseUp, kept: Collection[str], whole: Collection[str]) -> Markup:
    """The worst ratio of each tile. Those that values are kept of open: all of them, or the worst of each row."""
    wide, tall = WIDE if len(view.map[0]) <= _MOST_WIDE else _NARROW
    parts = list[Markup]()
    for y, (line, cells) in enumerate(zip(view.lines or range(len(view.map)), view.map, strict=True)):
        at = (_LEFT - 6, y * tall + tall * 0.7, f"row {line * view.tile[0]}")
        parts.append(Markup('<text class="axis" x="{}" y="{}">{}</text>').format(*at))
        for x, times in enumerate(cells):
            figure = "" if times is None or wide != WIDE[0] else ratio(times)
            shape = cell(sign_of(times), figure, (_LEFT + x * wide, y * tall, wide, tall))
            id = f"{head}-tile-{line}-{x}"
            told = f"{_spans(view, (line, x))}: worst {ratio(times or 0.0)}x what is allowed; open its values"
            if id in whole:
                link = Markup('<a href="#{}" data-head="{}" data-from="{},{}" data-span="{},{}" aria-label="{}">{}</a>')
                start = (line * view.tile[0], x * view.tile[1])
                parts.append(link.format(head, head, *start, *view.tile, told, shape))
            elif id in kept:
                link = Markup('<a href="#{}" data-opens="{}" aria-label="{}">{}</a>')
                parts.append(link.format(id, id, told, shape))
            else:
                parts.append(shape)
    width, height = _LEFT + wide * len(view.map[0]), tall * len(view.map)
    label = f"{view.element.title}, {place_in_words(view)}: the worst error of each tile"
    return Markup(
        '<svg class="large" viewBox="0 0 {0} {1}" width="{0}" role="group" aria-label="{2}">{3}</svg>'
    ).format(width, height, label, Markup("").join(parts))


def cell(sign: str, text: str, box: tuple[int, int, int, int]) -> Markup:
    """A tile in the colour of its letter, with a figure in it."""
    x, y, wide, tall = box
    kind = class_of(sign)
    return Markup(
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/><text class="in {}" x="{}" y="{}">{}</text>'
    ).format(kind, x, y, wide - 1, tall - 1, kind, x + wide / 2, y + tall * 0.7, text)


def _profile(view: CloseUp) -> Markup:
    """A bar for each row that is kept: the longer, the further it is off, on the scale of the letters of maps."""
    bars = list[Markup]()
    for row in view.rows:
        sign = sign_of(row.ratio)
        long = _BAR * (LEVELS.index(sign) + 1) // len(LEVELS)
        bars.append(Markup('<path class="{}" d="M0 {}.5h{}"/>').format(class_of(sign), row.row, long))
    tall = len(view.map) * (WIDE if len(view.map[0]) <= _MOST_WIDE else _NARROW)[1]
    return Markup(
        '<svg class="profile" viewBox="0 0 {0} {1}" width="{0}" height="{2}" preserveAspectRatio="none" role="img"'
        ' aria-label="The worst error of each wrong row; its numbers stand in the table">{3}</svg>'
    ).format(_BAR, view.shape[0], tall, Markup("").join(bars))
