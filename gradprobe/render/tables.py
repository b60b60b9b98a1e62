"""Tables: the errors of heads, the numbers around an element, one intermediate close up."""

import math
import textwrap
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

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
from .notation import (
    INHERITED_SIGN,
    STYLES,
    TILE_SIGNS,
    TIMES,
    WRONG_SIGN,
    group,
    place_in_words,
    value,
)
from .rows import CellGrid, ReportBlock, TextLine, Words

_TITLE = "worst error / allowed, by head"
_CELL, _LONGEST = 8, 40
# Ranges of heads in the title of a column.
_RANGES = 3


@dataclass
class HeadTable:
    """Heads that are alike share a column, and alike intermediates a row."""

    report: Report
    run: Run
    each: bool = False
    parts: dict[str, list[list[Head]]] = field(default_factory=dict)
    """By title, of each query head in every batch."""
    states: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case, compares = self.report.case, self.run.compares
        heads = case.heads if case else max(one.count for one in compares)
        for intermediate in compares:
            parts: list[list[Head]] = [[] for _ in range(heads)]
            shared = heads // intermediate.count
            for head in intermediate.heads:
                for at in range(head.head * shared, (head.head + 1) * shared):
                    parts[at].append(head)
            self.parts[intermediate.title] = parts
            self.states[intermediate.title] = tuple(map(_worst, parts))

    def lines(self, width: int) -> Sequence[Text]:
        for most in range(max(1, (width - len(_TITLE)) // (_CELL + 2)), 0, -1):
            lines = self.grid(most).lines(width)
            if lines[0].cell_len <= width:
                break
        return lines

    def grid(self, most: int) -> CellGrid:
        alike: dict[object, list[Intermediate]] = {}
        for one in self.run.compares:
            alike.setdefault(one.title if self.each else self.states[one.title], []).append(one)
        columns = self._columns(most)
        rows: list[list[str | Text]] = [[_TITLE, *map(self._title, columns)]]
        for those in alike.values():
            rows.append([self._label(those), *(self._cell(those, column) for column in columns)])
        return CellGrid(rows, least=_CELL)

    def _columns(self, most: int) -> list[list[int]]:
        """Of more groups than columns the last ones share one."""
        states = list(zip(*self.states.values(), strict=True))
        found = list(group(range(len(states)), states.__getitem__).values())
        if len(found) > most:
            found[most - 1 :] = [sorted(sum(found[most - 1 :], []))]
        return found

    def _cell(self, alike: Sequence[Intermediate], column: Sequence[int]) -> Text:
        parts = [part for one in alike for at in column for part in self.parts[one.title][at]]
        ratios = (math.inf if math.isnan(part.ratio) else part.ratio for part in parts)
        worst, status = max(ratios), _worst(parts)
        sign = {MISMATCH: WRONG_SIGN, INHERITED: INHERITED_SIGN}.get(status, "")
        return Text(f"{sign}{ratio(worst)}{TIMES}", STYLES.get(status, ""))

    def _title(self, column: Sequence[int]) -> str:
        if len(column) == len(next(iter(self.states.values()))) > 1:
            return "all"
        ranges = spans(column)
        return in_words(ranges[:_RANGES]) + (" ..." if len(ranges) > _RANGES else "")

    def _label(self, alike: Sequence[Intermediate]) -> str:
        elsewhere = [one.name for one in self.run.compares if one not in alike]
        names = dict.fromkeys(one.title if one.name in elsewhere else one.name for one in alike)
        between = ", " if " " in "".join(names) else " "
        return textwrap.shorten(between.join(names), _LONGEST, placeholder=" ...")


def _worst(parts: Iterable[Head]) -> str:
    return min((part.status for part in parts), key=(MISMATCH, INHERITED, MATCH).index)


_INHERITS = f"{INHERITED_SIGN} wrong, but right given its wrong inputs"
LEGEND = Words(f"{WRONG_SIGN} wrong by itself   {_INHERITS}", "", "dim")


def numbers_around(
    place: Element | None, width: int, *, one_row: bool = False
) -> Iterator[ReportBlock]:
    if place is None or (around := place.window) is None:
        return
    row, col = place.row or 0, place.col or 0
    cells = max(1, min(len(around.cols), (width - 22) // 12))
    first = max(0, min(around.cols.index(col) - cells // 2, len(around.cols) - cells))
    shown = slice(first, first + cells)
    rows: list[list[str | Text]] = [["", "", *map("col {}".format, around.cols[shown])]]
    for at, actual, expected in zip(around.rows, around.actual, around.expected, strict=True):
        if one_row and at != row:
            continue
        above: list[str | Text] = [f"row {at}", "actual", *map(value, actual[shown])]
        below: list[str | Text] = ["", "expected", *map(value, expected[shown])]
        if at == row:
            here = 2 + around.cols[shown].index(col)
            above[here] = Text(f"[{above[here]}]", STYLES[MISMATCH])
            below[here] = f"[{below[here]}]"
        rows += [above, below]
    yield CellGrid(rows, left=2, least=_CELL)


# Beyond each of these multiples of the budget another sign.
_OVER = (1.0, 10.0, 100.0, 1000.0)
_MOST_ROWS = 10


def close_up_head(view: CloseUp) -> TextLine:
    state, style = f"all {plural(view.total, 'element')} within budget", "green"
    if view.mismatched:
        state = f"{view.mismatched:,} of {plural(view.total, 'element')} wrong"
        style = STYLES[MISMATCH]
    parts = (view.element.title, "bold"), f"  {place_in_words(view)}: ", (state, style)
    return TextLine(Text.assemble(*parts, f" ({view.layout})"))


def close_up_map(view: CloseUp, width: int) -> Iterator[TextLine]:
    rows, cols = view.tile
    step = -(-len(view.map[0]) // max(1, width - 14))
    size = f"{rows} x {min(cols * step, view.shape[1])}"
    yield TextLine(Text(f"  worst error of each {size} tile, rows downwards", "dim"))
    for at, line in enumerate(view.map):
        text = Text(f"  row {(view.lines[at] if view.lines else at) * rows:<6}")
        for start in range(0, len(line), step):
            part = [cell for cell in line[start : start + step] if cell is not None]
            level = bisect_left(_OVER, max(part)) if part else 0
            text.append(TILE_SIGNS[level] if part else " ", STYLES[MISMATCH] if level else "")
        yield TextLine(text)
    words = ("within budget", "over it", "over 10x", "over 100x", "over 1000x")
    meanings = "   ".join(map(" ".join, zip(TILE_SIGNS, words, strict=True)))
    yield TextLine(Text(f"  {meanings}", "dim"))


def close_up_rows(view: CloseUp) -> Iterator[ReportBlock]:
    if view.mismatched:
        wrong = in_words(spans(row.row for row in view.rows))
        yield TextLine(Text(f"  wrong rows: {wrong} ({len(view.rows)} of {view.shape[0]})"))
    rows = [["row", "wrong", "worst col", "actual", "expected", "ratio"]]
    for row in view.rows[:_MOST_ROWS]:
        times = ratio(float("inf") if row.ratio is None else row.ratio)
        numbers = map(str, (row.row, row.mismatched, row.col))
        rows.append([*numbers, value(row.actual), value(row.expected), f"{times}x"])
    yield CellGrid(rows, left=0, least=5)
    if len(view.rows) > _MOST_ROWS:
        yield TextLine(Text(f"  {len(view.rows) - _MOST_ROWS} more wrong rows", "dim"))


def close_up(view: CloseUp, width: int) -> Iterator[ReportBlock]:
    yield close_up_head(view)
    yield from close_up_map(view, width)
    yield from close_up_rows(view)
    yield from numbers_around(view.element, width)
