"""A look inside a black box: its intermediates recovered, judged, and what their disagreements say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from ...model.assignment import Assigned
from ...model.case import Case
from ...model.intermediates import MATRIX_OF
from ...model.layout_run import MISMATCH
from ...model.number import listed
from ...runtime.run import Trace
from ..evidence import BlackBoxEvidence, MeasuredRun
from .recover import (
    SUMS,
    ZERO,
    RecoveredValues,
    are_one_fault,
    factor_in_words,
    is_one_delta_a_row,
    recover,
    with_matrices,
    with_sums,
)
from .result_evidence import (
    QUOTIENTS,
    RIGHT,
    Measure,
    ResultEvidence,
    Scales,
    beside,
    inseparable,
    reread_do,
)
from .shapes import shape_in_words

_ONLY_HERE = (
    "with the case's own values all that is exported is right; in one-hot problems it is not"
)


@dataclass(frozen=True)
class Examiner:
    """A black box under one layout: how it is run and judged, and what its ordinary run gave."""

    case: Case
    values: Mapping[str, Tensor]
    assigned: Assigned
    run: Callable[[Assigned, Case, Mapping[str, Tensor], Mapping[str, Tensor]], Trace]
    """Runs the target, given a layout and what an `Answer` is given."""
    measure: Measure
    own: MeasuredRun
    """The ordinary run."""
    tensors: Callable[[], Mapping[str, Tensor]]
    """Gives its inputs as they lay in memory."""
    of_one_kernel: bool = False
    """Whether one kernel is known to make both dQ and dK."""
    may_read_lse: bool = True
    """Whether the target is given LSE, gives it, or launches kernels that may hand it on."""

    def recovered(
        self, assigned: Assigned | None = None, *, one_by_one: bool = False, with_p: bool = True
    ) -> RecoveredValues:
        """What the target's answers show, in its layout or another one."""
        assigned = self.assigned if assigned is None else assigned
        answer = partial(self.run, assigned)
        return recover(self.case, self.values, answer, one_by_one=one_by_one, with_p=with_p)

    def compared(self, recovered: RecoveredValues) -> MeasuredRun:
        """What was recovered, judged."""
        return self.measure(recovered.values, recovered.trace, recovered.recovery)


def look_inside(examiner: Examiner) -> BlackBoxEvidence:
    """Recovers what a target does not expose under one layout, judges it, and says which kernel is at fault."""
    recovered = examiner.recovered()
    measured = examiner.compared(recovered)
    scales = Scales(examiner.measure, examiner.own, examiner.values)
    evidence = scales.all(recovered, measured)
    words: list[str] = []
    if any(one.is_wrong for one in evidence):
        measured, words = _with_a_fault(examiner, recovered, scales, evidence)
    elif any(one.is_coarse or not one.is_reached for one in evidence):
        # What is wrong in the one-hot problems, if anything, is no more than a coarser arithmetic makes.
        recovered, unreached = _reached(examiner, _held_to_coarser(recovered, evidence), evidence)
        notes = {
            one.through: one.note for one in evidence if one.is_coarse and one.beside == RIGHT
        }
        measured, words = examiner.compared(recovered), [*notes.values(), *unreached]
    if inseparable(measured.trace, measured.comparison.findings):
        words.append("dP or delta is wrong: P and dS show their difference alone")
    return BlackBoxEvidence(measured, tuple(words), beside(examiner.own, measured))


def _with_a_fault(
    examiner: Examiner,
    recovered: RecoveredValues,
    scales: Scales,
    evidence: Sequence[ResultEvidence],
) -> tuple[MeasuredRun, list[str]]:
    """What the one-hot problems show of a fault, and which kernel has it."""
    words = [_ONLY_HERE] if examiner.own.comparison.matches else []
    recovered, of_p = _p_without_do(examiner, recovered, scales)
    # A P of another layout shows what is right; that dV is wrong was reached in this one.
    whole = {one.through: one.whole for one in evidence if one.name != one.through}
    evidence = [
        *(one for one in evidence if one.name == one.through),
        *scales.shown(recovered, whole),
    ]
    recovered, unreached = _reached(examiner, _held_to_coarser(recovered, evidence), evidence)
    recovered, of_ds = _either_ds(
        examiner, recovered, [one for one in evidence if one.is_reached]
    )
    recovered = _with_sums(examiner, recovered)
    measured, of_dp = _inseparable(examiner, recovered, examiner.compared(recovered))
    shapes = shape_in_words(recovered, measured, may_read_lse=examiner.may_read_lse)
    measured, of_one = _of_one_result(examiner, recovered, measured)
    return measured, [*words, *of_p, *(of_one or of_ds), *of_dp, *unreached, *shapes]


def _of_one_result(
    examiner: Examiner, recovered: RecoveredValues, measured: MeasuredRun
) -> tuple[MeasuredRun, list[str]]:
    """Without a P or dS that is wrong as one gradient alone shows it: that gradient's own sum may be what is wrong.

    A dS that is right but for its delta, one number a row, is no sum's doing.
    """
    name = next(
        (name for name, one in measured.comparison.findings.items() if one.status == MISMATCH), ""
    )
    through = [one for one in recovered.by if MATRIX_OF[one] == ("P" if name == "P" else "dS")]
    wrong = [one for one in recovered.by if examiner.own.comparison.findings[one].mismatched]
    if (
        name not in ("P", "dP", "dS")
        or measured.trace.sources[name] != "recovered"
        or through != wrong
        or through[1:]
    ):
        return measured, []
    (alone,) = wrong
    words = f"{alone} alone shows {MATRIX_OF[alone]}: either that is wrong, or the sum that makes {alone} of it"
    return examiner.compared(_without(recovered, (MATRIX_OF[alone], *QUOTIENTS))), [words]


def _held_to_coarser(
    recovered: RecoveredValues, evidence: Sequence[ResultEvidence]
) -> RecoveredValues:
    """The same, with what is coarse and not wrong held to the coarser arithmetic."""
    coarse = {one.name for one in evidence if one.is_coarse} - {
        one.name for one in evidence if one.is_wrong
    }
    return replace(recovered, recovery=replace(recovered.recovery, coarse=frozenset(coarse)))


def _reached(
    examiner: Examiner, recovered: RecoveredValues, evidence: Sequence[ResultEvidence]
) -> tuple[RecoveredValues, list[str]]:
    """Without what is right here through a gradient that is wrong in the ordinary run: it tells nothing of that run."""
    shown = [one for one in evidence if one.name != one.through]
    through = [one.through for one in shown if not one.is_reached]
    if not through:
        return recovered, []
    lost = {one.name for one in shown if not one.is_reached}
    lost -= {one.name for one in shown if one.is_wrong and one.is_reached}
    kept = _without(recovered, (*lost, *QUOTIENTS) if lost else ())
    gone = [name for name in recovered.trace.values if name not in kept.trace.values]
    where = "one-hot problems, whose tau is 0" if examiner.case.tau else "one-hot problems"
    words = f"{listed(through)} {_is(through)} wrong, and right in {where}: what is wrong shows with other values only"
    return kept, [words + (f", and {listed(gone)} {_is(gone)} not reached" if gone else "")]


def _is(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _with_sums(examiner: Examiner, recovered: RecoveredValues) -> RecoveredValues:
    if not set(SUMS) & examiner.own.trace.values.keys() - recovered.trace.values.keys():
        return recovered
    alone = examiner.run(examiner.assigned, examiner.case, recovered.values, recovered.values)
    return with_sums(recovered, examiner.case, alone)


def _p_without_do(
    examiner: Examiner, recovered: RecoveredValues, scales: Scales
) -> tuple[RecoveredValues, list[str]]:
    """P once more where it came out wrong, in ways that no misread dO can spoil.

    P is read off dV = P^T dO. With dO contiguous and one probe a call, every head and batch is given the same one-hot
    rows, so that another head's or batch's dO does no harm; nor do other strides where all tensors are contiguous, but
    that counts only if a rereading of dO explains the dV that came.
    """
    if "dV" not in recovered.by or not scales.of(recovered, "dV", recovered.by["dV"]).is_wrong:
        return recovered, []
    p = _right_p(examiner, (*examiner.assigned, ("do", "contiguous")), recovered, scales)
    lay = (
        "lies contiguous and the same in all heads"
        if examiner.assigned
        else "is the same in all heads"
    )
    words = f"P, seen through dV, is right once dO {lay}"
    # Where its own values came right, one problem a call may be what helps: some kernels take one number of batches.
    is_sure = not examiner.own.comparison.matches
    words = (
        f"dO is misread: {words}"
        if is_sure
        else f"{words} and a call has no more batches than the case"
    )
    if p is None:
        own = examiner.own
        reading = reread_do(examiner.case, own.x, own.trace.values["dV"], examiner.tensors())
        if reading is None:
            return recovered, []
        p, words = (
            _right_p(examiner, (), recovered, scales),
            f"dO is read {reading}: so read it gives the dV that came",
        )
    if p is None:  # several query heads share the dV that would show each one's P
        return _without(recovered, ("P", *QUOTIENTS)), [words]
    # What is read in dO's place must be the same in every probe: no one-hot rows, and no other neighbours.
    of_ds = examiner.recovered(one_by_one=True, with_p=False)
    return with_matrices(replace(of_ds, by={**of_ds.by, "dV": p}), examiner.case, {"P": p}), [
        words
    ]


def _right_p(
    examiner: Examiner, assigned: Assigned, recovered: RecoveredValues, scales: Scales
) -> Tensor | None:
    """P from another layout, one probe a call; None where it is wrong there too."""
    p = examiner.recovered(assigned, one_by_one=True).by["dV"]
    return None if scales.of(recovered, "dV", p).is_wrong else p


def _either_ds(
    examiner: Examiner, recovered: RecoveredValues, evidence: Sequence[ResultEvidence]
) -> tuple[RecoveredValues, list[str]]:
    """The dS to go on with, of the two that dQ and dK show; and which kernel is at fault where one is right.

    Where they differ neither stands for both kernels, and none is shown. A right dS convicts dV alone of a wrong P,
    which is then left out, and so does one factor that dS does not have; but else, if dK's is wrong too, that P and
    that dS are of one kernel and belong together.
    """
    case = examiner.case
    of_ds = [one for one in evidence if one.name == "dS" and one.through in recovered.by]
    through, wrong = (
        [one.through for one in ones] for ones in (of_ds, [one for one in of_ds if one.is_wrong])
    )
    odd_p = "P" in recovered.trace.values and any(
        one.name == "P" and one.is_wrong for one in evidence
    )
    factors = [factor_in_words(recovered, "dS", recovered.by[name]) for name in wrong]
    of_p = (
        factor_in_words(recovered, "P", recovered.by["dV"])
        if odd_p and "dV" in recovered.by
        else ""
    )
    wrong_gradients = [
        name for name, one in examiner.own.comparison.findings.items() if one.mismatched
    ]
    two = len(wrong) == 2 and not are_one_fault(recovered)
    # A misread k is in what each probe shows in another way: in one kernel two ways may well be one fault.
    is_told = not (two and examiner.of_one_kernel)
    words = _of_kernels(through, wrong, factors, wrong_gradients, two=two) if is_told else []
    # A P that one factor is missing from leaves that factor in the dS of its kernel.
    alone = bool(of_p) and of_p not in factors
    if odd_p and (alone or ("dK" not in wrong and len(wrong) < len(through))):
        recovered, odd_p = _without(recovered, ("P", *QUOTIENTS)), False
        right = [name for name in through if name not in wrong]
        beside = f", while dS is right in {listed(right)}" if right else ""
        words.append(f"what computes dV is at fault: it alone shows a wrong P{of_p}{beside}")
    if two or (len(wrong) == 1 and len(through) == 2):
        of_dk = with_matrices(recovered, case, {"dS": recovered.by["dK"]})
        # That dK is 0 of a dS that is 0 throughout explains nothing.
        tells = odd_p and dict(zip(wrong, factors, strict=True)).get("dK") != ZERO
        recovered = of_dk if tells else _without(recovered, ("dS", *QUOTIENTS))
    return recovered, words


def _of_kernels(
    seen: list[str],
    wrong: list[str],
    factors: list[str],
    wrong_gradients: list[str],
    *,
    two: bool,
) -> list[str]:
    if not wrong:
        return []
    how = factors[0]
    if two:
        return [
            "dS is wrong in the kernels of dQ and dK, in two ways: by a fault each, or by one that both share"
        ]
    if len(wrong) == len(seen):
        return [
            f"dS is wrong in the kernel{'s' if len(wrong) > 1 else ''} of {' and '.join(wrong)}{how}"
        ]
    right = next(name for name in seen if name not in wrong)
    if right in wrong_gradients:
        return [f"{wrong[0]} shows dS wrong{how}; {right}, which is wrong too, shows it right"]
    return [
        f"the kernel of {wrong[0]} is at fault: {wrong[0]} shows dS wrong{how}; dS in the kernel of {right} is right"
    ]


def _without(recovered: RecoveredValues, names: Collection[str]) -> RecoveredValues:
    """The same without some of what was recovered; what the target exposes stays."""
    trace = recovered.trace
    sources = {
        name: how
        for name, how in trace.sources.items()
        if name not in names or how != "recovered"
    }
    return replace(
        recovered, trace=Trace({name: trace.values[name] for name in sources}, sources)
    )


def _inseparable(
    examiner: Examiner, recovered: RecoveredValues, measured: MeasuredRun
) -> tuple[MeasuredRun, list[str]]:
    """Where dP or delta came out wrong: both left out again where the split of dS into them means nothing.

    So it is where dS as a whole is explained; where P is wrong and does not explain them, since dV may show another P
    than the one that dS was made of; and where the keys without a value, each of which shows its row's delta, differ
    about it: then what is wrong is neither delta nor dO.
    """
    findings = {name: one for name, one in measured.comparison.findings.items() if one.mismatched}
    quotients = [
        findings[name]
        for name in QUOTIENTS
        if name in findings and recovered.trace.sources[name] == "recovered"
    ]
    if not quotients:
        return measured, []
    sentence = []
    if "P" in findings and any(one.status == MISMATCH for one in quotients):
        sentence = [
            "the P that dV shows does not explain dS: dP and delta cannot be worked out from these gradients"
        ]
    elif not factor_in_words(recovered, "dS", recovered.trace.values["dS"]):
        if is_one_delta_a_row(measured, recovered):
            return measured, []
        # A delta made of misread dO is another in every probe, unless they all have the same dO.
        again = _with_one_do(examiner, recovered)
        measured_again = examiner.compared(again)
        if is_one_delta_a_row(measured_again, again):
            return measured_again, []
        if "P" not in findings:
            sentence = [
                "whether dS itself is wrong, or its dP or delta, these gradients do not tell"
            ]
    return examiner.compared(_without(recovered, QUOTIENTS)), sentence


def _with_one_do(examiner: Examiner, recovered: RecoveredValues) -> RecoveredValues:
    """dS once more, of probes that have one dO, beside the P known."""
    again = examiner.recovered(one_by_one=True, with_p=False)
    found = {"P": recovered.trace.values["P"]}
    if recovered.trace.values["dS"] is recovered.by.get("dK"):
        found["dS"] = again.by["dK"]
    return _with_sums(examiner, with_matrices(again, examiner.case, found))
