"""One intermediate of one head close up: every element's verdict, pooled over tiles and by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from msgspec import structs
from torch import Tensor

from ..model.case import Case
from ..model.failures import UsageFailure
from ..model.intermediates import slots
from ..model.layout_run import CloseUp, CloseUpRow
from ..model.number import Number
from ..reference import Tile
from ..reference.attention import BY_KEY, BY_ROW, MATRICES
from .block import block_at
from .compare import allowed_on, judge, judge_whole, tile_size
from .evidence import MeasuredRun, ProbeResult
from .locate import locate_at
from .tally import Judgement, least_telling, tile_of

# Of a map and its rows together; what has more is not kept in a report: 100 kB of JSON each.
MOST_CELLS = 2048


def close_up_of(probed: ProbeResult, name: str, at: tuple[int, int] | None) -> CloseUp:
    """An intermediate in the first layout in which it is wrong, or is at all.

    Raises:
        UsageFailure: the target did not expose it, or there is no such batch or head.
    """
    having = [(run, found) for run, found in probed.measured if name in found.comparison.findings]
    wrong = [(run, found) for run, found in having if found.comparison.findings[name].mismatched]
    run, _ = (wrong or having or probed.measured)[0]
    row, measured = run.row_of(name), run.holding(name) or run.shown
    assert measured is not None
    view = close_up(probed.case, run.layout, measured, name, at)
    return (
        structs.replace(view, element=structs.replace(view.element, kernel=row.kernel))
        if row
        else view
    )


def kept_close_ups(probed: ProbeResult) -> Iterator[CloseUp]:
    """What a report keeps of each intermediate of a mismatch, unless it is large."""
    names = dict.fromkeys(
        name for _, found in probed.measured for name in found.comparison.findings
    )
    for name in names if probed.failing else ():
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
    finding = measured.comparison.findings.get(name)
    if finding is None:
        shown = ", ".join(measured.comparison.findings)
        raise UsageFailure(
            f"diff {name}: the target does not expose {name}", f"it exposes {shown}"
        )
    (n_batch, n_heads), first_wrong = finding.ratio.shape, finding.first or finding.first_wrong
    if at is not None and not (0 <= at[0] < n_batch and 0 <= at[1] < n_heads):
        has = f"{name} has batches 0 to {n_batch - 1} and heads 0 to {n_heads - 1}"
        raise UsageFailure(f"--at {at[0]},{at[1]}: {has}")
    worst = divmod(int(finding.ratio.argmax()), n_heads)
    batch, head = at or (
        (first_wrong.batch or 0, first_wrong.head or 0) if first_wrong else worst
    )
    judged, masked = whole_head(case, measured, name, batch, head)
    ratio, (n_rows, n_cols) = judged.ratio, judged.right.shape
    tile, first = tile_of(case, finding.axes, n_cols), _first(ratio, judged.right)
    if first_wrong and (first_wrong.batch or 0, first_wrong.head or 0) == (batch, head):
        first = first_wrong.row or 0, first_wrong.col or 0
    place, budget = (batch, head, *first), float(judged.bound[first])
    element = locate_at(
        case, measured.x, measured.trace, measured.comparison, name, place, budget
    )
    return CloseUp(
        layout=layout,
        intermediate=name,
        batch=batch if finding.axes[0] == "b" else None,
        head=head,
        mismatched=int((~judged.right).sum()),
        total=ratio.numel(),
        shape=(n_rows, n_cols),
        tile=tile,
        map=_pooled(ratio.masked_fill(masked & judged.right, float("nan")), tile),
        rows=_rows(judged, ratio),
        element=element,
    )


def whole_head(
    case: Case, measured: MeasuredRun, name: str, batch: int, head: int
) -> tuple[Judgement, Tensor]:
    """One head judged, and where a mask covers it, each [R, C]."""
    comparison = measured.comparison
    if name not in BY_ROW:
        index = head if comparison.findings[name].axes[0] not in "b1" else (batch, head)
        if (
            comparison.by_block is not None and name in BY_KEY
        ):  # of a large case its block alone is computed
            block = comparison.by_block(block_at(batch, head, case.heads // case.kv_heads))
            came = measured.trace.values[name][batch, head]
            judged = judge_whole(came, block.expected[name][0, 0], block.bounds[name][0, 0])
            return judged, torch.zeros_like(judged.right)
        parts = [part[index] for part in comparison.judged(measured.trace, name)]
        whole = Judgement(
            *(part.reshape(part.shape[0] if part.dim() else 1, -1) for part in parts)
        )
        return whole, torch.zeros_like(whole.right)
    _, rows = tile_size(case)
    pieces = []
    for first in range(0, case.seqlen_q, rows):
        tile = Tile(batch, slice(head, head + 1), slice(first, min(first + rows, case.seqlen_q)))
        values = comparison.values(measured.x, tile)
        budget = allowed_on(measured.x, tile, values, comparison.precision, comparison.recovery)
        if name in comparison.bounds:  # wider than the budget where a sum proved to be coarser
            known = comparison.bounds[name][tile.batch, tile.heads, tile.rows]
            budget = replace(budget, rows={**budget.rows, name: known})
        judged = judge(
            measured.trace.values[name][tile.batch, tile.heads, tile.rows], values, budget, name
        )
        of_matrix = judged.right.dim() == 3 and name in MATRICES
        masked = ~values["valid"] if of_matrix else torch.zeros_like(judged.right)
        pieces.append([part[0].reshape(part.shape[1], -1) for part in (*judged, masked)])
    *whole_parts, masked = (torch.cat(part) for part in zip(*pieces, strict=True))
    return Judgement(*whole_parts), masked


def _pooled(ratio: Tensor, tile: tuple[int, int]) -> tuple[tuple[Number | None, ...], ...]:
    """The maximum over each cell, None only where every entry is NaN."""
    filled, cols = ratio.nan_to_num(-1.0, posinf=float("inf")), -(-ratio.shape[1] // tile[1])
    by_row = filled.new_full((len(ratio), cols * tile[1]), -1.0)
    by_row[:, : ratio.shape[1]] = filled
    by_row = by_row.reshape(len(ratio), cols, tile[1]).amax(2)
    pooled = torch.stack([part.amax(0) for part in by_row.split(tile[0])])
    return tuple(
        tuple(None if cell < 0 else Number(cell) for cell in row) for row in pooled.tolist()
    )


def _rows(judged: Judgement, ratio: Tensor) -> tuple[CloseUpRow, ...]:
    wrong = (~judged.right).sum(1)
    chosen = wrong.nonzero().flatten().tolist() or [int(ratio.amax(1).argmax())]
    cols = ratio.argmax(1).tolist()
    return tuple(
        CloseUpRow(
            row=row,
            mismatched=int(wrong[row]),
            col=col,
            actual=Number(judged.actual[row, col]),
            expected=Number(judged.expected[row, col]),
            ratio=Number(ratio[row, col]),
        )
        for row, col in ((row, cols[row]) for row in chosen)
    )


def _first(ratio: Tensor, right: Tensor) -> tuple[int, int]:
    """The first element that is wrong by the order of the worst; the worst where none is wrong."""
    least = least_telling(float(ratio.masked_fill(ratio.isinf(), 0.0).max()), float(ratio.max()))
    wrong = (~right & (ratio >= least)).flatten().nonzero()
    return divmod(int(wrong[0]) if len(wrong) else int(ratio.argmax()), ratio.shape[1])
