"""A look inside a black box: its intermediates recovered, judged, and what their disagreements say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..budgets.precision import LAMBDA
from ..cases.case import Case
from ..judging.compare import Comparison
from ..running.trace import Trace
from ..verdict import Inside, Measured
from .patterns import factor_in_words, is_one_delta_a_row, shape_in_words
from .recover import GRADIENTS, SUMS, Answer, Recovered, recover, with_matrices, with_sums
from .recovery import Recovery
from .rereading import reread_do, reread_for_dp

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
    measured = examiner.measure(recovered.values, recovered.trace, recovered.recovery)
    other = recovered.by_dk
    if measured.comparison.matches and (other is None or not _is_wrong(examiner, recovered, "dS", other)):
        return Inside(measured, _of_other_values(examiner))
    coarse = _coarse(examiner, recovered) if examiner.own.comparison.matches else []
    recovered, of_p = _p_without_do(examiner, values, assigned, recovered)
    recovered, of_ds = _either_ds(examiner, recovered)
    recovered = _with_sums(examiner, assigned, recovered)
    measured = examiner.measure(recovered.values, recovered.trace, recovered.recovery)
    if coarse and measured.comparison.matches:
        return Inside(measured, tuple(coarse))
    measured, of_dp = _inseparable(examiner, values, assigned, recovered, measured)
    return Inside(measured, (*of_p, *of_ds, *of_dp, *shape_in_words(examiner.case, measured)))


def _with_sums(examiner: Examiner, assigned: Assigned, recovered: Recovered) -> Recovered:
    if not set(SUMS) & examiner.own.trace.values.keys() - recovered.trace.values.keys():
        return recovered
    alone = examiner.answer(assigned)(examiner.case, recovered.values, recovered.values)
    return with_sums(recovered, examiner.case, alone)


def _of_other_values(examiner: Examiner) -> tuple[str, ...]:
    """What it says that the ordinary run is wrong and the one-hot problems are right."""
    findings = examiner.own.comparison.findings
    if not any(name in findings and findings[name].mismatched for name in GRADIENTS):
        return ()
    where = "in one-hot problems, whose tau is 0," if examiner.case.tau else "in one-hot problems"
    return (f"{where} nothing is wrong inside: what is wrong shows with other values only",)


def _coarse(examiner: Examiner, recovered: Recovered) -> list[str]:
    """Estimates out of their budgets by no more than a coarser arithmetic makes; none where one is out by more.

    Beside gradients that are right they convict no kernel.
    """
    seen = {("dS", through): ds for through, ds in _estimates(recovered).items()}
    if "P" in recovered.trace.values:
        seen["P", "dV"] = recovered.trace.values["P"]
    worst = {key: _ratio(examiner, recovered, key[0], tensor) for key, tensor in seen.items()}
    if max(worst.values(), default=0.0) > LAMBDA:
        return []
    return [
        f"{name}, seen through {through}, errs by {ratio:.3g}x what is allowed, and what it feeds is right: "
        "rather a coarser arithmetic than a wrong kernel"
        for (name, through), ratio in worst.items() if ratio > 1
    ]  # fmt: skip


def _ratio(examiner: Examiner, recovered: Recovered, name: str, tensor: Tensor) -> float:
    """The worst error of one recovered intermediate as a multiple of its budget, whatever the others are."""
    return float(_alone(examiner, recovered, name, tensor).findings[name].ratio.max())


def _is_wrong(examiner: Examiner, recovered: Recovered, name: str, tensor: Tensor) -> bool:
    return not _alone(examiner, recovered, name, tensor).matches


def _alone(examiner: Examiner, recovered: Recovered, name: str, tensor: Tensor) -> Comparison:
    trace = Trace({name: tensor}, {name: "recovered"})
    return examiner.measure(recovered.values, trace, recovered.recovery).comparison


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
        if reading is None:
            return recovered, []
        p, words = _right_p(examiner, values, (), recovered), reading.words
    if p is None:  # several query heads share the dV that would show each one's P
        return replace(recovered, trace=_without(recovered.trace, ("P", "dP", "delta"))), [words]
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
    factor = factor_in_words(examiner.case, recovered, through[wrong[0]]) if wrong else ""
    words = _of_kernels(list(through), wrong, factor, _wrong_as_a_whole(examiner.own))
    words += _of_dp(examiner, wrong[0]) if wrong and not factor else []
    if len(wrong) == 1 and len(through) == 2:
        chosen = "dK" if odd_p or wrong == ["dQ"] else "dQ"
        recovered = with_matrices(recovered, examiner.case, {"dS": through[chosen]})
    if odd_p and "dK" not in wrong and len(wrong) < len(through):
        recovered = replace(recovered, trace=_without(recovered.trace, ("P", "dP", "delta")))
        words.append(
            f"what computes dV is at fault: it alone shows a wrong P, while dS is right in {_right(through, wrong)}"
        )
    return recovered, words


def _of_dp(examiner: Examiner, name: str) -> list[str]:
    """Which misreading of dO or V in dP a wrong gradient of the ordinary run comes of."""
    own = examiner.own
    if name not in own.trace.values or own.matches:
        return []
    reading = reread_for_dp(examiner.case, own.x, name, own.trace.values[name], examiner.tensors)
    return [reading.words] if reading else []


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
    if not factor_in_words(examiner.case, recovered, recovered.trace.values["dS"]):
        if is_one_delta_a_row(examiner.case, measured, recovered):
            return measured, []
        # A delta made of misread dO is another in every probe, unless they all have the same dO.
        again = _with_one_do(examiner, values, assigned, recovered)
        measured_again = examiner.measure(again.values, again.trace, again.recovery)
        if is_one_delta_a_row(examiner.case, measured_again, again):
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
    return _with_sums(examiner, assigned, with_matrices(again, examiner.case, found))
