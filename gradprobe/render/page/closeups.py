"""Close-ups: what a report keeps of the values of one head, as a map of tiles that open, and a profile of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from ...model.number import Number
from ...model.run import LEVELS, CloseUp, Row
from ..text import place_in_words, ratio
from .scale import class_of, sign_of

# Of a tile: wide ones hold their number. Left of them stand the rows.
_WIDE, _NARROW, _LEFT, _MOST_WIDE = (54, 24), (18, 18), 64, 16
_BAR = 120


@dataclass(frozen=True)
class TileView:
    """One tile of a close-up, with what the report keeps of its values."""

    id: str
    name: str
    """`rows 0-31, cols 16-31`."""
    rows: tuple[Row, ...]
    """The worst element of each row, where it lies in the tile."""


@dataclass(frozen=True)
class View:
    """A close-up."""

    name: str
    close_up: CloseUp
    picture: Markup
    profile: Markup
    tiles: tuple[TileView, ...]


def view_of(name: str, close_up: CloseUp) -> View:
    """A close-up as it is drawn, with ids that begin with a name."""
    opened = {tile.id: tile for tile in _tiles(name, close_up)}
    where = place_in_words(close_up)
    return View(where, close_up, _map(name, close_up, opened), _profile(close_up), tuple(opened.values()))


def _tiles(name: str, view: CloseUp) -> Iterator[TileView]:
    """The tiles that values are kept of."""
    found: dict[tuple[int, int], list[Row]] = {}
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


def _map(name: str, view: CloseUp, opened: dict[str, TileView]) -> Markup:
    """The worst ratio of each tile. Those that values are kept of open."""
    wide, tall = _WIDE if len(view.map[0]) <= _MOST_WIDE else _NARROW
    parts = list[Markup]()
    for y, (line, cells) in enumerate(zip(view.lines or range(len(view.map)), view.map, strict=True)):
        at = (_LEFT - 6, y * tall + tall * 0.7, f"row {line * view.tile[0]}")
        parts.append(Markup('<text class="axis" x="{}" y="{}">{}</text>').format(*at))
        for x, cell in enumerate(cells):
            shape, id = _cell(cell, (_LEFT + x * wide, y * tall, wide, tall)), f"{name}-{line}-{x}"
            told = f"{_spans(view, (line, x))}: worst {ratio(cell or 0.0)}x what is allowed; open its values"
            link = Markup('<a href="#{}" data-opens="{}" aria-label="{}">{}</a>').format(id, id, told, shape)
            parts.append(link if id in opened else shape)
    width, height = _LEFT + wide * len(view.map[0]), tall * len(view.map)
    label = f"{view.element.title}, {place_in_words(view)}: the worst error of each tile"
    return Markup(
        '<svg class="large" viewBox="0 0 {0} {1}" width="{0}" role="group" aria-label="{2}">{3}</svg>'
    ).format(width, height, label, Markup("").join(parts))


def _cell(times: Number | None, box: tuple[int, int, int, int]) -> Markup:
    x, y, wide, tall = box
    kind = class_of(sign_of(times))
    text = "" if times is None or box[2:] != _WIDE else ratio(times)
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
    tall = len(view.map) * (_WIDE if len(view.map[0]) <= _MOST_WIDE else _NARROW)[1]
    return Markup(
        '<svg class="profile" viewBox="0 0 {0} {1}" width="{0}" height="{2}" preserveAspectRatio="none" role="img"'
        ' aria-label="The worst error of each wrong row; its numbers stand in the table">{3}</svg>'
    ).format(_BAR, view.shape[0], tall, Markup("").join(bars))
