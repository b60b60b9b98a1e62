"""A close-up for people: the error map over tiles, the wrong rows, the numbers around the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ..model.number import Number
from ..model.report import MISMATCH, CloseUp
from ..model.spans import in_words, plural, spans
from .console import window
from .text import STYLES, ratio, value

# From each ratio on: within budget, over it, over ten times, over a hundred, over a thousand.
_SCALE = (0.0, 1.0, 10.0, 100.0, 1000.0)
_UTF8 = "·░▒▓█"
_ASCII = ".-+*#"
_MOST_ROWS = 10


def render_close_up(view: CloseUp, width: int, *, utf8: bool = True) -> list[Text]:
    """The close-up as lines that fit `width`."""
    return [
        Text(f"layout {view.layout}", "dim"),
        *_head(view),
        Text(),
        *_map(view, width, _UTF8 if utf8 else _ASCII),
        Text(),
        *_rows(view),
        Text(),
        *window(view.element, width),
    ]


def _head(view: CloseUp) -> Iterator[Text]:
    where = f"batch {view.batch}, head {view.head}" if view.batch is not None else f"head {view.head}"
    elements, is_wrong = plural(view.total, "element"), view.mismatched > 0
    state = f"{view.mismatched:,} of {elements} wrong" if is_wrong else f"all {elements} within budget"
    yield Text.assemble((view.intermediate, "bold"), f"  {where}: ", (state, STYLES[MISMATCH] if is_wrong else "green"))


def _map(view: CloseUp, width: int, signs: str) -> Iterator[Text]:
    rows, cols = view.tile
    cells = _fitted(view.map, max(1, width - 14))
    step = -(-len(view.map[0]) // max(len(cells[0]), 1))
    yield Text(f"  worst error of each {rows} x {min(cols * step, view.shape[1])} tile, rows downwards", "dim")
    for at, line in enumerate(cells):
        text = Text(f"  row {at * rows:<6}")
        for cell in line:
            text.append(_sign(cell, signs), STYLES[MISMATCH] if cell is not None and cell > 1 else "")
        yield text
    words = ("within budget", "over it", "over 10x", "over 100x", "over 1000x")
    yield Text("  " + "   ".join(f"{sign} {word}" for sign, word in zip(signs, words, strict=True)), "dim")


def _fitted(cells: Sequence[Sequence[Number | None]], most: int) -> list[list[Number | None]]:
    """Neighbouring columns pooled until they fit."""
    step = -(-len(cells[0]) // most)
    return [[_worst(line[first : first + step]) for first in range(0, len(line), step)] for line in cells]


def _worst(cells: Sequence[Number | None]) -> Number | None:
    return max((cell for cell in cells if cell is not None), default=None)


def _sign(cell: Number | None, signs: str) -> str:
    return " " if cell is None else signs[sum(cell > least for least in _SCALE[1:])]


def _rows(view: CloseUp) -> Iterator[Text]:
    if view.mismatched:
        yield Text(
            f"  wrong rows: {in_words(spans(row.row for row in view.rows))} ({len(view.rows)} of {view.shape[0]})"
        )
    yield Text(f"  {'row':>6}{'wrong':>8}{'worst col':>11}{'actual':>13}{'expected':>13}{'ratio':>9}", "dim")
    for row in view.rows[:_MOST_ROWS]:
        yield Text(
            f"  {row.row:>6}{row.mismatched:>8}{row.col:>11}{value(row.actual):>13}{value(row.expected):>13}"
            f"{ratio(float('inf') if row.ratio is None else row.ratio) + 'x':>9}"
        )
    if len(view.rows) > _MOST_ROWS:
        yield Text(f"  {len(view.rows) - _MOST_ROWS} more wrong rows", "dim")
