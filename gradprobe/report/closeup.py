"""A close-up for people: the error map over tiles, the wrong rows, the numbers around the first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from ..judging.closeup import CloseUp
from ..judging.tally import MISMATCH
from ..spans import in_words, plural, spans
from .as_json import number
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
        *_head(view),
        Text(),
        *_map(view, width, _UTF8 if utf8 else _ASCII),
        Text(),
        *_rows(view),
        Text(),
        *window(view.location, width),
    ]


def close_up_as_json(view: CloseUp) -> dict[str, Any]:
    """The close-up for the JSON report."""
    return {
        "intermediate": view.name,
        "batch": view.batch,
        "head": view.head,
        "mismatched": view.wrong,
        "total": view.shape[0] * view.shape[1],
        "tile": list(view.tile),
        "map": [[None if math.isnan(cell) else number(cell) for cell in row] for row in view.map],
        "rows": [
            {
                "row": row.row, "mismatched": row.wrong, "col": row.col, "actual": number(row.actual),
                "expected": number(row.expected), "ratio": number(row.ratio),
            }
            for row in view.rows
        ],
    }  # fmt: skip


def _head(view: CloseUp) -> Iterator[Text]:
    where = f"batch {view.batch}, head {view.head}" if view.batch is not None else f"head {view.head}"
    total = view.shape[0] * view.shape[1]
    state = (
        f"{view.wrong:,} of {plural(total, 'element')} wrong"
        if view.wrong
        else f"all {plural(total, 'element')} within budget"
    )
    yield Text.assemble((view.name, "bold"), f"  {where}: ", (state, STYLES[MISMATCH] if view.wrong else "green"))


def _map(view: CloseUp, width: int, signs: str) -> Iterator[Text]:
    rows, cols = view.tile
    cells = _fitted(view.map, max(1, width - 14))
    step = -(-len(view.map[0]) // max(len(cells[0]), 1))
    yield Text(f"  worst error of each {rows} x {min(cols * step, view.shape[1])} tile, rows downwards", "dim")
    for at, line in enumerate(cells):
        text = Text(f"  row {at * rows:<6}")
        for cell in line:
            text.append(_sign(cell, signs), STYLES[MISMATCH] if cell > 1 else "")
        yield text
    words = ("within budget", "over it", "over 10x", "over 100x", "over 1000x")
    yield Text("  " + "   ".join(f"{sign} {word}" for sign, word in zip(signs, words, strict=True)), "dim")


def _fitted(cells: Sequence[Sequence[float]], most: int) -> list[list[float]]:
    """Neighbouring columns pooled until they fit."""
    step = -(-len(cells[0]) // most)
    return [[_worst(line[first : first + step]) for first in range(0, len(line), step)] for line in cells]


def _worst(cells: Sequence[float]) -> float:
    numbers = [cell for cell in cells if not math.isnan(cell)]
    return max(numbers) if numbers else math.nan


def _sign(cell: float, signs: str) -> str:
    if math.isnan(cell):
        return " "
    return signs[sum(cell > least for least in _SCALE[1:])]


def _rows(view: CloseUp) -> Iterator[Text]:
    if view.wrong:
        yield Text(
            f"  wrong rows: {in_words(spans(row.row for row in view.rows))} ({len(view.rows)} of {view.shape[0]})"
        )
    yield Text(f"  {'row':>6}{'wrong':>8}{'worst col':>11}{'actual':>13}{'expected':>13}{'ratio':>9}", "dim")
    for row in view.rows[:_MOST_ROWS]:
        yield Text(
            f"  {row.row:>6}{row.wrong:>8}{row.col:>11}{value(row.actual):>13}{value(row.expected):>13}"
            f"{ratio(row.ratio) + 'x':>9}"
        )
    if len(view.rows) > _MOST_ROWS:
        yield Text(f"  {len(view.rows) - _MOST_ROWS} more wrong rows", "dim")
