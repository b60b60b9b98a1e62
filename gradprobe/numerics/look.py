"""A look inside a black box: its intermediates recovered, judged, and what their disagreements say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial

from msgspec import structs
from torch import Tensor

from ..model.assignment import Assigned
from ..model.case import Case
from ..model.intermediates import MATRIX_OF, names
from ..model.layout_run import MISMATCH, Element
from ..model.number import listed
from ..runtime.run import Trace
from .budget import RECOVERABLE, quotient_error, slope_of
from .compare import allowed_on, promoted
from .declared_precision import Tensors
from .evidence import BlackBoxEvidence, MeasuredRun
from .finding import Finding, RisingErrors
from .locate import locate
from .one_hot import QUOTIENTS, SUMS, ZERO_KEYS, RecoveredValues, recover
from .symptoms import ZERO, factor_in_words, reread_do, shape_of_p

Measure = Callable[..., MeasuredRun]
"""Compares a trace with the reference: given the values that it came of, the trace, how its intermediates were
recovered, and by `coarse` whether to judge by the arithmetic that is coarser than the contract."""
_ONLY_HERE = (
    "with the case's own values all that is exported is right; in one-hot problems it is not"
)
_UNEXPLAINED = "the P that dV shows does not explain dS: dP and delta cannot be worked out from these gradients"
_UNTOLD = "whether dS itself is wrong, or its dP or delta, these gradients do not tell"


@dataclass(frozen=True)
class Examiner:
    """A black box under one layout: how it is run and judged, and what its ordinary run gave."""

    case: Case
    values: Tensors
    assigned: Assigned
    run: Callable[[Assigned, Case, Tensors, Tensors], Trace]
    """Runs the target, given a layout and what an `Answer` is given."""
    measure: Measure
    own: MeasuredRun
    """The ordinary run."""
    tensors: Callable[[], Tensors]
    """Gives its inputs as they lay in memory."""

    @cached_property
    def wrong(self) -> frozenset[str]:
        """What is wrong in the ordinary run."""
        findings = self.own.comparison.findings
        return frozenset(name for name in findings if findings[name].mismatched)

    def recovered(
        self, assigned: Assigned | None = None, *, one_by_one: bool = False, with_p: bool = True
    ) -> RecoveredValues:
        """What the target's answers show, in its layout or another one."""
        answer = partial(self.run, self.assigned if assigned is None else assigned)
        return recover(self.case, self.values, answer, one_by_one=one_by_one, with_p=with_p)

    @cached_property
    def is_coarse(self) -> bool:
        """Whether one-hot problems are held to the coarser arithmetic that such a kernel may have.

        It shows whole in their sums of one term, and averages out in the ordinary run's, unless that is wrong by no
        more than such an arithmetic makes: then the contract tells what is wrong in both.
        """
        ran = self.own.trace
        is_slight = self.wrong and self.measure(self.values, ran, coarse=True).comparison.matches
        return not is_slight

    def compared(self, recovered: RecoveredValues) -> MeasuredRun:
        of = recovered.values, recovered.trace, recovered.recovery
        return self.measure(*of, coarse=self.is_coarse)

    def shows_wrong(
        self, recovered: RecoveredValues, through: str, value: Tensor, known: Mapping[str, Finding] = {}
    ) -> bool:  # fmt: skip
        """Whether a gradient shows a P or dS that is wrong; `known` are the findings of what was recovered."""
        name = MATRIX_OF[through]
        if name not in known or value is not recovered.trace.values[name]:
            recovery = replace(recovered.recovery, names=frozenset(RECOVERABLE))
            alone = Trace({name: value}, {name: "exported"})
            measured = self.measure(recovered.values, alone, recovery, coarse=self.is_coarse)
            known = measured.comparison.findings
        return known[name].mismatched > 0

    def with_sums(self, recovered: RecoveredValues) -> RecoveredValues:
        """With the totals that it exposes, of the first probe alone."""
        if not set(SUMS) & self.own.trace.values.keys() - recovered.trace.values.keys():
            return recovered
        alone = self.run(self.assigned, self.case, recovered.values, recovered.values)
        return recovered.with_sums(alone)


def look_inside(examiner: Examiner) -> BlackBoxEvidence:
    """Recovers what a target does not expose under one layout, judges it, and says which kernel is at fault."""
    recovered = examiner.recovered()
    measured, words = examiner.compared(recovered), list[str]()
    findings = measured.comparison.findings
    here = {
        name for name in findings if findings[name].mismatched and not recovered.is_read(name)
    }
    shown = _shown(examiner, recovered, findings)
    here |= {through for through, is_wrong in shown.items() if is_wrong}
    if here:
        measured, words = _with_a_fault(examiner, recovered, here)
    elif examiner.wrong & shown.keys():
        recovered, words = _reached(examiner, recovered, shown, here)
        measured = examiner.compared(recovered)
    if inseparable(measured.trace, measured.comparison.findings):
        words.append("dP or delta is wrong: P and dS show their difference alone")
    return BlackBoxEvidence(measured, tuple(words), joined(examiner.own, measured))


def _shown(
    examiner: Examiner, recovered: RecoveredValues, known: Mapping[str, Finding] = {}
) -> dict[str, bool]:
    """By gradient, whether it shows a P or dS that is wrong."""
    by = recovered.by.items()
    return {name: examiner.shows_wrong(recovered, name, value, known) for name, value in by}


def _with_a_fault(
    examiner: Examiner, recovered: RecoveredValues, here: Set[str]
) -> tuple[MeasuredRun, list[str]]:
    """What the one-hot problems show of a fault, and which kernel has it; `here` is what is wrong in them."""
    words = [] if examiner.wrong else [_ONLY_HERE]
    recovered, of_p = _p_without_do(examiner, recovered)
    # A P of another layout shows what is right; that dV is wrong was reached in this one.
    shown = _shown(examiner, recovered)
    recovered, unreached = _reached(examiner, recovered, shown, here)
    reached = {name: shown[name] for name in shown.keys() - (examiner.wrong - here)}
    recovered, of_ds = _either_ds(examiner, recovered, reached, is_p_wrong="P" in here)
    recovered = examiner.with_sums(recovered)
    measured, of_dp = _separated(examiner, recovered)
    p, shapes = measured.comparison.findings.get("P"), list[str]()
    if p is not None and p.mismatched:
        shapes = shape_of_p(recovered, measured.trace.values["P"])
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
    wrong = [one for one in recovered.by if one in examiner.wrong]
    is_read = measured.trace.sources.get(name) == "recovered"
    if name not in ("P", "dP", "dS") or not is_read or through != wrong or len(wrong) > 1:
        return measured, []
    (alone,) = wrong
    words = f"{alone} alone shows {matrix}: either that is wrong, or the sum that makes {alone} of it"
    return examiner.compared(recovered.without(matrix, *QUOTIENTS)), [words]


def _reached(
    examiner: Examiner,
    recovered: RecoveredValues,
    shown: Mapping[str, bool],
    here: Set[str],
) -> tuple[RecoveredValues, list[str]]:
    """Without what is right here through a gradient that is wrong in the ordinary run: it tells nothing of that run."""
    missed = [name for name in shown if name in examiner.wrong and name not in here]
    if not missed:
        return recovered, []
    stays = {MATRIX_OF[name] for name in shown if shown[name] and name not in missed}
    lost = {MATRIX_OF[name] for name in missed} - stays
    are = "is" if len(missed) == 1 else "are"
    words = f"{listed(missed)} {are} wrong, and right in one-hot problems: what is wrong shows with other values only"
    return recovered.without(*lost, *QUOTIENTS) if lost else recovered, [words]


def _p_without_do(
    examiner: Examiner, recovered: RecoveredValues
) -> tuple[RecoveredValues, list[str]]:
    """P once more where it came out wrong, in ways that no misread dO can spoil.

    P is read off dV = P^T dO. With dO contiguous and one probe a call, every head and batch is given the same one-hot
    rows, so that another head's or batch's dO does no harm; nor do other strides where all tensors are contiguous, but
    that counts only if a rereading of dO explains the dV that came.
    """

    def right_p(assigned: Assigned) -> Tensor | None:
        p = examiner.recovered(assigned, one_by_one=True).by["dV"]
        return None if examiner.shows_wrong(recovered, "dV", p) else p

    dv, own = recovered.by.get("dV"), examiner.own
    if dv is None or not examiner.shows_wrong(recovered, "dV", dv):
        return recovered, []
    # Where its own values came right, one problem a call may be what helps: some kernels take one number of batches.
    words = "dO is misread: " if examiner.wrong else ""
    words += "P, seen through dV, is right where a call is one problem and dO lies contiguous, the same in all heads"
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
    examiner: Examiner,
    recovered: RecoveredValues,
    shown: Mapping[str, bool],
    *,
    is_p_wrong: bool,
) -> tuple[RecoveredValues, list[str]]:
    """The dS to go on with, of the two that dQ and dK show; and which kernel is at fault where one is right.

    Then neither stands for both kernels, and none is shown. A right dS convicts dV alone of a wrong P, which is then
    left out, and so does one factor that dS does not have; but else, if dK's is wrong too, that P and that dS are of
    one kernel and belong together.
    """
    of_ds = [name for name in recovered.by if MATRIX_OF[name] == "dS" and name in shown]
    right = [name for name in of_ds if not shown[name]]
    factors, words = dict[str, str](), list[str]()
    for through in (name for name in of_ds if shown[name]):
        factors[through] = factor_in_words(recovered, "dS", recovered.by[through])
    if factors:
        words.append(_of_kernels(examiner, factors, right))
    odd_p = (is_p_wrong or shown.get("dV", False)) and "P" in recovered.trace.values
    if odd_p:
        dv = recovered.by.get("dV")
        of_p = "" if dv is None else factor_in_words(recovered, "P", dv)
        # A P that one factor is missing from leaves that factor in the dS of its kernel.
        if (of_p and of_p not in factors.values()) or (right and "dK" not in factors):
            recovered, odd_p = recovered.without("P", *QUOTIENTS), False
            beside = f", while dS is right in {listed(right)}" if right else ""
            words.append(f"what computes dV is at fault: it alone shows a wrong P{of_p}{beside}")
    if factors and right:
        # That dK is 0 of a dS that is 0 throughout explains nothing.
        if odd_p and factors.get("dK") != ZERO:
            recovered = recovered.with_matrices({"dS": recovered.by["dK"]})
        else:
            recovered = recovered.without("dS", *QUOTIENTS)
    return recovered, words


def _of_kernels(examiner: Examiner, factors: Mapping[str, str], right: list[str]) -> str:
    wrong, ways = listed(list(factors)), {*factors.values()}
    how = ways.pop() if len(ways) == 1 else ", in two ways"
    if not right:
        return f"dS is wrong in the kernel{'s' * (len(factors) > 1)} of {wrong}{how}"
    if right[0] in examiner.wrong:
        return f"{wrong} shows dS wrong{how}; {right[0]}, which is wrong too, shows it right"
    said = f"the kernel of {wrong} is at fault: {wrong} shows dS wrong{how}"
    return f"{said}; dS in the kernel of {right[0]} is right"


def _separated(examiner: Examiner, recovered: RecoveredValues) -> tuple[MeasuredRun, list[str]]:
    """It compared, without dP and delta where one came out wrong and the split of dS into them means nothing.

    So it is where dS as a whole is explained; where P is wrong and does not explain them, since dV may show another P
    than the one that dS was made of; and where the keys without a value, each of which shows its row's delta, differ
    about it: then what is wrong is neither delta nor dO.
    """
    measured = examiner.compared(recovered)
    findings = measured.comparison.findings
    is_p_wrong = "P" in findings and bool(findings["P"].mismatched)
    wrong = [
        findings[name] for name in QUOTIENTS if name in findings and recovered.is_read(name)
    ]
    wrong = [finding for finding in wrong if finding.mismatched]
    if not wrong:
        return measured, []
    words: list[str] = []
    if is_p_wrong and any(finding.status == MISMATCH for finding in wrong):
        words = [_UNEXPLAINED]
    elif not factor_in_words(recovered, "dS", recovered.trace.values["dS"]):
        if _is_one_delta_a_row(measured, recovered):
            return measured, []
        # A delta made of misread dO is another in every probe, unless they all have the same dO.
        again = _with_one_do(examiner, recovered)
        measured_again = examiner.compared(again)
        if _is_one_delta_a_row(measured_again, again):
            return measured_again, []
        words = [] if is_p_wrong else [_UNTOLD]
    return examiner.compared(recovered.without(*QUOTIENTS)), words


def _with_one_do(examiner: Examiner, recovered: RecoveredValues) -> RecoveredValues:
    """dS once more, of probes that have one dO, beside the P known."""
    again = examiner.recovered(one_by_one=True, with_p=False)
    found = {"P": recovered.trace.values["P"]}
    if recovered.trace.values["dS"] is recovered.by.get("dK"):
        found["dS"] = again.by["dK"]
    return examiner.with_sums(again.with_matrices(found))


def _is_one_delta_a_row(measured: MeasuredRun, recovered: RecoveredValues) -> bool:
    """Whether all keys without a value show the same delta for each row."""
    x, values, precision = recovered.x, recovered.trace.values, measured.comparison.precision
    for tile, at, expected in recovered.tiles():
        rows = allowed_on(x, tile, expected, precision, recovered.recovery).rows
        slope, seen = slope_of(x, tile), (expected["P"] > rows["P"])[..., ::ZERO_KEYS]
        quotients = values["dS"][at].double() / (values["P"][at].double() * slope)
        g = quotients[..., ::ZERO_KEYS].masked_fill(~seen, 0.0)
        allowed = quotient_error(expected, rows, slope)[..., ::ZERO_KEYS].masked_fill(~seen, 0.0)
        # Errors were bounded for the delta expected; they grow with the one that came.
        growth = 1 + g.abs().amax(-1, keepdim=True) / expected["delta"].abs()[..., None]
        apart = (g + values["delta"][at].double()[..., None]).abs()
        if bool((seen & (apart > 2 * growth * allowed)).any()):
            return False
    return True


def joined(own: MeasuredRun, inner: MeasuredRun) -> MeasuredRun:
    """What a report shows of a run that was looked into: what the target exposed as it came.

    Where that is wrong, and only inherits it in the one-hot problems, it is called inherited.
    """
    of_own, of_inner = own.comparison.findings, inner.comparison.findings
    both = {
        **of_inner,
        **{name: _blamed(one, of_inner.get(name)) for name, one in of_own.items()},
    }
    findings = {name: both[name] for name in names() if name in both}
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
