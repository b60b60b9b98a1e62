"""A look inside a black box: its intermediates recovered, judged, and what their disagreements say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..budgets.roundings import rounding_shift
from ..cases.case import Case
from ..judging.compare import allowed_on, attention_of, tile_size
from ..reference import Attention, Tile, evaluate, tiles
from ..running.trace import Trace
from ..verdict import Inside, Measured
from .onehot import ZERO_KEYS
from .recover import Answer, Recovered, recover, with_matrices
from .recovery import Recovery, quotient_error, slope_of
from .rereading import reread_do

if TYPE_CHECKING:
    from torch import Tensor

Assigned = tuple[tuple[str, str], ...]
Measure = Callable[[Mapping[str, "Tensor"], Trace, "Recovery | None"], Measured]
"""Compares a trace with the reference on the values that it came of."""


@dataclass(frozen=True)
class Examiner:
    """How a black box is asked and judged, and what one ordinary run of it gave."""

    case: Case
    answer: Callable[[Assigned], Answer]
    """What runs the target, given a layout."""
    measure: Measure
    own: Measured
    """The ordinary run under the layout examined."""
    tensors: Mapping[str, Tensor]
    """Its inputs as they lay in memory."""


def look_inside(examiner: Examiner, values: Mapping[str, Tensor], assigned: Assigned) -> Inside:
    """Recovers what a target does not expose under one layout, judges it, and says which kernel is at fault."""
    recovered = recover(examiner.case, values, examiner.answer(assigned))
    recovered, of_p = _p_without_do(examiner, values, assigned, recovered)
    recovered, of_ds = _either_ds(examiner, recovered)
    measured = examiner.measure(recovered.values, recovered.trace, recovered.recovery)
    measured, of_dp = _inseparable(examiner, recovered, measured)
    return Inside(measured, (*of_p, *of_ds, *of_dp, *_of_shape(examiner.case, measured)))


def _is_wrong(examiner: Examiner, recovered: Recovered, name: str, tensor: Tensor) -> bool:
    """Whether one recovered intermediate is wrong, whatever the others are."""
    alone = Trace({name: tensor}, {name: "recovered"})
    return not examiner.measure(recovered.values, alone, recovered.recovery).comparison.matches


def _p_without_do(
    examiner: Examiner, values: Mapping[str, Tensor], assigned: Assigned, recovered: Recovered
) -> tuple[Recovered, list[str]]:
    """P once more where it came out wrong, in ways that no misread dO can spoil.

    P is read off dV = P^T dO. With dO contiguous and one probe a call, every head and batch is given the same one-hot
    rows, so that another head's or batch's dO does no harm; nor do other strides where all tensors are contiguous, but
    that counts only if a rereading of dO explains the dV that came.
    """
    if "P" not in recovered.trace.values or not _is_wrong(examiner, recovered, "P", recovered.trace.values["P"]):
        return recovered, []
    p = _right_p(examiner, values, (*assigned, ("do", "contiguous")), recovered)
    words = "dO is misread: P, seen through dV, is right once dO lies contiguous and the same in all heads"
    if p is None:
        own = examiner.own
        reading = reread_do(examiner.case, own.x, own.trace.values["dV"], examiner.tensors)
        p = _right_p(examiner, values, (), recovered) if reading else None
        words = reading.words if reading else ""
    if p is None:
        return recovered, []
    # What is read in dO's place must be the same in every probe: no one-hot rows, and no other neighbours.
    of_ds = recover(examiner.case, values, examiner.answer(assigned), one_by_one=True, with_p=False)
    return with_matrices(of_ds, examiner.case, {"P": p}), [words]


def _right_p(
    examiner: Examiner, values: Mapping[str, Tensor], assigned: Assigned, recovered: Recovered
) -> Tensor | None:
    """P from another layout, one probe a call; None where it is wrong there too."""
    p = recover(examiner.case, values, examiner.answer(assigned), one_by_one=True).trace.values["P"]
    return None if _is_wrong(examiner, recovered, "P", p) else p


def _either_ds(examiner: Examiner, recovered: Recovered) -> tuple[Recovered, list[str]]:
    """Of the two estimates of dS the right one, where they disagree, and which kernel that convicts.

    Where both are right, so is the P in them: one that is wrong as dV shows it is dV's own affair, and left out.
    """
    if recovered.by_dk is None:
        return recovered, []
    through = {"dQ": recovered.trace.values["dS"], "dK": recovered.by_dk}
    wrong = [name for name, ds in through.items() if _is_wrong(examiner, recovered, "dS", ds)]
    if not wrong:
        return _without_wrong_p(examiner, recovered)
    factor = _factor(examiner, recovered, through[wrong[0]])
    if len(wrong) == 2:
        return recovered, [f"dS is wrong as dQ shows it and as dK shows it{factor}"]
    right = "dK" if wrong == ["dQ"] else "dQ"
    found = with_matrices(recovered, examiner.case, {"dS": through[right]})
    return found, [f"the kernel of {wrong[0]} is at fault: its dS is wrong{factor}, that of {right}'s kernel is right"]


def _without_wrong_p(examiner: Examiner, recovered: Recovered) -> tuple[Recovered, list[str]]:
    p = recovered.trace.values.get("P")
    if p is None or not _is_wrong(examiner, recovered, "P", p):
        return recovered, []
    words = "what computes dV is at fault: P, seen through it, is wrong, and dS, seen through dQ and dK, is right"
    return replace(recovered, trace=_without(recovered.trace, ("P", "dP", "delta"))), [words]


def _without(trace: Trace, names: tuple[str, ...]) -> Trace:
    kept = {name: value for name, value in trace.values.items() if name not in names}
    return Trace(kept, {name: trace.sources[name] for name in kept})


def _factor(examiner: Examiner, recovered: Recovered, ds: Tensor) -> str:
    """By which one factor a recovered dS is off, in words; "" where there is no such factor."""
    x = attention_of(examiner.case, recovered.values)
    products = squares = own = 0.0
    for tile in _tiles(examiner.case, x):
        actual, expected = ds[tile.batch, tile.heads, tile.rows].double(), evaluate(x, tile)["dS"]
        products += float((actual * expected).sum())
        squares += float((expected**2).sum())
        own += float((actual**2).sum())
    factor = products / squares if squares else 0.0
    # What one factor leaves unexplained, as a share: rounding leaves a thousandth of it or less.
    unexplained = 1 - factor**2 * squares / own if own else 1.0
    return f" (off by the factor {factor:.4g} throughout)" if unexplained < 1e-3 and abs(factor - 1) > 1e-3 else ""


def _tiles(case: Case, x: Attention) -> Iterator[Tile]:
    heads, rows = tile_size(case)
    return tiles(x, heads=heads, rows=rows)


def _inseparable(examiner: Examiner, recovered: Recovered, measured: Measured) -> tuple[Measured, list[str]]:
    """Where dP or delta came out wrong: both left out again where the split of dS into them means nothing.

    So it is where dS is off by one factor throughout; and where the keys without a value, each of which shows its row's
    delta, differ about it: then what is wrong is neither delta nor dO.
    """
    findings = measured.comparison.findings
    if not any(name in findings and findings[name].mismatched for name in ("dP", "delta")):
        return measured, []
    if not _factor(examiner, recovered, recovered.trace.values["dS"]):
        if _one_delta_a_row(examiner.case, measured, recovered):
            return measured, []
        sentence = ["dP and delta cannot be told apart: what dS says of a row's delta differs from key to key"]
    else:
        sentence = []
    trace = _without(recovered.trace, ("dP", "delta"))
    return examiner.measure(recovered.values, trace, recovered.recovery), sentence


def _one_delta_a_row(case: Case, measured: Measured, recovered: Recovered) -> bool:
    x, values, precision = measured.x, recovered.trace.values, measured.comparison.precision
    for tile in _tiles(case, x):
        place = (tile.batch, tile.heads, tile.rows)
        expected = evaluate(x, tile)
        shift = rounding_shift(x, tile, expected, precision)
        rows = allowed_on(x, tile, expected, precision, shift, recovered.recovery).rows
        slope, seen = slope_of(x, tile), (expected["P"] > rows["P"])[..., ::ZERO_KEYS]
        quotients = values["dS"][place].double() / (values["P"][place].double() * slope)
        g = quotients[..., ::ZERO_KEYS].masked_fill(~seen, 0.0)
        allowed = quotient_error(expected, rows, slope)[..., ::ZERO_KEYS].masked_fill(~seen, 0.0)
        # Errors were bounded for the delta expected; they grow with the one that came.
        growth = 1 + g.abs().amax(-1, keepdim=True) / expected["delta"].abs()[..., None]
        delta = values["delta"][place].double()[..., None]
        if bool((seen & ((g + delta).abs() > 2 * growth * allowed)).any()):
            return False
    return True


def _of_shape(case: Case, measured: Measured) -> list[str]:
    """What the errors of P look like: another mask, or one factor a row."""
    finding = measured.comparison.findings.get("P")
    if finding is None or not finding.mismatched:
        return []
    leaked = hidden = 0
    by_row = True
    for tile in _tiles(case, measured.x):
        actual = measured.trace.values["P"][tile.batch, tile.heads, tile.rows].double()
        expected = evaluate(measured.x, tile)
        p, valid = expected["P"], expected["valid"].expand_as(actual)
        leaked += int((~valid & (actual != 0)).sum())
        hidden += int((valid & (actual == 0) & (p > 1e-3)).sum())
        factor = (actual * p).sum(-1, keepdim=True) / (p * p).sum(-1, keepdim=True).clamp(min=1e-300)
        by_row &= bool(((actual - factor * p).abs() <= 0.02 * factor * p.amax(-1, keepdim=True)).all())
    if leaked or hidden:
        return [f"the backward has another mask: P is not 0 at {leaked:,} masked entries, and is 0 at {hidden:,} seen"]
    return ["P is off by one factor a row: the LSE that the backward reads is not that row's"] if by_row else []
