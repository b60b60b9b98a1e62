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
from .causes import CauseSearch, fact_about, failing_layouts
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
