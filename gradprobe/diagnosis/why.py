"""The diagnoses of every failing layout, best first, or what is known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product, repeat, starmap
from operator import attrgetter

from msgspec import structs

from ..faults.hypothesis import WrongRun
from ..model.failures import fault_words
from ..model.intermediates import is_named_after
from ..model.layout_run import MISMATCH
from ..model.memory_finding import MemoryFinding
from ..model.number import LAMBDA
from ..model.report import CauseLine, Diagnosis, causes_among
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment
from .behaviour import observed_in
from .causes import CauseSearch, FailingLayout, fact_about, failing_layouts
from .lines import of_strays
from .smaller import MOST_SCORES, smaller_failing

_TOO_LARGE = "no cause was sought: it is too large, and no smaller case fails alike; gradprobe shrink looks further"
# Where as many lines lack a mask, it is no slip that an edit could mend: the kernel was written without.
_FEW = 3
# What leaves a tensor, or meets another program's there; and what is seen of the same in the elements.
_MISREAD = ("race", "outside", "load", "store", "masked")


@dataclass(frozen=True)
class Reasons:
    diagnoses: tuple[Diagnosis, ...] = ()  # best first
    known: tuple[str, ...] = ()  # what no hypothesis explains
    sought: bool = True
    is_beyond_edits: bool = False


@dataclass
class FailedCheck:
    experiment: Experiment
    runs: Sequence[LayoutRun]
    right_at: Callable[[LayoutRun], str] = lambda first: ""  # at which other lengths it is right
    known: list[str] = field(default_factory=list)
    predicted: set[str] = field(default_factory=set)
    is_sought: bool = True
    is_beyond_edits: bool = False


def reasons_of(check: FailedCheck) -> Reasons:
    """An error in here is told; no verdict needs it."""
    strays, measured = list[tuple[str, MemoryFinding]](), list[str]()
    for run in check.runs:
        strays += zip(repeat(run.layout), run.memory)
        if run.measured is not None:
            measured.append(run.layout)
    found = [*of_strays(strays, measured)]
    for explain in EXPLAINERS:
        try:
            found = explain(check, found)
        except Exception as error:
            fault = fault_words(error)
            check.known.append(f"no reason was sought, by a fault of gradprobe: {fault}")
            check.is_sought = False
    return Reasons(tuple(found), tuple(check.known), check.is_sought, check.is_beyond_edits)


def by_numbers(check: FailedCheck, memory: list[Diagnosis]) -> list[Diagnosis]:
    failing = list[LayoutRun]()
    for run in check.runs:
        measured = run.measured and (run.measured.as_read or run.measured)
        if measured is not None and not measured.comparison.matches:
            failing.append(replace(run, measured=measured))
    if not failing:
        return memory
    # Another convention counts as wrong with --strict alone, and is told beside.
    case = replace(check.experiment.case, strict=False)
    experiment = replace(check.experiment, case=case)
    plain = [run for run in failing if run.is_plain]
    # These two make no number wrong.
    memory = [each for each in memory if each.kind not in ("shared", "dtype")]
    if case.scores > MOST_SCORES:
        small = smaller_failing(experiment, plain or failing)
        if small is not None:
            return _by_a_smaller_case(check, small, memory)
        check.known, check.is_sought = [_TOO_LARGE], False
        return memory
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
    check.predicted |= search.predicted.keys()
    for at, each in enumerate(found):
        if each.is_named and not each.seen and len(each.layouts) > 1:
            found[at] = _with_evidence(each, f"layouts that show it: {', '.join(each.layouts)}")
    return found


def _with_evidence(diagnosis: Diagnosis, sentence: str) -> Diagnosis:
    return structs.replace(diagnosis, evidence=(*diagnosis.evidence, sentence))


def _by_a_smaller_case(
    check: FailedCheck, small: tuple[Experiment, list[LayoutRun], str], memory: list[Diagnosis]
) -> list[Diagnosis]:
    experiment, runs, size = small
    of_small, words = FailedCheck(experiment, runs), f"sought on {size}"
    found, of_large = by_numbers(of_small, memory), {each.fault for each in memory}
    for at, each in enumerate(found):
        if each.fault not in of_large:
            found[at] = _with_evidence(each, words)
            break
    check.known = [words, *of_small.known] if of_small.known else []
    check.predicted = of_small.predicted
    return found


def by_convention(check: FailedCheck, found: list[Diagnosis]) -> list[Diagnosis]:
    measured = filter(None, map(attrgetter("measured"), check.runs))
    read = next(filter(attrgetter("as_read"), measured), None)
    if read is None:
        return found
    check.is_beyond_edits = not causes_among(found)
    for of in reversed(read.conventions):
        summary = f"exports {of.relation} as {of.name}, another convention; the gradients made of it are right"
        fix, about = (
            f"return {of.name}, or leave out --strict",
            (f"convention/{of.name}", "A", summary),
        )
        found = _led(Diagnosis(*about, 1.0, fix=fix, says_wrong=(of.name,)), found)
    return found


# --- what was seen of memory, among the causes


def _in_order(
    found: Sequence[Diagnosis], memory: Sequence[Diagnosis], layouts: Sequence[FailingLayout]
) -> list[Diagnosis]:
    found, memory = told_once(found, memory)
    cause, first = next(filter(attrgetter("is_named"), found), None), layouts[0]
    stored = chain(*(layout.spoilt.intersection(layout.seen.own) for layout in layouts))
    spoilt = {*map(str.lower, stored)}
    for at, each in enumerate(memory):
        if tensor_of(each) in spoilt:
            spoilt.remove(tensor_of(each))
            memory[at] = structs.replace(each, also=True)
    is_about_them = cause is not None and tensor_of(cause) in map(tensor_of, memory)

    def rank(each: Diagnosis) -> int:
        if each not in memory:
            return 1 if each.is_named else 3
        if each.kind == "wrap":  # it says why an access goes elsewhere
            return 0
        is_here = cause is None or first.run.layout in each.layouts
        return 0 if is_here and _comes_first(each, cause, first.seen, is_about_them) else 2

    return sorted([*memory, *found], key=rank)


def told_once(
    found: Sequence[Diagnosis], memory: Sequence[Diagnosis]
) -> tuple[list[Diagnosis], list[Diagnosis]]:
    twins, joined = {each.fault: each for each in memory}, list[Diagnosis]()
    unwritten = [each for each in memory if each.kind == "unwritten"]
    for cause in found:
        # What depends on memory that nothing wrote is the one tensor that is read so.
        read = unwritten[0] if cause.kind == "unwritten" and len(unwritten) == 1 else None
        twin = twins.get(cause.fault, read) if cause.is_named else None
        if twin is not None:
            memory = [each for each in memory if each.fault != twin.fault]
            evidence, where = (*cause.evidence, twin.summary), _by_place(twin.where, cause.where)
            layouts = tuple(dict.fromkeys((*cause.layouts, *twin.layouts)))
            whole = structs.replace(cause, evidence=evidence, where=where, layouts=layouts)
        joined.append(cause if twin is None else whole)
    return joined, [*memory]


def _by_place(*some: Sequence[CauseLine]) -> tuple[CauseLine, ...]:
    return tuple({(where.file, where.line): where for where in chain(*some)}.values())


def _comes_first(
    memory: Diagnosis, cause: Diagnosis | None, seen: WrongRun, is_about_them: bool
) -> bool:
    # A race comes first, unless the cause stores that tensor elsewhere or reads elsewhere in its kernel; others do in
    # the kernels of what is wrong, unless the cause is about one of their tensors.
    kernels = {*map(attrgetter("kernel"), memory.where)} - {""}
    kind, where = (cause.kind, cause.where) if cause is not None else ("", ())
    if memory.fault_class == "RACE":
        if kind == "load" and where and where[0].kernel in kernels:
            return False
        is_stored = kind in ("store", "accumulation")
        if cause is None or not is_stored or tensor_of(cause) != tensor_of(memory):
            return True
    if is_about_them or memory.kind == "overwritten":
        return False
    # P, dP and dS are computed in several kernels.
    is_named = any(starmap(is_named_after, product(kernels, seen.own)))
    return is_named or not {"P", "dP", "dS"}.isdisjoint(seen.own)


def tensor_of(diagnosis: Diagnosis) -> str:
    return diagnosis.fault.partition("/")[2].partition("-")[0].lower()


# --- what a target should have refused: one cause in place of many


def by_length(check: FailedCheck, found: list[Diagnosis]) -> list[Diagnosis]:
    """Where another length is right in the first layout nothing else is wrong there."""
    first, explained = check.runs[0], check.predicted and causes_among(found)
    findings = first.measured.comparison.findings.values() if first.measured is not None else ()
    # No more than a coarser arithmetic errs, which other values at another length may not show.
    is_slight = all(finding.max_ratio <= LAMBDA for finding in findings)
    is_asked = first.verdict == MISMATCH and (first.memory or not (explained or is_slight))
    words = check.right_at(first) if is_asked else ""
    if not words:
        return found
    merged = [each for each in found if first.layout in each.layouts and each.kind in _MISREAD]
    if explained or not (first.memory and merged):
        said = "it takes multiples of a block, and does not refuse other lengths"
        check.known.insert(0, f"{first.layout}, it is right at {words}: {said}")
        return found
    summary = (
        f"lengths that end inside a block are wrong: in {first.layout} it is right at {words}"
    )
    fix = "mask its loads and stores by the length, or refuse other lengths"
    layouts = tuple(dict.fromkeys(chain(*map(attrgetter("layouts"), merged))))
    where, seen = _by_place(*map(attrgetter("where"), merged)), "seen while it ran"
    about = "tail/length", "M3", summary, 1.0, (), where, fix
    cause = Diagnosis(*about, seen=seen, layouts=layouts)
    led = _led(cause, [each for each in found if each not in merged])
    check.is_beyond_edits = len(where) > _FEW and not any(each.also for each in led)
    return led


def _led(cause: Diagnosis, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    causes, led = causes_among(found), [cause]
    for diagnosis in found:
        is_cause = diagnosis in causes
        led.append(structs.replace(diagnosis, also=True) if is_cause else diagnosis)
    return led


# Each is given what those before it found, and gives all that is told then, the best first.
EXPLAINERS: tuple[Callable[[FailedCheck, list[Diagnosis]], list[Diagnosis]], ...] = (
    # Hypotheses, further runs and the dataflow, beside what was seen of memory.
    by_numbers,
    by_length,
    by_convention,
)
