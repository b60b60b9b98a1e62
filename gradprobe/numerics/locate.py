"""The first mismatch with the numbers around it; and one head close up, pooled over tiles and by row."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from msgspec import structs
from torch import Tensor
from torch.nn.functional import max_pool2d

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
from .finding import ElementIndex, Finding, Judgement, element_at, least_telling, tile_of

_AXES = ("batch", "head", "row", "col")


def locate(x: Attention, trace: Trace, comparison: Comparison) -> Element | None:
    """The first intermediate that is wrong by itself, at the element that tells; None where everything matches."""
    for finding in comparison.findings.values():
        if finding.status == MISMATCH and finding.first is not None:
            return _with_window(MeasuredRun(lambda: x, trace, comparison, None), finding.first)
    return None


def locate_at(
    measured: MeasuredRun, case: Case, name: str, at: ElementIndex, budget: float
) -> Element:
    """Any element of an intermediate, by its place."""
    element = _with_window(measured, element_at(case, name, at, 0.0, 0.0, budget))
    assert (window := element.window) is not None
    row, col = window.rows.index(at[2]), window.cols.index(at[3])
    numbers = {"actual": window.actual[row][col], "expected": window.expected[row][col]}
    return structs.replace(element, **numbers)


def _with_window(measured: MeasuredRun, element: Element) -> Element:
    """The element with whether a mask covers it, and the numbers of the rows and columns around it."""
    batch, head, row, col = (getattr(element, axis) or 0 for axis in _AXES)
    finding = measured.comparison.findings[element.intermediate]
    rows, cols = _around(row, finding.shape[2], 2), _around(col, finding.shape[3], 5)
    judged, covered = _judged(measured, finding, batch, head, slice(rows[0], rows[-1] + 1))
    actual, expected = (_numbers(of[:, list(cols)]) for of in judged[:2])
    masked = bool(covered[row - rows[0], col]) if finding.axes == "bhmn" else None
    window, largest = Window(rows, cols, actual, expected), Number(finding.largest[batch, head])
    return structs.replace(element, masked=masked, window=window, largest=largest)


def _around(at: int, size: int, width: int) -> tuple[int, ...]:
    first = max(0, min(at - width // 2, size - width))
    return tuple(range(first, min(first + width, size)))


def _numbers(tensor: Tensor) -> tuple[tuple[Number, ...], ...]:
    return tuple(tuple(map(Number, row)) for row in tensor.tolist())


def departure(case: Case, first: Element) -> str:
    """The formula that it departs from, the place, and both numbers."""
    row, formula = lookup(first.intermediate), first.intermediate
    if row is not None and (step := row.step(case.family)) is not None:
        formula += f" = {step.formula}"
    places = [(axis, getattr(first, axis)) for axis in _AXES]
    where = ", ".join(f"{axis} {at}" for axis, at in places if at is not None)
    return f"{formula}: at {where} it gives {first.actual:.6g}, the formula {first.expected:.6g}"


# Of a map and its rows together; what has more is not kept in a report: 100 kB of JSON each.
MOST_CELLS = 2048


def close_up_of(probed: ProbeResult, name: str, at: tuple[int, int] | None) -> CloseUp:
    """An intermediate in the first layout in which it is wrong, or is at all; raises UsageFailure as `close_up`."""
    having = [of for of in probed.measured if name in of[1].comparison.findings]
    wrong = [of for of in having if of[1].comparison.findings[name].mismatched]
    run, shown = (wrong or having or probed.measured)[0]
    view = close_up(probed.case, run.layout, run.holding(name) or shown, name, at)
    if (row := run.row_of(name)) is None:
        return view
    return structs.replace(view, element=structs.replace(view.element, kernel=row.kernel))


def kept_close_ups(probed: ProbeResult) -> Iterator[CloseUp]:
    """What a report keeps of each intermediate of a mismatch, unless it is large."""
    findings = [found.comparison.findings for _, found in probed.measured]
    for name in dict.fromkeys(name for of in findings for name in of) if probed.failing else ():
        case, axes = probed.case, probed.case.axes(name)
        rows, cols = (case.size(letter) if letter else 1 for letter in slots(axes)[2:])
        high, wide = tile_of(case, axes, cols)
        if -(-rows // high) * -(-cols // wide) + rows <= MOST_CELLS:
            yield close_up_of(probed, name, None)


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
    judged, masked = _judged(measured, finding, batch, head, slice(0, finding.shape[2]))
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


def _judged(
    measured: MeasuredRun, finding: Finding, batch: int, head: int, rows: slice
) -> tuple[Judgement, Tensor]:
    """Some rows of one head judged, and where a mask covers them, each [r, C]."""
    comparison, name = measured.comparison, finding.name
    if name in BY_ROW:
        return _by_tiles(measured, finding, batch, head, rows)
    if comparison.by_block is not None and name in BY_KEY:
        # Of a large case its block alone is computed.
        block, came = comparison.by_block(batch, head), measured.trace.values[name][batch, head]
        judged = judge_whole(came, block.expected[name][0, 0], block.bounds[name][0, 0])
    else:
        whole = comparison.judged(measured.trace, name).reshape(*finding.shape)
        judged = Judgement(*(part[batch, head] for part in whole))
    judged = Judgement(*(part[rows] for part in judged))
    return judged, torch.zeros_like(judged.right)


def _by_tiles(
    measured: MeasuredRun, finding: Finding, batch: int, head: int, rows: slice
) -> tuple[Judgement, Tensor]:
    comparison, name, pieces = measured.comparison, finding.name, []
    for first in range(rows.start, rows.stop, step := tile_size(finding.case)[1]):
        of_tile = slice(first, min(first + step, rows.stop))
        tile = Tile(batch, slice(head, head + 1), of_tile)
        at = (tile.batch, tile.heads, tile.rows)
        values = comparison.values(measured.x, tile)
        budget = allowed_on(measured.x, tile, values, comparison.precision, comparison.recovery)
        # Wider than the budget where a sum proved to be coarser.
        if comparison.by_block is None and name in comparison.bounds:
            budget = replace(budget, rows={**budget.rows, name: comparison.bounds[name][at]})
        judged = judge(measured.trace.values[name][at], values, budget, name)
        masked = ~values["valid"] if name in MATRICES else torch.zeros_like(judged.right)
        pieces.append([part[0].reshape(part.shape[1], -1) for part in (*judged, masked)])
    *parts, masked = (torch.cat(part) for part in zip(*pieces, strict=True))
    return Judgement(*parts), masked


def _pooled(ratio: Tensor, tile: tuple[int, int]) -> tuple[tuple[Number | None, ...], ...]:
    """The maximum over each cell, None only where every entry is NaN."""
    filled = ratio.nan_to_num(-1.0, posinf=float("inf"))
    cells = max_pool2d(filled[None], tile, ceil_mode=True)[0].tolist()
    return tuple(tuple(None if cell < 0 else Number(cell) for cell in row) for row in cells)


def _rows(judged: Judgement, ratio: Tensor) -> tuple[CloseUpRow, ...]:
    wrong, cols = (~judged.right).sum(1), ratio.argmax(1).tolist()
    rows = []
    for row in wrong.nonzero().flatten().tolist() or [int(ratio.amax(1).argmax())]:
        parts = {"actual": judged.actual, "expected": judged.expected, "ratio": ratio}
        numbers = {name: Number(part[row, cols[row]]) for name, part in parts.items()}
        rows.append(CloseUpRow(row=row, mismatched=int(wrong[row]), col=cols[row], **numbers))
    return tuple(rows)


def _telling(ratio: Tensor, right: Tensor) -> tuple[int, int]:
    """The first element that is wrong by the order of the worst; the worst where none is wrong."""
    least = least_telling(float(ratio.masked_fill(ratio.isinf(), 0.0).max()), float(ratio.max()))
    wrong = (~right & (ratio >= least)).flatten().nonzero()
    return divmod(int(wrong[0]) if len(wrong) else int(ratio.argmax()), ratio.shape[1])
