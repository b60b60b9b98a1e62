"""Runs -> Reasons: the diagnoses of every failing layout, best first, and what is known where none fits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from ..faults.hypothesis import Hypothesis, Observed
from ..model.failures import fault_words
from ..model.intermediates import is_named_after
from ..model.layout_run import MISMATCH, VisitedPairs
from ..model.mechanisms import spoken
from ..model.report import NAMED, Diagnosis, causes_among
from ..numerics.evidence import LayoutRun
from ..numerics.rows import rows_of
from ..probing.experiment import Experiment
from .behaviour import Again, later_call_differs
from .causes import CauseSearch
from .exports import of_conventions, still_failing
from .facts import facts_about
from .layouts import failing_layouts
from .lines import of_strays
from .prediction import observed_in
from .smaller import MOST_SCORES, smaller_failing

_TOO_LARGE = (
    "no cause was sought: this case is too large, and no smaller one fails in the same way; "
    "gradprobe shrink looks further"
)
_RACE = "RACE"
_UNWRITTEN = "unwritten/"
# What is wrong only where it comes before the last read.
_OF_INPUTS = "overwritten/"
# What is seen to read or write elsewhere: programs that take too little of their number race too.
_MISREAD = ("load/",)
# What was seen to wrap around says why an access goes elsewhere.
_WRAPS = "wrap/"
# What makes two programs write to one place.
_OF_STORES = ("store/", "accumulation/")
# What makes no number wrong.
_SHARED = "shared/"
_OF_RESULTS = (_SHARED, "dtype/")


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
    visited: Mapping[str, tuple[VisitedPairs, ...]] = field(default_factory=dict)
    """By layout that was followed, what each result was summed over."""
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
        return _reasons_of(experiment, runs, memory)
    except Exception as error:
        fault = fault_words(error)
        return Reasons(memory, (f"no reason could be sought, by a fault of gradprobe: {fault}",), sought=False)


def _reasons_of(experiment: Experiment, runs: Sequence[LayoutRun], memory: tuple[Diagnosis, ...]) -> Reasons:
    if exports := of_conventions(runs):
        return _beside_exports(experiment, runs, memory, exports)
    failing = [run for run in runs if run.measured is not None and not run.measured.comparison.matches]
    if not failing:
        return Reasons(memory)
    case = experiment.case
    of_results = [one for one in memory if one.fault.startswith(_OF_RESULTS)]
    memory = tuple(one for one in memory if one not in of_results)
    plain = [run for run in failing if run.is_plain]
    if case.scores > MOST_SCORES:
        return _of_a_smaller_case(experiment, plain or failing, memory)
    if not plain:
        return _of_other_values(experiment, runs, failing[0], memory)
    reasons = _of_failing(experiment, plain, memory)
    told = {("fault", one.fault) for one in reasons.diagnoses}
    spoken(told.__contains__)
    named = reasons.diagnoses and reasons.diagnoses[0].explained >= NAMED
    written = () if named else _written_over(of_results, plain[0])
    return replace(reasons, diagnoses=(*written, *reasons.diagnoses), known=() if written else reasons.known)


def _beside_exports(
    experiment: Experiment,
    runs: Sequence[LayoutRun],
    memory: tuple[Diagnosis, ...],
    exports: Mapping[Diagnosis, tuple[str, ...]],
) -> Reasons:
    """What is exported in another convention, and why all else is wrong, which is sought as without --strict."""
    lenient = replace(experiment, case=replace(experiment.case, strict=False))
    reasons = _reasons_of(lenient, still_failing(runs), memory)
    others = (structs.replace(one, also=True) if one in reasons.causes else one for one in reasons.diagnoses)
    shown = {**reasons.shown, **{one.fault: layouts for one, layouts in exports.items()}}
    return replace(reasons, diagnoses=(*exports, *others), shown=shown, is_beyond_edits=not reasons.causes)


def _of_a_smaller_case(experiment: Experiment, failing: Sequence[LayoutRun], memory: tuple[Diagnosis, ...]) -> Reasons:
    found = smaller_failing(experiment, failing)
    if found is None:
        return Reasons(memory, (_TOO_LARGE,), sought=False)
    reasons = _reasons_of(found.experiment, found.runs, memory)
    words = f"sought on {found.words}"
    of_large = {one.fault for one in memory}
    first = next((one for one in reasons.diagnoses if one.fault not in of_large), None)
    told = tuple(
        structs.replace(one, evidence=(*one.evidence, words)) if one is first else one for one in reasons.diagnoses
    )
    known = (words, *reasons.known) if reasons.known else ()
    return replace(reasons, diagnoses=told, known=known, visited={})


def _written_over(of_results: Sequence[Diagnosis], run: LayoutRun) -> tuple[Diagnosis, ...]:
    """Where two gradients have memory in common and one is wrong by itself: the other was written over it."""
    assert run.measured is not None
    wrong = [name for name, one in run.measured.comparison.findings.items() if one.status == MISMATCH]
    shared = (one for one in of_results if one.fault.startswith(_SHARED))
    return tuple(one for one in shared if set(wrong) & set(one.summary.replace(":", " ").split()))


def _of_failing(experiment: Experiment, failing: Sequence[LayoutRun], memory: Sequence[Diagnosis]) -> Reasons:
    layouts, search = failing_layouts(experiment, failing), CauseSearch(experiment)
    for layout in layouts:
        search.explain(layout)
    first = layouts[0]
    here = {one.fault for one in of_strays((first.name, one) for one in first.run.memory)}
    worst = {tensor_of(one): one for one in reversed(memory)}
    spoilt: dict[Diagnosis, list[str]] = {}
    for layout in layouts:
        named = {worst[key] for name in layout.spoilt & set(layout.seen.own) if (key := name.lower()) in worst}
        for one in named:
            spoilt.setdefault(one, []).append(layout.name)
    memory = [structs.replace(one, also=True) if one in spoilt else one for one in memory]
    shown = {one.fault: tuple(names) for one, names in spoilt.items()}
    found = in_order(*told_once(search.diagnoses, memory), first.seen, here)
    shown |= search.shown
    return Reasons(tuple(found), search.facts, True, shown, search.predicted, visited=search.visited)


def _of_other_values(
    experiment: Experiment, runs: Sequence[LayoutRun], failing: LayoutRun, memory: Sequence[Diagnosis]
) -> Reasons:
    """Where the case's own values came out right and others did not: is it the values, or that calls differ?"""
    right = next((run for run in runs if run.is_plain and run.assigned == failing.assigned and run.measured), None)
    if right is not None:
        later = later_call_differs(Again(experiment, failing.assigned, observed_in(experiment, right)))
        if later is not None:
            return Reasons((later, *memory))
    assert failing.measured is not None
    rows = rows_of(experiment.case, failing.measured.comparison.recovery)
    facts = () if rows else facts_about(observed_in(experiment, failing))
    words = () if failing.inside else ("right with the case's own values, wrong with others",)
    return Reasons(tuple(memory), (*words, *facts))


def told_once(found: Sequence[Diagnosis], memory: Sequence[Diagnosis]) -> tuple[list[Diagnosis], list[Diagnosis]]:
    """A named cause that was seen in memory too has that for evidence, and its lines; it is told once."""
    named = {one.fault for one in found if one.explained >= NAMED}
    of_memory = {one.fault: one for one in memory if one.fault in named} | _unwritten(named, memory)
    joined = [_joined(one, of_memory[one.fault]) if one.fault in of_memory else one for one in found]
    return joined, [one for one in memory if one not in of_memory.values() and one.fault not in named]


def _unwritten(named: Collection[str], memory: Sequence[Diagnosis]) -> dict[str, Diagnosis]:
    """By what depends on memory that nothing wrote: the read of such, where only one tensor is read so."""
    read = [one for one in memory if one.fault.startswith(_UNWRITTEN)]
    known = len({one.fault for one in read}) == 1
    return {fault: read[0] for fault in named if known and fault.startswith(_UNWRITTEN)}


def _joined(cause: Diagnosis, memory: Diagnosis) -> Diagnosis:
    lines = {(where.file, where.line): where for where in (*memory.where, *cause.where)}
    return structs.replace(cause, evidence=(*cause.evidence, memory.summary), where=tuple(lines.values()))


def in_order(
    found: Sequence[Diagnosis], memory: Sequence[Diagnosis], seen: Observed, here: Collection[str]
) -> list[Diagnosis]:
    """What explains most; but what was seen of memory comes before numbers that only depend on it.

    A race does, unless a named fault stores that very tensor elsewhere, or where it is to add; an access outside and a
    read of what nothing wrote do in the kernels of what is wrong, unless a named fault reads that very tensor.

    Args:
        here: the faults of memory that were seen in the first layout.
    """
    named = [one for one in found if one.explained >= NAMED]
    arrays = {tensor_of(one) for one in memory}
    explains_them = any(tensor_of(one) in arrays for one in named[:1])
    stored = {tensor_of(one) for one in named[:1] if one.fault.startswith(_OF_STORES)}
    misread = {where.kernel for one in named[:1] if one.fault.startswith(_MISREAD) for where in one.where[:1]}
    first = [
        one
        for one in memory
        if one.fault.startswith(_WRAPS)
        or (one.fault in here or not named)
        and not (one.fault_class == _RACE and _lies_in(one, misread))
        and (
            (one.fault_class == _RACE and tensor_of(one) not in stored)
            or (not explains_them and _in_kernel_of(one, seen.own))
        )
    ]
    order = [*first, *named, *(one for one in memory if one not in first), *found]
    return list(dict.fromkeys(order))


def _lies_in(diagnosis: Diagnosis, kernels: Collection[str]) -> bool:
    return any(where.kernel in kernels for where in diagnosis.where)


def tensor_of(diagnosis: Diagnosis) -> str:
    return diagnosis.fault.partition("/")[2].partition("-")[0].lower()


def _in_kernel_of(diagnosis: Diagnosis, own: Sequence[str]) -> bool:
    """Whether a finding lies in a kernel that computes one of these; P, dP and dS are computed in several.

    An input that is overwritten may be so after its last read.
    """
    if diagnosis.fault.startswith(_OF_INPUTS):
        return False
    anywhere = bool({"P", "dP", "dS"} & set(own))
    return anywhere or any(is_named_after(where.kernel, name) for where in diagnosis.where for name in own)
