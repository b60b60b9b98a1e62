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
from ..spans import in_words, spans
from ..verdict import Inside, Measured
from .onehot import ZERO_KEYS
from .recover import Answer, Recovered, recover, with_matrices
from .recovery import Recovery, quotient_error, slope_of
from .rereading import reread_do

if TYPE_CHECKING:
    from torch import Tensor

# P that is no rounding error of 0.
_SEEN = 1e-3
# What an explanation of a wrong dS may leave of its squared error.
_UNEXPLAINED = 0.01

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
    measured = examiner.measure(recovered.values, recovered.trace, recovered.recovery)
    other = recovered.by_dk
    if measured.comparison.matches and (other is None or not _is_wrong(examiner, recovered, "dS", other)):
        return Inside(measured, ())
    recovered, of_p = _p_without_do(examiner, values, assigned, recovered)
    recovered, of_ds = _either_ds(examiner, recovered)
    measured = examiner.measure(recovered.values, recovered.trace, recovered.recovery)
    measured, of_dp = _inseparable(examiner, values, assigned, recovered, measured)
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
    """The dS to go on with, of the two that dQ and dK show; and which kernel is at fault where one is right.

    A right dS convicts dV alone of a wrong P, which is then left out; but if dK's is wrong too, that P and that dS are
    of one kernel and belong together.
    """
    through = _estimates(recovered)
    wrong = [name for name, ds in through.items() if _is_wrong(examiner, recovered, "dS", ds)]
    p = recovered.trace.values.get("P")
    odd_p = p is not None and bool(through) and _is_wrong(examiner, recovered, "P", p)
    how = _factor(examiner, recovered, through[wrong[0]]) if wrong else ""
    words = _of_kernels(list(through), wrong, how, _wrong_as_a_whole(examiner.own))
    if len(wrong) == 1 and len(through) == 2:
        chosen = "dK" if odd_p or wrong == ["dQ"] else "dQ"
        recovered = with_matrices(recovered, examiner.case, {"dS": through[chosen]})
    if odd_p and "dK" not in wrong and len(wrong) < len(through):
        recovered = replace(recovered, trace=_without(recovered.trace, ("P", "dP", "delta")))
        words.append(
            f"what computes dV is at fault: it alone shows a wrong P, while dS is right in {_right(through, wrong)}"
        )
    return recovered, words


def _estimates(recovered: Recovered) -> dict[str, Tensor]:
    """dS by the gradient that shows it."""
    values = recovered.trace.values
    if "dS" not in values:
        return {}
    first = "dQ" if "dQ" in values else "dK"
    return {first: values["dS"]} | ({} if recovered.by_dk is None else {"dK": recovered.by_dk})


def _right(through: Mapping[str, Tensor], wrong: list[str]) -> str:
    return " and ".join(name for name in through if name not in wrong)


def _wrong_as_a_whole(own: Measured) -> list[str]:
    return [name for name, finding in own.comparison.findings.items() if finding.mismatched]


def _of_kernels(seen: list[str], wrong: list[str], how: str, wrong_gradients: list[str]) -> list[str]:
    if not wrong:
        return []
    if len(wrong) == len(seen):
        return [f"dS is wrong in the kernel{'s' if len(wrong) > 1 else ''} of {' and '.join(wrong)}{how}"]
    right = next(name for name in seen if name not in wrong)
    if right in wrong_gradients:
        return [f"{wrong[0]} shows dS wrong{how}; {right}, which is wrong too, shows it right"]
    return [
        f"the kernel of {wrong[0]} is at fault: {wrong[0]} shows dS wrong{how}; dS in the kernel of {right} is right"
    ]


def _without(trace: Trace, names: tuple[str, ...]) -> Trace:
    kept = {name: value for name, value in trace.values.items() if name not in names}
    return Trace(kept, {name: trace.sources[name] for name in kept})


def _factor(examiner: Examiner, recovered: Recovered, ds: Tensor) -> str:
    """What one factor makes of a wrong dS, in words; "" where nothing of the kind explains it."""
    x = attention_of(examiner.case, recovered.values)
    # Sums of actual * expected and of expected^2, for dS and for dS before the softcap's derivative.
    sums = {"dS": [0.0, 0.0], "dT": [0.0, 0.0]}
    own = 0.0
    for tile in _tiles(examiner.case, x):
        actual, values = ds[tile.batch, tile.heads, tile.rows].double(), evaluate(x, tile)
        own += float((actual**2).sum())
        before = values["P"] * (values["dP"] - values["delta"][..., None])
        for name, expected in (("dS", values["dS"]), ("dT", before)):
            sums[name][0] += float((actual * expected).sum())
            sums[name][1] += float((expected**2).sum())
    if not 0.0 < own < float("inf"):
        return ", 0 throughout" if own == 0.0 else ""
    products, squares = sums["dS"]
    factor = products / squares if squares else 0.0
    # Of an error that one factor makes, only rounding is left once it is taken out.
    most = _UNEXPLAINED * (own - 2 * products + squares)
    if own - factor * products <= most:
        return f" by the factor {factor:.4g} throughout"
    of_dt = own - 2 * sums["dT"][0] + sums["dT"][1]
    return ", as without the softcap's derivative" if x.softcap is not None and of_dt <= most else ""


def _tiles(case: Case, x: Attention) -> Iterator[Tile]:
    heads, rows = tile_size(case)
    return tiles(x, heads=heads, rows=rows)


def _inseparable(
    examiner: Examiner, values: Mapping[str, Tensor], assigned: Assigned, recovered: Recovered, measured: Measured
) -> tuple[Measured, list[str]]:
    """Where dP or delta came out wrong: both left out again where the split of dS into them means nothing.

    So it is where dS as a whole is explained; and where the keys without a value, each of which shows its row's delta,
    differ about it: then what is wrong is neither delta nor dO.
    """
    findings = measured.comparison.findings
    if not any(name in findings and findings[name].mismatched for name in ("dP", "delta")):
        return measured, []
    sentence = []
    if not _factor(examiner, recovered, recovered.trace.values["dS"]):
        if _one_delta_a_row(examiner.case, measured, recovered):
            return measured, []
        # A delta made of misread dO is another in every probe, unless they all have the same dO.
        again = _with_one_do(examiner, values, assigned, recovered)
        measured_again = examiner.measure(again.values, again.trace, again.recovery)
        if _one_delta_a_row(examiner.case, measured_again, again):
            return measured_again, []
        if "P" not in findings or not findings["P"].mismatched:
            sentence = ["whether dS itself is wrong, or its dP or delta, these gradients do not tell"]
    trace = _without(recovered.trace, ("dP", "delta"))
    return examiner.measure(recovered.values, trace, recovered.recovery), sentence


def _with_one_do(
    examiner: Examiner, values: Mapping[str, Tensor], assigned: Assigned, recovered: Recovered
) -> Recovered:
    """dS once more, of probes that have one dO, beside the P known."""
    again = recover(examiner.case, values, examiner.answer(assigned), one_by_one=True, with_p=False)
    found = {"P": recovered.trace.values["P"]}
    if again.by_dk is not None and recovered.trace.values["dS"] is recovered.by_dk:
        found["dS"] = again.by_dk
    return with_matrices(again, examiner.case, found)


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
    """What the errors of P look like: rows that are lost, another mask, or one factor a row."""
    finding = measured.comparison.findings.get("P")
    if finding is None or not finding.mismatched:
        return []
    leaked = hidden = 0
    by_row, alike, scattered = True, True, False
    lost: set[int] = set()
    heads: set[int] = set()
    for tile in _tiles(case, measured.x):
        actual = measured.trace.values["P"][tile.batch, tile.heads, tile.rows].double()
        expected = evaluate(measured.x, tile)
        p, valid = expected["P"], expected["valid"].expand_as(actual)
        gone = (actual == 0).all(-1) & (p > _SEEN).any(-1)
        lost |= {tile.rows.start + row for row in gone.any(0).nonzero().flatten().tolist()}
        heads |= {tile.heads.start + head for head in gone.any(1).nonzero().flatten().tolist()}
        leaked += int((~valid & (actual != 0)).sum())
        missing = valid & (actual == 0) & (p > _SEEN)
        hidden += int(missing.sum())
        scattered |= bool((missing & ~gone[..., None]).any())
        by_row &= _one_factor_a_row(actual, p)
        alike &= _one_factor_a_row(actual * valid, p * (actual != 0))
    if alike and (leaked or scattered):
        counts = [f"{leaked:,} entries are seen that are masked"] if leaked else []
        counts += [f"{hidden:,} entries are masked that are seen"] if hidden else []
        return [f"the backward has another mask: {' and '.join(counts)}"]
    if lost and not (leaked or scattered):
        rows, of_heads = in_words(spans(sorted(lost)), 6), in_words(spans(sorted(heads)), 6)
        return [f"whole rows of P are 0 (rows {rows}, heads {of_heads}): they never reach dV"]
    return ["P is off by one factor a row: the LSE that the backward reads is not that row's"] if by_row else []


def _one_factor_a_row(actual: Tensor, p: Tensor) -> bool:
    factor = (actual * p).sum(-1, keepdim=True) / (p * p).sum(-1, keepdim=True).clamp(min=1e-300)
    return bool(((actual - factor * p).abs() <= 0.02 * factor * p.amax(-1, keepdim=True)).all())
