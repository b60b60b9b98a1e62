"""Runs -> Reasons: the diagnoses of every failing layout, best first, and what is known where none fits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from ..faults.hypothesis import Hypothesis, Observed
from ..model.failures import fault_words
from ..model.intermediates import is_named_after, title
from ..model.layout_run import MATCH, MISMATCH
from ..model.mechanisms import door, spoken
from ..model.number import LAMBDA, listed
from ..model.report import Diagnosis, causes_among
from ..numerics.evidence import LayoutRun
from ..numerics.rows import rows_of
from ..probing.experiment import Experiment
from .causes import CauseSearch, fact_about, failing_layouts
from .lines import of_strays
from .prediction import observed_in
from .smaller import MOST_SCORES, smaller_failing

if TYPE_CHECKING:
    from ..frontends.triton.launches import KernelCall

_TOO_LARGE = (
    "no cause was sought: this case is too large, and no smaller one fails in the same way; "
    "gradprobe shrink looks further"
)
# Where as many lines lack a mask, it is no slip that an edit could mend: the kernel was written without.
_FEW = 3
# What leaves a tensor, or meets another program's there; and what is seen of the same in the elements.
_MISREAD = ("race", "outside", "load", "store", "masked")
# What makes no number wrong.
_OF_RESULTS = ("shared", "dtype")


@dataclass(frozen=True)
class Reasons:
    """Why a target is wrong, as far as it was found out."""

    diagnoses: tuple[Diagnosis, ...] = ()
    """Best first."""
    known: tuple[str, ...] = ()
    """Sentences about what no named hypothesis explains."""
    sought: bool = True
    """Whether hypotheses were tested, where something is wrong."""
    shown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By fault of a cause, the layouts in which it shows."""
    predicted: Mapping[str, Hypothesis] = field(default_factory=dict)
    """By fault of a cause, what predicts it."""
    is_beyond_edits: bool = False
    """Whether the one cause lies in more lines than an edit that is tried changes."""

    @property
    def causes(self) -> list[Diagnosis]:
        """The diagnoses that are named."""
        return causes_among(self.diagnoses)

    def led_by(self, cause: Diagnosis, merged: Sequence[Diagnosis], layouts: Iterable[str]) -> Reasons:
        """With one cause, which shows in these layouts, in the place of some diagnoses; others stand beside it."""
        left = [one for one in self.diagnoses if one not in merged]
        others = [structs.replace(one, also=True) if one in self.causes else one for one in left]
        shown = {**self.shown, cause.fault: tuple(layouts)}
        return replace(self, diagnoses=(cause, *others), shown=shown)


def reasons_of(experiment: Experiment, runs: Sequence[LayoutRun]) -> Reasons:
    """Why runs with a wrong element went wrong, in every layout; and what is told of memory.

    What goes wrong in here is told, and no verdict depends on it.
    """
    found = ((run.layout, memory_finding) for run in runs for memory_finding in run.memory)
    memory = of_strays(found, [run.layout for run in runs if run.measured is not None])
    try:
        return _beside_exports(experiment, runs, memory)
    except Exception as error:
        fault = fault_words(error)
        return Reasons(memory, (f"no reason could be sought, by a fault of gradprobe: {fault}",), sought=False)


def _beside_exports(experiment: Experiment, runs: Sequence[LayoutRun], memory: Sequence[Diagnosis]) -> Reasons:
    """What --strict alone counts as wrong, since it is exported in another convention, beside why all else is wrong."""
    exports, left = dict[Diagnosis, list[str]](), list[LayoutRun]()
    for run in runs:
        measured = run.measured
        if measured is None:
            continue
        for of in measured.conventions if measured.as_read is not None else ():
            summary = f"exports {of.relation} as {of.name}, another convention; the gradients made of it are right"
            fix = f"return {of.name} itself, or leave out --strict"
            export = Diagnosis(f"convention/{of.name}", "A", summary, 1.0, fix=fix, says_wrong=(of.name,))
            exports.setdefault(export, []).append(run.layout)
        measured = measured.as_read or measured
        if not measured.comparison.matches:
            left.append(replace(run, measured=measured))
    if not exports:
        return _reasons_of(experiment, left, memory)
    reasons = _reasons_of(replace(experiment, case=replace(experiment.case, strict=False)), left, memory)
    is_beyond_edits = not reasons.causes
    for export, layouts in reversed(exports.items()):
        reasons = reasons.led_by(export, (), layouts)
    return replace(reasons, is_beyond_edits=is_beyond_edits)


def _reasons_of(experiment: Experiment, failing: Sequence[LayoutRun], memory: Sequence[Diagnosis]) -> Reasons:
    """Why runs with wrong elements are wrong."""
    if not failing:
        return Reasons(tuple(memory))
    of_results = [found for found in memory if found.kind in _OF_RESULTS]
    memory = [found for found in memory if found not in of_results]
    plain = [run for run in failing if run.is_plain]
    if experiment.case.scores > MOST_SCORES:
        return _of_a_smaller_case(experiment, plain or failing, memory)
    if not plain:
        return _of_other_values(experiment, failing[0], memory)
    reasons = _of_layouts(experiment, plain, memory)
    faults = {("fault", found.fault) for found in reasons.diagnoses}
    spoken(faults.__contains__)
    written = () if reasons.causes else _written_over(of_results, plain[0])
    return replace(reasons, diagnoses=(*written, *reasons.diagnoses), known=() if written else reasons.known)


def _of_a_smaller_case(experiment: Experiment, failing: Sequence[LayoutRun], memory: Sequence[Diagnosis]) -> Reasons:
    small = smaller_failing(experiment, failing)
    if small is None:
        return Reasons(tuple(memory), (_TOO_LARGE,), sought=False)
    reasons = _beside_exports(small.experiment, small.runs, memory)
    words, of_large = f"sought on {small.words}", {diagnosis.fault for diagnosis in memory}
    diagnoses = list(reasons.diagnoses)
    for at, diagnosis in enumerate(diagnoses):
        if diagnosis.fault not in of_large:
            diagnoses[at] = structs.replace(diagnosis, evidence=(*diagnosis.evidence, words))
            break
    return replace(reasons, diagnoses=tuple(diagnoses), known=(words, *reasons.known) if reasons.known else ())


def _of_other_values(experiment: Experiment, failing: LayoutRun, memory: Sequence[Diagnosis]) -> Reasons:
    """Where the case's own values came out right and others did not."""
    assert failing.measured is not None
    rows = rows_of(experiment.case, failing.measured.comparison.recovery)
    facts = () if rows else (fact_about(observed_in(experiment, failing)),)
    words = () if failing.inside else ("right with the case's own values, wrong with others",)
    return Reasons(tuple(memory), (*words, *facts))


def _written_over(of_results: Sequence[Diagnosis], run: LayoutRun) -> tuple[Diagnosis, ...]:
    """Where two gradients have memory in common and one is wrong by itself: the other was written over it."""
    assert run.measured is not None
    wrong = {name for name, of in run.measured.comparison.findings.items() if of.status == MISMATCH}
    shared = (found for found in of_results if found.kind == "shared")
    return tuple(found for found in shared if wrong & set(found.summary.replace(":", " ").split()))


def _of_layouts(experiment: Experiment, failing: Sequence[LayoutRun], memory: Sequence[Diagnosis]) -> Reasons:
    layouts, search = failing_layouts(experiment, failing), CauseSearch(experiment)
    for layout in layouts:
        search.explain(layout)
    worst, spoilt = {tensor_of(found): found.fault for found in reversed(memory)}, dict[str, tuple[str, ...]]()
    for layout in layouts:
        names = {name.lower() for name in layout.spoilt.intersection(layout.seen.own)}
        for fault in {worst[name] for name in names & worst.keys()}:
            spoilt[fault] = (*spoilt.get(fault, ()), layout.name)
    memory = [structs.replace(found, also=True) if found.fault in spoilt else found for found in memory]
    first = layouts[0]
    here = {found.fault for found in of_strays((first.name, each) for each in first.run.memory)}
    diagnoses = in_order(*told_once(search.diagnoses, memory), first.seen, here)
    return Reasons(tuple(diagnoses), search.facts, True, spoilt | search.shown, search.predicted)


# --- what was seen of memory, among the causes


def told_once(found: Sequence[Diagnosis], memory: Sequence[Diagnosis]) -> tuple[list[Diagnosis], list[Diagnosis]]:
    """A named cause that was seen in memory too has that for evidence, and its lines; it is told once."""
    twins = {each.fault: each for each in memory}
    unwritten = [each for each in memory if each.kind == "unwritten"]
    # What depends on memory that nothing wrote is the one tensor that is read so.
    read = unwritten[0] if len({each.fault for each in unwritten}) == 1 else None
    joined, met = list[Diagnosis](), set[str]()
    for cause in found:
        twin = twins.get(cause.fault, read if cause.kind == "unwritten" else None) if cause.is_named else None
        if twin is None:
            joined.append(cause)
            continue
        met.add(twin.fault)
        lines = {(where.file, where.line): where for where in (*twin.where, *cause.where)}
        evidence = (*cause.evidence, twin.summary)
        joined.append(structs.replace(cause, evidence=evidence, where=tuple(lines.values())))
    return joined, [each for each in memory if each.fault not in met]


def in_order(
    found: Sequence[Diagnosis], memory: Sequence[Diagnosis], seen: Observed, here: Collection[str]
) -> list[Diagnosis]:
    """What explains most; but what was seen of memory comes before numbers that only depend on it.

    Args:
        here: the faults of memory that were seen in the first layout.
    """
    named = [each for each in found if each.is_named]
    cause = named[0] if named else None
    is_about_them = cause is not None and tensor_of(cause) in {tensor_of(each) for each in memory}
    first = list[Diagnosis]()
    for each in memory:
        is_here = cause is None or each.fault in here
        # What was seen to wrap around says why an access goes elsewhere.
        if each.kind == "wrap" or (is_here and _comes_first(each, cause, seen, is_about_them=is_about_them)):
            first.append(each)
    return list(dict.fromkeys([*first, *named, *memory, *found]))


def _comes_first(memory: Diagnosis, cause: Diagnosis | None, seen: Observed, *, is_about_them: bool) -> bool:
    """Whether what was seen of memory comes before a named cause.

    A race does, unless the cause stores that very tensor elsewhere, or where it is to add, or is seen to read elsewhere
    in its kernel: programs that take too little of their number race too. An access outside and a read of what nothing
    wrote do in the kernels of what is wrong, unless the cause is about the tensor of any of them. An input that is
    overwritten may be so after its last read.
    """
    kernels = [where.kernel for where in memory.where if where.kernel]
    if memory.fault_class == "RACE":
        if cause and cause.kind == "load" and cause.where and cause.where[0].kernel in kernels:
            return False
        if not (cause and cause.kind in ("store", "accumulation") and tensor_of(cause) == tensor_of(memory)):
            return True
    if is_about_them or memory.kind == "overwritten":
        return False
    # P, dP and dS are computed in several kernels.
    named = any(is_named_after(kernel, name) for kernel in kernels for name in seen.own)
    return named or not {"P", "dP", "dS"}.isdisjoint(seen.own)


def tensor_of(diagnosis: Diagnosis) -> str:
    """The tensor that a fault is about, in small letters."""
    return diagnosis.fault.partition("/")[2].partition("-")[0].lower()


# --- what a target should have refused: one cause in place of many


def with_length(reasons: Reasons, first: LayoutRun, right_at: Callable[[LayoutRun], str]) -> Reasons:
    """The reasons, where another length is right in the first layout: then nothing else is wrong with it there.

    Args:
        right_at: given the first run, runs the target at other lengths, and says at which it is right; "" at none.
    """
    explained = reasons.predicted and reasons.causes
    findings = first.measured.comparison.findings.values() if first.measured is not None else ()
    # No more than a coarser arithmetic errs, which other values at another length may not show.
    is_slight = all(finding.max_ratio <= LAMBDA for finding in findings)
    if ((explained or is_slight) and not first.memory) or not (words := right_at(first)):
        return reasons
    here = {found.fault for found in of_strays((first.layout, each) for each in first.memory)}
    here |= {fault for fault, shown in reasons.shown.items() if here and first.layout in shown}
    kinds = () if explained else _MISREAD
    merged = [found for found in reasons.diagnoses if found.fault in here and found.kind in kinds]
    if not merged:
        said = "it takes multiples of a block, and does not refuse other lengths"
        return replace(reasons, known=(f"{first.layout}, it is right at {words}: {said}", *reasons.known))
    summary = f"lengths that end inside a block are wrong: in {first.layout} it is right at {words}"
    fix = "mask its loads and stores by the length, or refuse other lengths before the first launch"
    layouts = [name for found in merged for name in reasons.shown.get(found.fault, (first.layout,))]
    where = tuple(at for found in merged for at in found.where)
    cause = Diagnosis("tail/length", "M3", summary, 1.0, where=where, fix=fix)
    return _led(reasons, cause, merged, layouts, _FEW)


def _led(reasons: Reasons, cause: Diagnosis, merged: Sequence[Diagnosis], layouts: Sequence[str], few: int) -> Reasons:
    """The reasons with a cause in the place of some diagnoses; beyond edits where it is alone and in many lines."""
    lines = {(at.file, at.line): at for at in cause.where}
    cause = structs.replace(cause, where=tuple(lines.values()), seen="seen while it ran")
    led = reasons.led_by(cause, merged, dict.fromkeys(layouts))
    return replace(led, is_beyond_edits=len(lines) > few and not any(found.also for found in led.diagnoses))


@door("contiguous", lambda reasons, *args: reasons)
def with_contiguous(reasons: Reasons, runs: Sequence[LayoutRun], calls: Mapping[str, Sequence[KernelCall]]) -> Reasons:
    """The reasons, where kernels are right in the first layout and misread tensors of which they get no stride.

    Args:
        calls: the launches of each layout.
    """
    failing = [run for run in runs if run.verdict == MISMATCH]
    if runs[0].verdict != MATCH or not failing or reasons.predicted:
        return reasons
    misread, kernels = list[Diagnosis](), dict[str, None]()
    for found in reasons.diagnoses:
        of = dict.fromkeys(where.kernel for where in found.where)
        if found.kind in _MISREAD and _gets_no_stride(tensor_of(found), [*of], runs[0], failing, calls):
            misread.append(found)
            kernels |= of
    if not misread:
        return reasons
    tensors = list(dict.fromkeys(title(tensor_of(found)) for found in misread))
    taken = "they are" if tensors[1:] else "it is"
    summary = f"no stride of {listed(tensors)} reaches {listed([*kernels])}: {taken} taken for contiguous"
    fix = "pass the strides to the kernels, or call .contiguous() or refuse other layouts before the first launch"
    where = tuple(at for found in misread for at in found.where[:1])
    cause = Diagnosis("layout/contiguous", "S2", summary, 1.0, where=where, fix=fix)
    return _led(reasons, cause, misread, [run.layout for run in failing], 0)


def _gets_no_stride(
    tensor: str,
    kernels: Sequence[str],
    first: LayoutRun,
    failing: Sequence[LayoutRun],
    calls: Mapping[str, Sequence[KernelCall]],
) -> bool:
    """Whether launches are given numbers, and none is a stride that the tensor has in a failing layout alone."""
    plain, is_asked = _long_strides(first, tensor), False
    for run in failing:
        own = _long_strides(run, tensor) - plain - {0}
        given = set[int]()
        for call in calls.get(run.layout, ()):
            given |= {*call.numbers} if call.name in kernels else set()
        if any(number % stride == 0 for number in given - {0} for stride in own):  # a stride in bytes is a multiple
            return False
        is_asked |= bool(own and given)
    return is_asked


def _long_strides(run: LayoutRun, tensor: str) -> set[int]:
    """Its longest two: a short one may be another number's, such as how many heads there are."""
    laid = (each.strides for each in run.laid if each.name.lower() == tensor)
    return {stride for strides in laid for stride in sorted(strides)[-2:]}
