"""Excerpts: numbers around an element, and one intermediate close up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ..model.layout_run import MISMATCH, CloseUp, Element
from ..model.number import Number, in_words, plural, ratio, spans
from .notation import STYLES, place_in_words, value


def window(place: Element, width: int, *, one_row: bool = False) -> Iterator[Text]:
    """The numbers around an element, actual above expected, it in brackets; or those of its row alone."""
    around = place.window
    if around is None:
        return
    cells = max(1, min(len(around.cols), (width - 22) // 12))
    first = max(0, min(around.cols.index(place.col or 0) - cells // 2, len(around.cols) - cells))
    cols = around.cols[first : first + cells]
    yield Text(" " * 21 + "".join(f"{f'col {col}':>12}" for col in cols), "dim")
    for at, row in enumerate(around.rows):
        if one_row and row != (place.row or 0):
            continue
        for label, numbers in (("actual", around.actual[at]), ("expected", around.expected[at])):
            head = f"  row {row:<6}" if label == "actual" else " " * 12
            text = Text(f"{head}{label:>9}")
            for col, number in zip(cols, numbers[first : first + cells], strict=True):
                here = row == (place.row or 0) and col == (place.col or 0)
                written = f"[{value(number)}]" if here else f"{value(number)} "
                text.append(
                    f"{written:>12}", STYLES[MISMATCH] if here and label == "actual" else ""
                )
            text.rstrip()
            yield text


# Beyond each of these multiples of the budget another sign.
_OVER = (1.0, 10.0, 100.0, 1000.0)
UTF8_SIGNS = "·░▒▓█"
ASCII_SIGNS = ".-+*#"
_MOST_ROWS = 10


def render_close_up(view: CloseUp, width: int, *, utf8: bool = True) -> list[Text]:
    """The close-up as lines that fit `width`."""
    return [
        Text(f"layout {view.layout}", "dim"),
        *close_up_head(view),
        Text(),
        *close_up_map(view, width, UTF8_SIGNS if utf8 else ASCII_SIGNS),
        Text(),
        *close_up_rows(view),
        Text(),
        *window(view.element, width),
    ]


def close_up_head(view: CloseUp) -> Iterator[Text]:
    """The head, and how much of it is wrong."""
    elements, is_wrong = plural(view.total, "element"), view.mismatched > 0
    state = (
        f"{view.mismatched:,} of {elements} wrong"
        if is_wrong
        else f"all {elements} within budget"
    )
    styled = (state, STYLES[MISMATCH] if is_wrong else "green")
    yield Text.assemble((view.element.title, "bold"), f"  {place_in_words(view)}: ", styled)


def close_up_map(view: CloseUp, width: int, signs: str) -> Iterator[Text]:
    """A title, a line for each row of tiles, and what the signs mean."""
    rows, cols = view.tile
    step = -(-len(view.map[0]) // max(1, width - 14))  # columns are pooled until they fit
    yield Text(
        f"  worst error of each {rows} x {min(cols * step, view.shape[1])} tile, rows downwards",
        "dim",
    )
    for at, line in enumerate(view.map):
        text = Text(f"  row {(view.lines[at] if view.lines else at) * rows:<6}")
        for cell in _pooled(line, step):
            sign = " " if cell is None else signs[sum(cell > least for least in _OVER)]
            text.append(sign, STYLES[MISMATCH] if cell is not None and cell > 1 else "")
        yield text
    words = ("within budget", "over it", "over 10x", "over 100x", "over 1000x")
    yield Text(
        "  " + "   ".join(f"{sign} {word}" for sign, word in zip(signs, words, strict=True)),
        "dim",
    )


def _pooled(line: Sequence[Number | None], step: int) -> list[Number | None]:
    """The worst of so many neighbours each."""
    parts = (line[first : first + step] for first in range(0, len(line), step))
    return [max((cell for cell in part if cell is not None), default=None) for part in parts]


def close_up_rows(view: CloseUp) -> Iterator[Text]:
    """Which rows are wrong, and the first of them with the worst element of each."""
    if view.mismatched:
        wrong = in_words(spans(row.row for row in view.rows))
        yield Text(f"  wrong rows: {wrong} ({len(view.rows)} of {view.shape[0]})")
    yield Text(
        f"  {'row':>6}{'wrong':>8}{'worst col':>11}{'actual':>13}{'expected':>13}{'ratio':>9}",
        "dim",
    )
    for row in view.rows[:_MOST_ROWS]:
        times = ratio(float("inf") if row.ratio is None else row.ratio)
        stood = f"{value(row.actual):>13}{value(row.expected):>13}{times + 'x':>9}"
        yield Text(f"  {row.row:>6}{row.mismatched:>8}{row.col:>11}{stood}")
    if len(view.rows) > _MOST_ROWS:
        yield Text(f"  {len(view.rows) - _MOST_ROWS} more wrong rows", "dim")
