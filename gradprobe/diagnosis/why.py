"""Runs -> Reasons: the diagnoses of every failing layout, best first, and what is known where none fits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from ..faults.hypothesis import Observed
from ..model.failures import fault_words
from ..model.intermediates import is_named_after, title
from ..model.layout_run import MATCH, MISMATCH
from ..model.mechanisms import door, spoken
from ..model.number import LAMBDA, listed
from ..model.report import Diagnosis, Where, causes_among
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment
from .behaviour import observed_in
from .causes import CauseSearch, FailingLayout, fact_about, failing_layouts
from .lines import of_strays
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
    is_beyond_edits: bool = False
    """Whether the one cause lies in more lines than an edit that is tried changes."""


@dataclass
class FailedCheck:
    """A check that failed, and what is told of it beside its diagnoses."""

    experiment: Experiment
    runs: Sequence[LayoutRun]
    calls: Mapping[str, Sequence[KernelCall]] = field(default_factory=dict)
    """The launches of each layout."""
    right_at: Callable[[LayoutRun], str] = lambda first: ""
    """Runs the target at other lengths, in the first layout, and says at which it is right; "" at none."""
    known: list[str] = field(default_factory=list)
    predicted: set[str] = field(default_factory=set)
    """The faults that give the numbers that came."""
    is_sought: bool = True
    is_beyond_edits: bool = False


def reasons_of(check: FailedCheck) -> Reasons:
    """Why runs with a wrong element went wrong, in every layout; and what is told of memory.

    What goes wrong in here is told, and no verdict depends on it.
    """
    strays = ((run.layout, stray) for run in check.runs for stray in run.memory)
    found = [*of_strays(strays, [run.layout for run in check.runs if run.measured is not None])]
    for explain in EXPLAINERS:
        try:
            found = explain(check, found)
        except Exception as error:
            check.known.append(f"no reason could be sought, by a fault of gradprobe: {fault_words(error)}")
            check.is_sought = False
    faults = {("fault", diagnosis.fault) for diagnosis in found}
    spoken(faults.__contains__)
    return Reasons(tuple(found), tuple(check.known), check.is_sought, check.is_beyond_edits)


def by_numbers(check: FailedCheck, memory: list[Diagnosis]) -> list[Diagnosis]:
    """What gives the wrong numbers of every layout, among what was seen of memory."""
    failing = list[LayoutRun]()
    for run in check.runs:
        measured = run.measured and (run.measured.as_read or run.measured)
        if measured is not None and not measured.comparison.matches:
            failing.append(replace(run, measured=measured))
    if not failing:
        return memory
    of_results = [found for found in memory if found.kind in _OF_RESULTS]
    memory = [found for found in memory if found not in of_results]
    # Another convention counts as wrong with --strict alone, and is told beside.
    case = replace(check.experiment.case, strict=False)
    experiment, plain = replace(check.experiment, case=case), [run for run in failing if run.is_plain]
    if case.scores > MOST_SCORES:
        return _by_a_smaller_case(check, experiment, plain or failing, memory)
    if not plain:
        if not failing[0].inside:
            check.known.append("right with the case's own values, wrong with others")
        check.known.append(fact_about(observed_in(experiment, failing[0])))
        return memory
    search, layouts = CauseSearch(experiment), failing_layouts(experiment, plain)
    for layout in layouts:
        search.explain(layout)
    found = _in_order(search.found, memory, layouts)
    check.known += search.facts
    check.predicted |= search.predicted
    if not causes_among(found):  # of two results in one memory the one was written over the other
        wrong, shared = {*layouts[0].seen.own}, [each for each in of_results if each.kind == "shared"]
        shared = [each for each in shared if wrong & {*each.summary.replace(":", " ").split()}]
        found, check.known = [*shared, *found], [] if shared else check.known
    for at, diagnosis in enumerate(found):
        if diagnosis.is_named and not diagnosis.seen and len(diagnosis.layouts) > 1:
            said = f"layouts that show it: {', '.join(diagnosis.layouts)}"
            found[at] = structs.replace(diagnosis, evidence=(*diagnosis.evidence, said))
    return found


def _by_a_smaller_case(
    check: FailedCheck, experiment: Experiment, failing: Sequence[LayoutRun], memory: list[Diagnosis]
) -> list[Diagnosis]:
    small = smaller_failing(experiment, failing)
    if small is None:
        check.known, check.is_sought = [_TOO_LARGE], False
        return memory
    of_small, words = FailedCheck(small.experiment, small.runs), f"sought on {small.words}"
    found, of_large = by_numbers(of_small, memory), {diagnosis.fault for diagnosis in memory}
    for at, diagnosis in enumerate(found):
        if diagnosis.fault not in of_large:
            found[at] = structs.replace(diagnosis, evidence=(*diagnosis.evidence, words))
            break
    check.known, check.predicted = [words, *of_small.known] if of_small.known else [], of_small.predicted
    return found


def by_convention(check: FailedCheck, found: list[Diagnosis]) -> list[Diagnosis]:
    """What --strict alone counts as wrong, since it is exported in another convention, before all else."""
    exports = dict[Diagnosis, list[str]]()
    for run in check.runs:
        measured = run.measured
        for of in measured.conventions if measured is not None and measured.as_read is not None else ():
            summary = f"exports {of.relation} as {of.name}, another convention; the gradients made of it are right"
            fix = f"return {of.name} itself, or leave out --strict"
            export = Diagnosis(f"convention/{of.name}", "A", summary, 1.0, fix=fix, says_wrong=(of.name,))
            exports.setdefault(export, []).append(run.layout)
    if exports:
        check.is_beyond_edits = not causes_among(found)
    for export, layouts in reversed(exports.items()):
        found = _led(structs.replace(export, layouts=tuple(layouts)), found)
    return found


# --- what was seen of memory, among the causes


def _in_order(
    found: Sequence[Diagnosis], memory: Sequence[Diagnosis], layouts: Sequence[FailingLayout]
) -> list[Diagnosis]:
    """What explains most; but what was seen of memory comes before numbers that only depend on it."""
    found, memory = told_once(found, memory)
    worst, spoiling = {tensor_of(each): each.fault for each in reversed(memory)}, set[str]()
    for layout in layouts:
        names = {name.lower() for name in layout.spoilt.intersection(layout.seen.own)}
        spoiling |= {worst[name] for name in names & worst.keys()}
    memory = [structs.replace(each, also=True) if each.fault in spoiling else each for each in memory]
    named = [each for each in found if each.is_named]
    cause = named[0] if named else None
    is_about_them = cause is not None and tensor_of(cause) in {tensor_of(each) for each in memory}
    first = list[Diagnosis]()
    for each in memory:
        is_here = cause is None or layouts[0].name in each.layouts
        # What was seen to wrap around says why an access goes elsewhere.
        if each.kind == "wrap" or (is_here and _comes_first(each, cause, layouts[0].seen, is_about_them)):
            first.append(each)
    return list(dict.fromkeys([*first, *named, *memory, *found]))


def told_once(found: Sequence[Diagnosis], memory: Sequence[Diagnosis]) -> tuple[list[Diagnosis], list[Diagnosis]]:
    """A named cause that was seen in memory too has that for evidence, and its lines; it is told once."""
    twins, joined = {each.fault: each for each in memory}, list[Diagnosis]()
    unwritten = [each for each in memory if each.kind == "unwritten"]
    # What depends on memory that nothing wrote is the one tensor that is read so.
    read = unwritten[0] if len({each.fault for each in unwritten}) == 1 else None
    for cause in found:
        twin = twins.get(cause.fault, read if cause.kind == "unwritten" else None) if cause.is_named else None
        if twin is None:
            joined.append(cause)
            continue
        memory = [each for each in memory if each.fault != twin.fault]
        lines = {(where.file, where.line): where for where in (*twin.where, *cause.where)}
        layouts = tuple(dict.fromkeys((*cause.layouts, *twin.layouts)))
        evidence = (*cause.evidence, twin.summary)
        joined.append(structs.replace(cause, evidence=evidence, where=tuple(lines.values()), layouts=layouts))
    return joined, [*memory]


def _comes_first(memory: Diagnosis, cause: Diagnosis | None, seen: Observed, is_about_them: bool) -> bool:
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


def by_length(check: FailedCheck, found: list[Diagnosis]) -> list[Diagnosis]:
    """Another length is right in the first layout: then nothing else is wrong with it there."""
    first, explained = check.runs[0], check.predicted and causes_among(found)
    findings = first.measured.comparison.findings.values() if first.measured is not None else ()
    # No more than a coarser arithmetic errs, which other values at another length may not show.
    is_slight = all(finding.max_ratio <= LAMBDA for finding in findings)
    if first.verdict != MISMATCH or ((explained or is_slight) and not first.memory):
        return found
    words = check.right_at(first)
    if not words:
        return found
    kinds = () if explained or not first.memory else _MISREAD
    merged = [each for each in found if first.layout in each.layouts and each.kind in kinds]
    if not merged:
        said = "it takes multiples of a block, and does not refuse other lengths"
        check.known.insert(0, f"{first.layout}, it is right at {words}: {said}")
        return found
    summary = f"lengths that end inside a block are wrong: in {first.layout} it is right at {words}"
    fix = "mask its loads and stores by the length, or refuse other lengths before the first launch"
    where = [at for each in merged for at in each.where]
    return _merged(check, Diagnosis("tail/length", "M3", summary, 1.0, fix=fix), found, merged, where, _FEW)


@door("contiguous", lambda check, found: found)
def by_contiguity(check: FailedCheck, found: list[Diagnosis]) -> list[Diagnosis]:
    """Kernels are right in the first layout and misread tensors of which they get no stride."""
    misread, kernels = list[Diagnosis](), dict[str, None]()
    for each in found if check.runs[0].verdict == MATCH and not check.predicted else ():
        of = dict.fromkeys(at.kernel for at in each.where)
        if each.kind in _MISREAD and _get_no_stride(check, [*of], tensor_of(each)):
            misread.append(each)
            kernels |= of
    if not misread:
        return found
    tensors = list(dict.fromkeys(title(tensor_of(each)) for each in misread))
    taken = "they are" if tensors[1:] else "it is"
    summary = f"no stride of {listed(tensors)} reaches {listed([*kernels])}: {taken} taken for contiguous"
    fix = "pass the strides to the kernels, or call .contiguous() or refuse other layouts before the first launch"
    where = [at for each in misread for at in each.where[:1]]
    return _merged(check, Diagnosis("layout/contiguous", "S2", summary, 1.0, fix=fix), found, misread, where, 0)


def _get_no_stride(check: FailedCheck, kernels: Collection[str], tensor: str) -> bool:
    """Whether launches are given numbers, and none is a stride that the tensor has in a failing layout alone."""
    first, *others = check.runs
    is_asked = False
    for run in others:
        own = _long_strides(run, tensor) - _long_strides(first, tensor) - {0} if run.verdict == MISMATCH else set()
        calls = [call for call in check.calls.get(run.layout, ()) if call.name in kernels]
        given = {number for call in calls for number in call.numbers} - {0}
        if any(number % stride == 0 for number in given for stride in own):  # a stride in bytes is a multiple
            return False
        is_asked |= bool(own and given)
    return is_asked


def _long_strides(run: LayoutRun, tensor: str) -> set[int]:
    """Its longest two: a short one may be another number's, such as how many heads there are."""
    laid = (each.strides for each in run.laid if each.name.lower() == tensor)
    return {stride for strides in laid for stride in sorted(strides)[-2:]}


def _merged(
    check: FailedCheck,
    cause: Diagnosis,
    found: list[Diagnosis],
    merged: list[Diagnosis],
    where: Sequence[Where],
    few: int,
) -> list[Diagnosis]:
    """The diagnoses with a cause in the place of some; beyond edits where it is alone and in many lines."""
    lines = {(at.file, at.line): at for at in where}
    layouts = tuple(dict.fromkeys(name for each in merged for name in each.layouts))
    cause = structs.replace(cause, where=tuple(lines.values()), seen="seen while it ran", layouts=layouts)
    led = _led(cause, found, merged)
    check.is_beyond_edits = len(lines) > few and not any(each.also for each in led)
    return led


def _led(cause: Diagnosis, found: Sequence[Diagnosis], merged: Sequence[Diagnosis] = ()) -> list[Diagnosis]:
    """One cause in the place of some diagnoses; other causes stand beside it."""
    causes, led = causes_among(found), [cause]
    for diagnosis in found:
        if diagnosis not in merged:
            led.append(structs.replace(diagnosis, also=True) if diagnosis in causes else diagnosis)
    return led


# Each is given what those before it found, and gives all that is told then, the best first.
EXPLAINERS: tuple[Callable[[FailedCheck, list[Diagnosis]], list[Diagnosis]], ...] = (
    by_numbers,  # hypotheses, further runs and the dataflow, beside what was seen of memory
    by_length,
    by_contiguity,
    by_convention,
)
