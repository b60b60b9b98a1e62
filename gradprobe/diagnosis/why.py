"""Runs -> Reasons: the diagnoses of every failing layout, best first, and what is known where none fits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from ..faults.hypothesis import Hypothesis, Observed
from ..model.failures import fault_words
from ..model.intermediates import is_named_after
from ..model.layout_run import MISMATCH
from ..model.mechanisms import spoken
from ..model.report import Diagnosis, causes_among
from ..numerics.evidence import LayoutRun
from ..numerics.rows import rows_of
from ..probing.experiment import Experiment
from .behaviour import Again, later_call_differs
from .causes import CauseSearch
from .layouts import facts_about, failing_layouts
from .lines import of_strays
from .prediction import observed_in
from .smaller import MOST_SCORES, smaller_failing

_TOO_LARGE = (
    "no cause was sought: this case is too large, and no smaller one fails in the same way; "
    "gradprobe shrink looks further"
)
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
        return _reasons_of(experiment, runs, memory)
    except Exception as error:
        fault = fault_words(error)
        return Reasons(memory, (f"no reason could be sought, by a fault of gradprobe: {fault}",), sought=False)


def _reasons_of(experiment: Experiment, runs: Sequence[LayoutRun], memory: Sequence[Diagnosis]) -> Reasons:
    if exports := _conventions(runs):
        return _beside_exports(experiment, runs, memory, exports)
    failing = [run for run in runs if run.measured is not None and not run.measured.comparison.matches]
    if not failing:
        return Reasons(tuple(memory))
    of_results = [one for one in memory if one.kind in _OF_RESULTS]
    memory = [one for one in memory if one not in of_results]
    plain = [run for run in failing if run.is_plain]
    if experiment.case.scores > MOST_SCORES:
        return _of_a_smaller_case(experiment, plain or failing, memory)
    if not plain:
        return _of_other_values(experiment, runs, failing[0], memory)
    reasons = _of_failing(experiment, plain, memory)
    told = {("fault", one.fault) for one in reasons.diagnoses}
    spoken(told.__contains__)
    named = reasons.diagnoses and reasons.diagnoses[0].is_named
    written = () if named else _written_over(of_results, plain[0])
    return replace(reasons, diagnoses=(*written, *reasons.diagnoses), known=() if written else reasons.known)


def _conventions(runs: Sequence[LayoutRun]) -> dict[Diagnosis, tuple[str, ...]]:
    """The exports that --strict alone counts as wrong, since they follow a convention, each with its layouts."""
    found: dict[Diagnosis, tuple[str, ...]] = {}
    for run in runs:
        measured = run.measured
        for of in measured.conventions if measured is not None and measured.as_read is not None else ():
            summary = f"exports {of.relation} as {of.name}, another convention; the gradients made of it are right"
            said = ("--strict counts it as wrong; without --strict it is a note",)
            fault, fix = f"convention/{of.name}", f"return {of.name} itself, or leave out --strict"
            export = Diagnosis(fault, "A", summary, 1.0, said, fix=fix, says_wrong=(of.name,))
            found[export] = (*found.get(export, ()), run.layout)
    return {structs.replace(one, also=at > 0): layouts for at, (one, layouts) in enumerate(found.items())}


def _beside_exports(
    experiment: Experiment,
    runs: Sequence[LayoutRun],
    memory: Sequence[Diagnosis],
    exports: Mapping[Diagnosis, tuple[str, ...]],
) -> Reasons:
    """What is exported in another convention, and why all else is wrong, which is sought as without --strict."""
    lenient = replace(experiment, case=replace(experiment.case, strict=False))
    left = list[LayoutRun]()
    for run in runs:
        measured = (run.measured.as_read or run.measured) if run.measured is not None else None
        if measured is not None and not measured.comparison.matches:
            left.append(replace(run, measured=measured))
    reasons = _reasons_of(lenient, left, memory)
    is_beyond_edits = not reasons.causes
    for export, layouts in reversed([*exports.items()]):
        reasons = reasons.led_by(export, (), layouts)
    return replace(reasons, is_beyond_edits=is_beyond_edits)


def _of_a_smaller_case(experiment: Experiment, failing: Sequence[LayoutRun], memory: Sequence[Diagnosis]) -> Reasons:
    found = smaller_failing(experiment, failing)
    if found is None:
        return Reasons(tuple(memory), (_TOO_LARGE,), sought=False)
    reasons = _reasons_of(found.experiment, found.runs, memory)
    words, of_large = f"sought on {found.words}", {one.fault for one in memory}
    told = list(reasons.diagnoses)
    for at, diagnosis in enumerate(told):
        if diagnosis.fault not in of_large:
            told[at] = structs.replace(diagnosis, evidence=(*diagnosis.evidence, words))
            break
    known = (words, *reasons.known) if reasons.known else ()
    return replace(reasons, diagnoses=tuple(told), known=known)


def _written_over(of_results: Sequence[Diagnosis], run: LayoutRun) -> tuple[Diagnosis, ...]:
    """Where two gradients have memory in common and one is wrong by itself: the other was written over it."""
    assert run.measured is not None
    wrong = {name for name, of in run.measured.comparison.findings.items() if of.status == MISMATCH}
    shared = (one for one in of_results if one.kind == "shared")
    return tuple(one for one in shared if wrong & set(one.summary.replace(":", " ").split()))


def _of_failing(experiment: Experiment, failing: Sequence[LayoutRun], memory: Sequence[Diagnosis]) -> Reasons:
    layouts, search = failing_layouts(experiment, failing), CauseSearch(experiment)
    for layout in layouts:
        search.explain(layout)
    worst, spoilt = {tensor_of(one): one for one in reversed(memory)}, dict[str, tuple[str, ...]]()
    for layout in layouts:
        names = {name.lower() for name in layout.spoilt.intersection(layout.seen.own)} & worst.keys()
        for fault in {worst[name].fault for name in names}:
            spoilt[fault] = (*spoilt.get(fault, ()), layout.name)
    memory = [structs.replace(one, also=True) if one.fault in spoilt else one for one in memory]
    first = layouts[0]
    here = {one.fault for one in of_strays((first.name, one) for one in first.run.memory)}
    found = in_order(*told_once(search.diagnoses, memory), first.seen, here)
    return Reasons(tuple(found), search.facts, True, spoilt | search.shown, search.predicted)


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
    twins, unwritten = {one.fault: one for one in memory}, [one for one in memory if one.kind == "unwritten"]
    # What depends on memory that nothing wrote is the one tensor that is read so.
    read = unwritten[0] if len({one.fault for one in unwritten}) == 1 else None
    joined, told = list[Diagnosis](), set[str]()
    for cause in found:
        twin = twins.get(cause.fault, read if cause.kind == "unwritten" else None) if cause.is_named else None
        if twin is not None:
            lines = {(where.file, where.line): where for where in (*twin.where, *cause.where)}
            evidence = (*cause.evidence, twin.summary)
            told.add(twin.fault)
            joined.append(structs.replace(cause, evidence=evidence, where=tuple(lines.values())))
        else:
            joined.append(cause)
    return joined, [one for one in memory if one.fault not in told]


def in_order(
    found: Sequence[Diagnosis], memory: Sequence[Diagnosis], seen: Observed, here: Collection[str]
) -> list[Diagnosis]:
    """What explains most; but what was seen of memory comes before numbers that only depend on it.

    Args:
        here: the faults of memory that were seen in the first layout.
    """
    named = [one for one in found if one.is_named]
    cause = named[0] if named else None
    accused = {tensor_of(one) for one in memory}
    first = list[Diagnosis]()
    for one in memory:
        is_here = cause is None or one.fault in here
        is_about_them = cause is not None and tensor_of(cause) in accused
        # What was seen to wrap around says why an access goes elsewhere.
        if one.kind == "wrap" or (is_here and _comes_first(one, cause, seen, is_about_them=is_about_them)):
            first.append(one)
    return list(dict.fromkeys([*first, *named, *memory, *found]))


def _comes_first(memory: Diagnosis, cause: Diagnosis | None, seen: Observed, *, is_about_them: bool) -> bool:
    """Whether what was seen of memory comes before a named cause.

    A race does, unless the cause stores that very tensor elsewhere, or where it is to add, or is seen to read elsewhere
    in its kernel: programs that take too little of their number race too. An access outside and a read of what nothing
    wrote do in the kernels of what is wrong, unless the cause is about the tensor of any of them. An input that is
    overwritten may be so after its last read.
    """
    if memory.fault_class == "RACE":
        kernel = cause.where[0].kernel if cause and cause.kind == "load" and cause.where else ""
        if kernel and any(where.kernel == kernel for where in memory.where):
            return False
        if not (cause and cause.kind in ("store", "accumulation") and tensor_of(cause) == tensor_of(memory)):
            return True
    if is_about_them or memory.kind == "overwritten":
        return False
    # P, dP and dS are computed in several kernels.
    kernels = [where.kernel for where in memory.where]
    named = any(is_named_after(kernel, name) for kernel in kernels for name in seen.own)
    return named or not {"P", "dP", "dS"}.isdisjoint(seen.own)


def tensor_of(diagnosis: Diagnosis) -> str:
    """The tensor that a fault is about, in small letters."""
    return diagnosis.fault.partition("/")[2].partition("-")[0].lower()
