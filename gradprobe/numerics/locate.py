"""The first mismatch with the numbers around it; and one head close up, pooled over tiles and by row."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from msgspec import structs
from torch import Tensor

from ..model.case import Case
from ..model.failures import UsageFailure
from ..model.intermediates import lookup, slots
from ..model.layout_run import MISMATCH, CloseUp, CloseUpRow, Element, Window
from ..model.number import Number
from ..reference import Attention, Tile
from ..reference.attention import BY_KEY, BY_ROW, MATRICES
from ..runtime.run import Trace
from .compare import Comparison, allowed_on, judge, judge_whole, tile_size
from .evidence import MeasuredRun, ProbeResult
from .finding import ElementIndex, Judgement, element_at, least_telling, tile_of


def locate(x: Attention, trace: Trace, comparison: Comparison) -> Element | None:
    """The first intermediate that is wrong by itself, at the element that tells; None where everything matches."""
    for finding in comparison.findings.values():
        if finding.status == MISMATCH and finding.first is not None:
            return _with_window(x, trace, comparison, finding.first)
    return None


def locate_at(
    measured: MeasuredRun, case: Case, name: str, at: ElementIndex, budget: float
) -> Element:
    """Any element of an intermediate, by its place."""
    element = element_at(case, name, at, 0.0, 0.0, budget)
    element = _with_window(measured.x, measured.trace, measured.comparison, element)
    assert (window := element.window) is not None
    row, col = window.rows.index(at[2]), window.cols.index(at[3])
    actual, expected = window.actual[row][col], window.expected[row][col]
    return structs.replace(element, actual=actual, expected=expected)


def _with_window(
    x: Attention, trace: Trace, comparison: Comparison, element: Element
) -> Element:
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
    return structs.replace(element, masked=masked, window=window, largest=largest)


def _expected(x: Attention, comparison: Comparison, element: Element) -> Tensor:
    """[R, C] of what is summed over rows; of a large case, its block's alone is computed."""
    if comparison.by_block is None or element.intermediate not in BY_KEY:
        return _matrix(comparison.expected[element.intermediate], element)
    block = comparison.by_block(element.batch or 0, element.head or 0)
    return block.expected[element.intermediate][0, 0]


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
    axes = ("batch", "head", "row", "col")
    where = ", ".join(
        f"{axis} {at}" for axis in axes if (at := getattr(first, axis)) is not None
    )
    formula = (
        f"{first.intermediate} = {step.formula}" if step is not None else first.intermediate
    )
    return f"{formula}: at {where} it gives {first.actual:.6g}, the formula {first.expected:.6g}"


# Of a map and its rows together; what has more is not kept in a report: 100 kB of JSON each.
MOST_CELLS = 2048


def close_up_of(probed: ProbeResult, name: str, at: tuple[int, int] | None) -> CloseUp:
    """An intermediate in the first layout in which it is wrong, or is at all; raises UsageFailure as `close_up`."""
    having = [
        (run, found) for run, found in probed.measured if name in found.comparison.findings
    ]
    wrong = [(run, found) for run, found in having if found.comparison.findings[name].mismatched]
    run, shown = (wrong or having or probed.measured)[0]
    view = close_up(probed.case, run.layout, run.holding(name) or shown, name, at)
    if (row := run.row_of(name)) is None:
        return view
    return structs.replace(view, element=structs.replace(view.element, kernel=row.kernel))


def kept_close_ups(probed: ProbeResult) -> Iterator[CloseUp]:
    """What a report keeps of each intermediate of a mismatch, unless it is large."""
    findings = [found.comparison.findings for _, found in probed.measured]
    for name in dict.fromkeys(name for of in findings for name in of) if probed.failing else ():
        if _cells(probed.case, name) <= MOST_CELLS:
            yield close_up_of(probed, name, None)


def _cells(case: Case, name: str) -> int:
    """How many numbers its map and its rows have at most."""
    rows, cols = (case.size(letter) if letter else 1 for letter in slots(case.axes(name))[2:])
    tile = tile_of(case, case.axes(name), cols)
    return -(-rows // tile[0]) * -(-cols // tile[1]) + rows


def close_up(
    case: Case, layout: str, measured: MeasuredRun, name: str, at: tuple[int, int] | None
) -> CloseUp:
    """An intermediate of one head: of `at` (batch, head), else of its first wrong element, else of its worst.

    Raises:
        UsageFailure: the target did not expose it, or there is no such batch or head.
    """
    comparison = measured.comparison
    finding = comparison.findings.get(name)
    if finding is None:
        exposed = f"it exposes {', '.join(comparison.findings)}"
        raise UsageFailure(f"diff {name}: the target does not expose {name}", exposed)
    (n_batch, n_heads), first = finding.ratio.shape, finding.first or finding.first_wrong
    if at is not None and not (0 <= at[0] < n_batch and 0 <= at[1] < n_heads):
        has = f"{name} has batches 0 to {n_batch - 1} and heads 0 to {n_heads - 1}"
        raise UsageFailure(f"--at {at[0]},{at[1]}: {has}")
    of_first = (first.batch or 0, first.head or 0) if first else None
    batch, head = at or of_first or divmod(int(finding.ratio.argmax()), n_heads)
    judged, masked = _whole_head(case, measured, name, batch, head)
    ratio, tile = judged.ratio, tile_of(case, finding.axes, judged.right.shape[1])
    if first and of_first == (batch, head):
        row, col = first.row or 0, first.col or 0
    else:
        row, col = _telling(ratio, judged.right)
    place, budget = (batch, head, row, col), float(judged.bound[row, col])
    return CloseUp(
        layout=layout, intermediate=name, batch=batch if finding.axes[0] == "b" else None, head=head,
        mismatched=int((~judged.right).sum()), total=ratio.numel(), shape=(ratio.shape[0], ratio.shape[1]),
        tile=tile, map=_pooled(ratio.masked_fill(masked & judged.right, float("nan")), tile),
        rows=_rows(judged, ratio),
        element=locate_at(measured, case, name, place, budget),
    )  # fmt: skip


def _whole_head(
    case: Case, measured: MeasuredRun, name: str, batch: int, head: int
) -> tuple[Judgement, Tensor]:
    """One head judged, and where a mask covers it, each [R, C]."""
    comparison, came = measured.comparison, measured.trace.values[name]
    if name in BY_ROW:
        return _by_tiles(case, measured, name, batch, head)
    if comparison.by_block is not None and name in BY_KEY:
        # Of a large case its block alone is computed.
        block = comparison.by_block(batch, head)
        expected, bound = block.expected[name][0, 0], block.bounds[name][0, 0]
        judged = judge_whole(came[batch, head], expected, bound)
    else:
        index = (batch, head) if comparison.findings[name].axes[0] in "b1" else head
        parts = [part[index] for part in comparison.judged(measured.trace, name)]
        rows = parts[0].shape[0] if parts[0].dim() else 1
        judged = Judgement(*(part.reshape(rows, -1) for part in parts))
    return judged, torch.zeros_like(judged.right)


def _by_tiles(
    case: Case, measured: MeasuredRun, name: str, batch: int, head: int
) -> tuple[Judgement, Tensor]:
    comparison, (_, step), pieces = measured.comparison, tile_size(case), []
    for first in range(0, case.seqlen_q, step):
        tile = Tile(batch, slice(head, head + 1), slice(first, min(first + step, case.seqlen_q)))
        at = (tile.batch, tile.heads, tile.rows)
        values = comparison.values(measured.x, tile)
        budget = allowed_on(measured.x, tile, values, comparison.precision, comparison.recovery)
        if name in comparison.bounds:  # wider than the budget where a sum proved to be coarser
            rows = {**budget.rows, name: comparison.bounds[name][at]}
            budget = replace(budget, rows=rows)
        judged = judge(measured.trace.values[name][at], values, budget, name)
        masked = ~values["valid"] if name in MATRICES else torch.zeros_like(judged.right)
        pieces.append([part[0].reshape(part.shape[1], -1) for part in (*judged, masked)])
    *parts, masked = (torch.cat(part) for part in zip(*pieces, strict=True))
    return Judgement(*parts), masked


def _pooled(ratio: Tensor, tile: tuple[int, int]) -> tuple[tuple[Number | None, ...], ...]:
    """The maximum over each cell, None only where every entry is NaN."""
    filled = ratio.nan_to_num(-1.0, posinf=float("inf"))
    lines = []
    for band in filled.split(tile[0]):
        cells = [float(cell.max()) for cell in band.split(tile[1], 1)]
        lines.append(tuple(None if cell < 0 else Number(cell) for cell in cells))
    return tuple(lines)


def _rows(judged: Judgement, ratio: Tensor) -> tuple[CloseUpRow, ...]:
    wrong, cols = (~judged.right).sum(1), ratio.argmax(1).tolist()
    chosen = wrong.nonzero().flatten().tolist() or [int(ratio.amax(1).argmax())]
    rows = []
    for row in chosen:
        numbers = (part[row, cols[row]] for part in (judged.actual, judged.expected, ratio))
        actual, expected, times = map(Number, numbers)
        about = {"row": row, "mismatched": int(wrong[row]), "col": cols[row]}
        rows.append(CloseUpRow(**about, actual=actual, expected=expected, ratio=times))
    return tuple(rows)


def _telling(ratio: Tensor, right: Tensor) -> tuple[int, int]:
    """The first element that is wrong by the order of the worst; the worst where none is wrong."""
    least = least_telling(float(ratio.masked_fill(ratio.isinf(), 0.0).max()), float(ratio.max()))
    wrong = (~right & (ratio >= least)).flatten().nonzero()
    return divmod(int(wrong[0]) if len(wrong) else int(ratio.argmax()), ratio.shape[1])
