"""Tables of numbers: the worst error of each head, the numbers around an element, one intermediate close up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from ..model.layout_run import (
    INHERITED,
    MATCH,
    MISMATCH,
    CloseUp,
    Element,
    Head,
    Intermediate,
    Run,
)
from ..model.number import in_words, plural, ratio, spans
from ..model.report import Report
from .notation import STYLES, Signs, place_in_words, value
from .rows import lines_from

_TITLE = "worst error / allowed, by head"
_CELL, _LONGEST = 8, 40
# Ranges of heads in the title of a column.
_RANGES = 3
_Alike = Sequence[Intermediate]
_States = tuple[str, ...]
"""The status of an intermediate in each query head."""


def grid(rows: Sequence[Sequence[str | Text]], *, left: int = 1, least: int = 0) -> list[Text]:
    """Rows of cells as lines, the first of them dim: so many columns to the left, the others to the right.

    Args:
        least: how wide each of the others is at least.
    """
    table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
    for at in range(len(rows[0])):
        table.add_column(
            justify="left" if at < left else "right",
            min_width=least if at >= left else 0,
            no_wrap=True,
        )
    for at, row in enumerate(rows):
        table.add_row(*row, style="" if at else "dim")
    return lines_from(table, 10_000)


class HeadTable:
    """The worst error of each head of a run: alike heads share a column, and alike intermediates a row."""

    def __init__(self, report: Report, run: Run, *, each: bool = False) -> None:
        """
        Args:
            each: whether each intermediate has a row of its own.
        """
        self._run = run
        self.heads = report.case.heads if report.case else max(one.count for one in run.compares)
        self.rows: list[tuple[_States, list[Intermediate]]] = []
        """Intermediates by their status in each query head, in the order of the dataflow."""
        known: dict[_States, list[Intermediate]] = {}
        for intermediate in run.compares:
            states = tuple(self._status(intermediate, head) for head in range(self.heads))
            if each or states not in known:
                known[states] = []
                self.rows.append((states, known[states]))
            known[states].append(intermediate)

    def _of_head(self, intermediate: Intermediate, head: int) -> list[Head]:
        """What an intermediate has of a query head, in every batch: the key head of dK and dV."""
        own = head // (self.heads // intermediate.count)
        return [one for one in intermediate.heads if one.head == own]

    def _status(self, intermediate: Intermediate, head: int) -> str:
        return _worst({one.status for one in self._of_head(intermediate, head)})

    def columns(self, most: int) -> list[list[int]]:
        """Heads that are alike in every row; where these are more groups than columns, the last ones share one."""
        groups: dict[_States, list[int]] = {}
        for head in range(self.heads):
            groups.setdefault(tuple(states[head] for states, _ in self.rows), []).append(head)
        found = list(groups.values())
        if len(found) <= most:
            return found
        return [*found[: most - 1], sorted(sum(found[most - 1 :], []))]

    def cell(self, states: _States, alike: _Alike, column: Sequence[int]) -> tuple[str, float]:
        """The worst status of a row in some heads, and its worst error."""
        ratios = [part.ratio for one in alike for at in column for part in self._of_head(one, at)]
        worst = max(ratios, key=lambda by: (math.isnan(by), by))  # NaN is worse than any
        return _worst({states[at] for at in column}), worst

    def title(self, column: Sequence[int]) -> str:
        """`0`, `1-3`, `0, 2, 4 ...`, `all`."""
        if len(column) == self.heads > 1:
            return "all"
        ranges = spans(column)
        return in_words(ranges[:_RANGES]) + (" ..." if len(ranges) > _RANGES else "")

    def label(self, alike: _Alike) -> str:
        """`P dP delta in dq_kernel`: their names, each with its kernel where it is another's row in another kernel."""
        names: dict[str, None] = {}
        elsewhere = {one.name for one in self._run.compares if one not in alike}
        for intermediate in alike:
            is_alone = intermediate.name not in elsewhere
            names[intermediate.name if is_alone else intermediate.title] = None
        return _cut_names(list(names), len(alike))


def _worst(statuses: set[str]) -> str:
    return next(known for known in (MISMATCH, INHERITED, MATCH) if known in statuses)


def _cut_names(names: list[str], count: int) -> str:
    between = ", " if any(" " in name for name in names) else " "
    label = between.join(names)
    while len(label) > _LONGEST and len(names) > 1:
        names.pop()
        label = f"{between.join(names)} and {count - len(names)} more"
    return label


def head_table(
    report: Report, run: Run, width: int, marks: Signs, *, each: bool = False
) -> list[Text]:
    """A header, then a row for intermediates that are wrong in the same heads: as many columns as there is room for."""
    table = HeadTable(report, run, each=each)
    for most in range(max(1, (width - len(_TITLE)) // (_CELL + 2)), 0, -1):
        columns = table.columns(most)
        rows: list[list[str | Text]] = [[_TITLE, *map(table.title, columns)]]
        for states, alike in table.rows:
            cells = (table.cell(states, alike, column) for column in columns)
            rows.append([table.label(alike), *(head_cell(*cell, marks) for cell in cells)])
        lines = grid(rows, least=_CELL)
        if lines[0].cell_len <= width:
            break
    return lines


def head_cell(status: str, worst: float, marks: Signs) -> Text:
    """`✗51×`."""
    sign = {MISMATCH: marks.mismatch, INHERITED: marks.inherited}.get(status, "")
    return Text(f"{sign}{ratio(worst)}{marks.times}", STYLES.get(status, ""))


def legend(marks: Signs) -> Text:
    """What the marks in the table mean."""
    words = f"  {marks.mismatch} wrong by itself   {marks.inherited} wrong, but right given its wrong inputs"
    return Text(words, "dim")


def numbers_around(place: Element, width: int, *, one_row: bool = False) -> list[Text]:
    """The numbers around an element, actual above expected, it in brackets; or those of its row alone."""
    around = place.window
    if around is None:
        return []
    here = place.row or 0, place.col or 0
    cells = max(1, min(len(around.cols), (width - 22) // 12))
    first = max(0, min(around.cols.index(here[1]) - cells // 2, len(around.cols) - cells))
    cols = around.cols[first : first + cells]
    rows: list[list[str | Text]] = [["", "", *(f"col {col}" for col in cols)]]
    for at, row in enumerate(around.rows):
        if one_row and row != here[0]:
            continue
        for label, numbers in (("actual", around.actual[at]), ("expected", around.expected[at])):
            written: list[str | Text] = [f"row {row}" if label == "actual" else "", label]
            for col, number in zip(cols, numbers[first : first + cells], strict=True):
                style = STYLES[MISMATCH] if label == "actual" else ""
                is_here = (row, col) == here
                written.append(Text(f"[{value(number)}]", style) if is_here else value(number))  # fmt: skip
            rows.append(written)
    return grid(rows, left=2, least=_CELL)


# Beyond each of these multiples of the budget another sign.
_OVER = (1.0, 10.0, 100.0, 1000.0)
_MOST_ROWS = 10


def close_up_head(view: CloseUp) -> Text:
    """The head, and how much of it is wrong."""
    state, style = f"all {plural(view.total, 'element')} within budget", "green"
    if view.mismatched:
        state = f"{view.mismatched:,} of {plural(view.total, 'element')} wrong"
        style = STYLES[MISMATCH]
    place = f"  {place_in_words(view)}: "
    return Text.assemble((view.element.title, "bold"), place, (state, style), f" ({view.layout})")


def close_up_map(view: CloseUp, width: int, signs: str) -> Iterator[Text]:
    """A title, a line for each row of tiles, and what the signs mean."""
    rows, cols = view.tile
    step = -(-len(view.map[0]) // max(1, width - 14))  # columns are pooled until they fit
    size = f"{rows} x {min(cols * step, view.shape[1])}"
    yield Text(f"  worst error of each {size} tile, rows downwards", "dim")
    for at, line in enumerate(view.map):
        text = Text(f"  row {(view.lines[at] if view.lines else at) * rows:<6}")
        for start in range(0, len(line), step):
            part = [cell for cell in line[start : start + step] if cell is not None]
            level = sum(max(part) > least for least in _OVER) if part else 0
            text.append(signs[level] if part else " ", STYLES[MISMATCH] if level else "")
        yield text
    words = ("within budget", "over it", "over 10x", "over 100x", "over 1000x")
    pairs = zip(signs, words, strict=True)
    yield Text("  " + "   ".join(f"{sign} {word}" for sign, word in pairs), "dim")


def close_up_rows(view: CloseUp) -> Iterator[Text]:
    """Which rows are wrong, and the first of them with the worst element of each."""
    if view.mismatched:
        wrong = in_words(spans(row.row for row in view.rows))
        yield Text(f"  wrong rows: {wrong} ({len(view.rows)} of {view.shape[0]})")
    rows: list[list[str]] = [["row", "wrong", "worst col", "actual", "expected", "ratio"]]
    for row in view.rows[:_MOST_ROWS]:
        times = ratio(float("inf") if row.ratio is None else row.ratio)
        numbers = map(str, (row.row, row.mismatched, row.col))
        rows.append([*numbers, value(row.actual), value(row.expected), f"{times}x"])
    yield from grid(rows, left=0, least=5)
    if len(view.rows) > _MOST_ROWS:
        yield Text(f"  {len(view.rows) - _MOST_ROWS} more wrong rows", "dim")


def close_up_lines(view: CloseUp, width: int, signs: str) -> list[Text]:
    """All of it: the map of its tiles, its worst rows, the numbers around an element."""
    lines = [close_up_head(view), *close_up_map(view, width, signs), *close_up_rows(view)]
    return [*lines, *numbers_around(view.element, width)]
