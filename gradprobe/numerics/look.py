"""A look inside a black box: its intermediates recovered, judged, and what their disagreements say."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from msgspec import structs
from torch import Tensor

from ..model.assignment import Assigned
from ..model.case import Case
from ..model.intermediates import MATRIX_OF, names
from ..model.layout_run import MISMATCH, Element
from ..model.number import listed
from ..runtime.run import Trace
from .compare import promoted
from .evidence import BlackBoxEvidence, MeasuredRun
from .finding import Finding, RisingErrors
from .locate import locate
from .one_hot import QUOTIENTS, SUMS, RecoveredValues, recover
from .symptoms import (
    RIGHT,
    ZERO,
    Measure,
    ResultEvidence,
    Scales,
    are_one_fault,
    factor_in_words,
    is_one_delta_a_row,
    reread_do,
    shape_of_p,
)

_ONLY_HERE = (
    "with the case's own values all that is exported is right; in one-hot problems it is not"
)
_UNEXPLAINED = "the P that dV shows does not explain dS: dP and delta cannot be worked out from these gradients"
_UNTOLD = "whether dS itself is wrong, or its dP or delta, these gradients do not tell"


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
        answer = partial(self.run, self.assigned if assigned is None else assigned)
        return recover(self.case, self.values, answer, one_by_one=one_by_one, with_p=with_p)

    def compared(self, recovered: RecoveredValues) -> MeasuredRun:
        return self.measure(recovered.values, recovered.trace, recovered.recovery)

    def with_sums(self, recovered: RecoveredValues) -> RecoveredValues:
        """With the totals that it exposes, of the first probe alone."""
        if not set(SUMS) & self.own.trace.values.keys() - recovered.trace.values.keys():
            return recovered
        alone = self.run(self.assigned, self.case, recovered.values, recovered.values)
        return recovered.with_sums(alone)


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
        recovered, unreached = _reached(examiner, recovered, evidence)
        coarse = [one for one in evidence if one.is_coarse and one.beside == RIGHT]
        notes = {one.through: one.note for one in coarse}
        measured, words = examiner.compared(recovered), [*notes.values(), *unreached]
    if inseparable(measured.trace, measured.comparison.findings):
        words.append("dP or delta is wrong: P and dS show their difference alone")
    return BlackBoxEvidence(measured, tuple(words), joined(examiner.own, measured))


def _with_a_fault(
    examiner: Examiner,
    recovered: RecoveredValues,
    scales: Scales,
    evidence: list[ResultEvidence],
) -> tuple[MeasuredRun, list[str]]:
    """What the one-hot problems show of a fault, and which kernel has it."""
    words = [_ONLY_HERE] if examiner.own.comparison.matches else []
    recovered, of_p = _p_without_do(examiner, recovered, scales)
    # A P of another layout shows what is right; that dV is wrong was reached in this one.
    exported = [one for one in evidence if not one.is_shown]
    of_shown = [one for one in evidence if one.is_shown]
    evidence = [*exported, *scales.shown(recovered, of_shown)]
    recovered, unreached = _reached(examiner, recovered, evidence)
    reached = [one for one in evidence if one.is_reached]
    recovered, of_ds = _either_ds(examiner, recovered, reached)
    recovered = examiner.with_sums(recovered)
    measured, of_dp = _separated(examiner, recovered)
    shapes: list[str] = []
    p = measured.comparison.findings.get("P")
    if p is not None and p.mismatched:
        of = measured.trace.values["P"]
        shapes = shape_of_p(recovered, of, may_read_lse=examiner.may_read_lse)
    measured, of_one = _of_one_result(examiner, recovered, measured)
    return measured, [*words, *of_p, *(of_one or of_ds), *of_dp, *unreached, *shapes]


def _of_one_result(
    examiner: Examiner, recovered: RecoveredValues, measured: MeasuredRun
) -> tuple[MeasuredRun, list[str]]:
    """Without a P or dS that is wrong as one gradient alone shows it: that gradient's own sum may be what is wrong.

    A dS that is right but for its delta, one number a row, is no sum's doing.
    """
    findings = measured.comparison.findings
    name = next((name for name, one in findings.items() if one.status == MISMATCH), "")
    matrix = "P" if name == "P" else "dS"
    through = [one for one in recovered.by if MATRIX_OF[one] == matrix]
    wrong = [one for one in recovered.by if examiner.own.comparison.findings[one].mismatched]
    is_read = measured.trace.sources.get(name) == "recovered"
    if name not in ("P", "dP", "dS") or not is_read or through != wrong or len(wrong) > 1:
        return measured, []
    (alone,) = wrong
    words = f"{alone} alone shows {matrix}: either that is wrong, or the sum that makes {alone} of it"
    return examiner.compared(recovered.without(matrix, *QUOTIENTS)), [words]


def _reached(
    examiner: Examiner, recovered: RecoveredValues, evidence: list[ResultEvidence]
) -> tuple[RecoveredValues, list[str]]:
    """Without what is right here through a gradient that is wrong in the ordinary run: it tells nothing of that run.

    What is coarse and not wrong is held to the coarser arithmetic.
    """
    wrong = {one.name for one in evidence if one.is_wrong}
    coarse = frozenset(one.name for one in evidence if one.is_coarse) - wrong
    recovered = replace(recovered, recovery=replace(recovered.recovery, coarse=coarse))
    missed = [one for one in evidence if one.is_shown and not one.is_reached]
    if not missed:
        return recovered, []
    stays = {one.name for one in evidence if one.is_shown and one.is_wrong and one.is_reached}
    lost = {one.name for one in missed} - stays
    kept = recovered.without(*lost, *QUOTIENTS) if lost else recovered
    through = [one.through for one in missed]
    gone = [name for name in recovered.trace.values if name not in kept.trace.values]
    where = "one-hot problems, whose tau is 0" if examiner.case.tau else "one-hot problems"
    words = f"{listed(through)} {_is(through)} wrong, and right in {where}: what is wrong shows with other values only"
    return kept, [words + (f", and {listed(gone)} {_is(gone)} not reached" if gone else "")]


def _is(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _p_without_do(
    examiner: Examiner, recovered: RecoveredValues, scales: Scales
) -> tuple[RecoveredValues, list[str]]:
    """P once more where it came out wrong, in ways that no misread dO can spoil.

    P is read off dV = P^T dO. With dO contiguous and one probe a call, every head and batch is given the same one-hot
    rows, so that another head's or batch's dO does no harm; nor do other strides where all tensors are contiguous, but
    that counts only if a rereading of dO explains the dV that came.
    """

    def right_p(assigned: Assigned) -> Tensor | None:
        p = examiner.recovered(assigned, one_by_one=True).by["dV"]
        return None if scales.of(recovered, "dV", p).is_wrong else p

    if "dV" not in recovered.by or not scales.of(recovered, "dV", recovered.by["dV"]).is_wrong:
        return recovered, []
    own, lies = examiner.own, "lies contiguous and " if examiner.assigned else ""
    words = f"P, seen through dV, is right once dO {lies or 'is '}the same in all heads"
    # Where its own values came right, one problem a call may be what helps: some kernels take one number of batches.
    if own.comparison.matches:
        words += " and a call has no more batches than the case"
    else:
        words = f"dO is misread: {words}"
    p = right_p((*examiner.assigned, ("do", "contiguous")))
    if p is None:
        reading = reread_do(examiner.case, own.x, own.trace.values["dV"], examiner.tensors())
        if reading is None:
            return recovered, []
        p, words = right_p(()), f"dO is read {reading}: so read it gives the dV that came"
    if p is None:  # several query heads share the dV that would show each one's P
        return recovered.without("P", *QUOTIENTS), [words]
    # What is read in dO's place must be the same in every probe: no one-hot rows, and no other neighbours.
    of_ds = examiner.recovered(one_by_one=True, with_p=False)
    return replace(of_ds, by={**of_ds.by, "dV": p}).with_matrices({"P": p}), [words]


def _either_ds(
    examiner: Examiner, recovered: RecoveredValues, evidence: list[ResultEvidence]
) -> tuple[RecoveredValues, list[str]]:
    """The dS to go on with, of the two that dQ and dK show; and which kernel is at fault where one is right.

    Where they differ neither stands for both kernels, and none is shown. A right dS convicts dV alone of a wrong P,
    which is then left out, and so does one factor that dS does not have; but else, if dK's is wrong too, that P and
    that dS are of one kernel and belong together.
    """
    of_ds = [one for one in evidence if one.name == "dS" and one.through in recovered.by]
    factors, right = dict[str, str](), [one.through for one in of_ds if not one.is_wrong]
    for through in (one.through for one in of_ds if one.is_wrong):
        factors[through] = factor_in_words(recovered, "dS", recovered.by[through])
    two = len(factors) == 2 and not are_one_fault(recovered)
    words: list[str] = []
    # A misread k is in what each probe shows in another way: in one kernel two ways may well be one fault.
    if factors and not (two and examiner.of_one_kernel):
        words.append(_of_kernels(examiner, factors, right, two=two))
    odd_p = any(one.name == "P" and one.is_wrong for one in evidence)
    odd_p = odd_p and "P" in recovered.trace.values
    if odd_p:
        dv = recovered.by.get("dV")
        of_p = "" if dv is None else factor_in_words(recovered, "P", dv)
        # A P that one factor is missing from leaves that factor in the dS of its kernel.
        alone = bool(of_p) and of_p not in factors.values()
        if alone or (right and "dK" not in factors):
            recovered, odd_p = recovered.without("P", *QUOTIENTS), False
            beside = f", while dS is right in {listed(right)}" if right else ""
            words.append(f"what computes dV is at fault: it alone shows a wrong P{of_p}{beside}")
    if two or (factors and right):
        # That dK is 0 of a dS that is 0 throughout explains nothing.
        if odd_p and factors.get("dK") != ZERO:
            recovered = recovered.with_matrices({"dS": recovered.by["dK"]})
        else:
            recovered = recovered.without("dS", *QUOTIENTS)
    return recovered, words


def _of_kernels(
    examiner: Examiner, factors: Mapping[str, str], right: list[str], *, two: bool
) -> str:
    if two:
        return "dS is wrong in the kernels of dQ and dK, in two ways: by a fault each, or by one that both share"
    how = next(iter(factors.values()))
    if not right:
        kernels = "kernels" if len(factors) > 1 else "kernel"
        return f"dS is wrong in the {kernels} of {' and '.join(factors)}{how}"
    (wrong,), (other,) = factors, right
    if examiner.own.comparison.findings[other].mismatched:
        return f"{wrong} shows dS wrong{how}; {other}, which is wrong too, shows it right"
    said = f"the kernel of {wrong} is at fault: {wrong} shows dS wrong{how}"
    return f"{said}; dS in the kernel of {other} is right"


def _separated(examiner: Examiner, recovered: RecoveredValues) -> tuple[MeasuredRun, list[str]]:
    """It compared, without dP and delta where one came out wrong and the split of dS into them means nothing.

    So it is where dS as a whole is explained; where P is wrong and does not explain them, since dV may show another P
    than the one that dS was made of; and where the keys without a value, each of which shows its row's delta, differ
    about it: then what is wrong is neither delta nor dO.
    """
    measured = examiner.compared(recovered)
    findings = {
        name: one for name, one in measured.comparison.findings.items() if one.mismatched
    }
    wrong = [name for name in QUOTIENTS if name in findings and recovered.is_read(name)]
    if not wrong:
        return measured, []
    words: list[str] = []
    if "P" in findings and any(findings[name].status == MISMATCH for name in wrong):
        words = [_UNEXPLAINED]
    elif not factor_in_words(recovered, "dS", recovered.trace.values["dS"]):
        if is_one_delta_a_row(measured, recovered):
            return measured, []
        # A delta made of misread dO is another in every probe, unless they all have the same dO.
        again = _with_one_do(examiner, recovered)
        measured_again = examiner.compared(again)
        if is_one_delta_a_row(measured_again, again):
            return measured_again, []
        words = [] if "P" in findings else [_UNTOLD]
    return examiner.compared(recovered.without(*QUOTIENTS)), words


def _with_one_do(examiner: Examiner, recovered: RecoveredValues) -> RecoveredValues:
    """dS once more, of probes that have one dO, beside the P known."""
    again = examiner.recovered(one_by_one=True, with_p=False)
    found = {"P": recovered.trace.values["P"]}
    if recovered.trace.values["dS"] is recovered.by.get("dK"):
        found["dS"] = again.by["dK"]
    return examiner.with_sums(again.with_matrices(found))


def joined(own: MeasuredRun, inner: MeasuredRun) -> MeasuredRun:
    """What a report shows of a run that was looked into: what the target exposed as it came.

    Where that is wrong, and inherits it in the one-hot problems from parents that the ordinary run does not show, it
    is called inherited.
    """
    of_own, of_inner, findings = own.comparison.findings, inner.comparison.findings, {}
    for name in names():
        if name in of_own:
            findings[name] = _blamed(of_own[name], of_inner.get(name))
        elif name in of_inner:
            findings[name] = of_inner[name]
    reading = inner.comparison.reading.items()
    comparison = replace(
        own.comparison,
        findings=findings,
        absent=tuple(name for name in own.comparison.absent if name not in findings),
        reading={name: most for name, most in reading if name not in of_own},
    )
    sources = {name: (own if name in of_own else inner).trace.sources[name] for name in findings}
    trace, first = replace(own.trace, sources=sources), _first(own, inner, findings)
    return replace(own, trace=trace, comparison=promoted(comparison), first=first)


def _first(
    own: MeasuredRun, inner: MeasuredRun, findings: Mapping[str, Finding]
) -> Element | None:
    """The first mismatch, in the run whose it is."""
    name = next((name for name, finding in findings.items() if finding.status == MISMATCH), None)
    if name is None:
        return None
    run, of = (own, findings) if name in own.trace.values else (inner, inner.comparison.findings)
    first = locate(run.x, run.trace, replace(run.comparison, findings={name: of[name]}))
    if first and name == "dP" and run is inner:
        first = structs.replace(first, inseparable=inseparable(inner.trace, findings))
    return first


def inseparable(trace: Trace, findings: Mapping[str, Finding]) -> tuple[str, ...]:
    """What may be wrong in dP's place: delta, where both were recovered and are wrong by themselves.

    P and dS show dP - delta alone. Which part of that is delta is read where dP is 0, and only if delta is one a row.
    """
    wrong = [findings[name].status == MISMATCH for name in QUOTIENTS if name in findings]
    return ("delta",) if wrong == [True, True] and trace.sources["dP"] == "recovered" else ()


def _blamed(own: Finding, inner: Finding | None) -> Finding:
    """A finding of the ordinary run, of whose wrong heads those inherit that do so in the one-hot problems."""
    if inner is None or not own.mismatched:
        return own
    left = own.own.masked_fill((inner.wrong > 0) & (inner.own == 0), 0)
    rising = own.rising_own if bool(left.any()) else RisingErrors()
    return replace(own, own=left, rising_own=rising)
