"""Comparison -> the first mismatch: where it is, whether a mask covers it, and the numbers around it."""

from __future__ import annotations

from msgspec.structs import replace
from torch import Tensor

from ..model.case import Case
from ..model.intermediates import lookup
from ..model.layout_run import MISMATCH, Element, Window
from ..model.number import Number
from ..reference import Attention, Tile
from ..reference.attention import BY_KEY, BY_ROW
from ..runtime.run import Trace
from .block import block_at
from .compare import Comparison
from .tally import ElementIndex, element_at


def locate(x: Attention, trace: Trace, comparison: Comparison) -> Element | None:
    """The first intermediate that is wrong by itself, at the element that tells; None where everything matches."""
    for finding in comparison.findings.values():
        if finding.status == MISMATCH and finding.first is not None:
            return _with_window(x, trace, comparison, finding.first)
    return None


def locate_at(
    case: Case,
    x: Attention,
    trace: Trace,
    comparison: Comparison,
    name: str,
    at: ElementIndex,
    budget: float,
) -> Element:
    """Any element of an intermediate, by its place."""
    element = _with_window(x, trace, comparison, element_at(case, name, at, 0.0, 0.0, budget))
    assert element.window is not None
    row, col = element.window.rows.index(at[2]), element.window.cols.index(at[3])
    return replace(
        element,
        actual=element.window.actual[row][col],
        expected=element.window.expected[row][col],
    )


def _with_window(x: Attention, trace: Trace, comparison: Comparison, element: Element) -> Element:
    """The element with whether a mask covers it, and the numbers of the rows and columns around it."""
    name, batch, head = element.intermediate, element.batch or 0, element.head or 0
    actual, finding = _matrix(trace.values[name], element), comparison.findings[name]
    rows = _around(element.row or 0, actual.shape[0], 2)
    cols = _around(element.col or 0, actual.shape[1], 5)
    tile = Tile(batch, slice(head, head + 1), slice(rows[0], rows[-1] + 1))
    if name in BY_ROW:
        expected = comparison.values(x, tile)[name].reshape(len(rows), -1)
    else:
        expected = _expected(x, comparison, element)[list(rows)]
    masked = None
    if finding.axes == "bhmn":
        masked = not bool(x.valid(tile)[0, rows.index(element.row or 0), element.col or 0])
    shown = (actual[list(rows)].double(), expected)
    window = Window(rows, cols, *(_numbers(of[:, list(cols)]) for of in shown))
    largest = Number(finding.largest[batch, head])
    return replace(element, masked=masked, window=window, largest=largest)


def _expected(x: Attention, comparison: Comparison, element: Element) -> Tensor:
    """[R, C] of what is summed over rows; of a large case, its block's alone is computed."""
    if comparison.by_block is None or element.intermediate not in BY_KEY:
        return _matrix(comparison.expected[element.intermediate], element)
    block = block_at(element.batch or 0, element.head or 0, x.n_heads // x.k.shape[1])
    return comparison.by_block(block).expected[element.intermediate][0, 0]


def _matrix(tensor: Tensor, element: Element) -> Tensor:
    """[R, C] of the element's batch and head, with 1 for an axis that is not there."""
    if tensor.dim() == 4:
        return tensor[element.batch or 0, element.head]
    place = element.head if element.batch is None else (element.batch, element.head)
    return tensor[place].reshape(-1, 1)


def _around(at: int, size: int, width: int) -> tuple[int, ...]:
    first = max(0, min(at - width // 2, size - width))
    return tuple(range(first, min(first + width, size)))


def _numbers(tensor: Tensor) -> tuple[tuple[Number, ...], ...]:
    return tuple(tuple(map(Number, row)) for row in tensor.tolist())


def departure(case: Case, first: Element) -> str:
    """The formula that it departs from, the place, and both numbers."""
    row = lookup(first.intermediate)
    step = row.step(case.family) if row is not None else None
    places = ((axis, getattr(first, axis)) for axis in ("batch", "head", "row", "col"))
    where = ", ".join(f"{axis} {at}" for axis, at in places if at is not None)
    formula = f"{first.intermediate} = {step.formula}" if step is not None else first.intermediate
    return f"{formula}: at {where} it gives {first.actual:.6g}, the formula {first.expected:.6g}"
