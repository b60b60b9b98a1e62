"""Runs -> Reasons: the diagnoses of the first failing run, best first, and what is known where none fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs
from torch import Tensor

from ..faults.hypothesis import Hypothesis, Observed
from ..model.intermediates import is_named_after, slots
from ..model.number import in_words, plural, spans
from ..model.report import CONSISTENT, NAMED, Diagnosis
from ..model.run import MATCH, MISMATCH
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment, inputs_of
from ..reference import tiles
from .behaviour import (
    Again,
    differs_from_run_to_run,
    later_call_differs,
    reads_what_was_never_written,
    right_without_dead_rows,
    wrong_in_the_first_call_alone,
)
from .compiled import right_in_another_file, right_in_the_interpreter, right_without_pipelining
from .lines import Lines, of_strays
from .prediction import observed
from .search import Tested, causes, other_causes
from .smaller import MOST_SCORES, size_in_words, smaller_failing

_TILES = (16, 32, 64, 128)
_WORDS = {"b": "batches", "h": "heads", "g": "key heads", "m": "rows", "n": "keys", "w": "distances"}
_WORDS |= {"d": "dims", "e": "dims"}


def known(seen: Observed) -> list[str]:
    """Sentences about the first intermediate that is wrong by itself, and about the run."""
    name = seen.own[0]
    wrong = ~seen.right[name]
    facts = [f"{name}: {int(wrong.sum()):,} of {wrong.numel():,} elements are wrong", *_where(seen, name, wrong)]
    return ["; ".join(facts), *_numbers(seen, name, wrong), *_identities(seen)]


def _where(seen: Observed, name: str, wrong: Tensor) -> Iterator[str]:
    """Which batches, heads, rows and columns, where that is not all of them."""
    axes = seen.case.axes(name)
    letters = [letter for letter in slots(axes) if letter]
    for axis, letter in enumerate(axes):
        if letter == "1" or wrong.shape[axis] == 1:
            continue
        others = [other for other in range(wrong.dim()) if other != axis]
        along = wrong.amax(others) if others else wrong
        at = along.nonzero().flatten().tolist()
        if len(at) < wrong.shape[axis] and letter in letters:
            where = f"{in_words(spans(at), 4)} of {wrong.shape[axis]}"
            yield f"{_WORDS[letter]} {where}{_of_tiles(letter, at, wrong, axis)}"


def _of_tiles(letter: str, at: list[int], wrong: Tensor, axis: int) -> str:
    """Whether the wrong rows begin or end where tiles do."""
    if letter not in "mnw" or at != list(range(at[0], at[-1] + 1)):
        return ""
    size = next((size for size in reversed(_TILES) if at[0] and at[0] % size == 0), 0)
    if size:
        return f" (they begin at a multiple of {size})"
    size = next((size for size in reversed(_TILES) if (at[-1] + 1) % size == 0 and at[-1] + 1 < wrong.shape[axis]), 0)
    return f" (they end at a multiple of {size})" if size else ""


def _numbers(seen: Observed, name: str, wrong: Tensor) -> Iterator[str]:
    """What the wrong numbers are: not finite, zeros, of one ratio, only at masked entries."""
    actual, expected = seen.actual[name][wrong], seen.expected[name][wrong]
    count = len(actual)
    for words, is_so in (("not finite", ~actual.isfinite()), ("0", actual == 0)):
        share = int(is_so.sum()) / count
        if share > 0.05:
            yield f"{share:.0%} of them are {words}"
    if seen.case.axes(name) == "bhmn":
        yield from _masked(seen, name, wrong)
    kept = actual.isfinite() & (expected.abs() > expected.abs().mean() / 100)
    if int(kept.sum()) > 1:
        low, middle, high = (actual[kept] / expected[kept]).quantile(actual.new_tensor([0.05, 0.5, 0.95])).tolist()
        same = high - low < 1e-3 * abs(middle)
        varied = f"no constant ratio: actual / expected lies between {low:.3g} and {high:.3g}"
        yield f"actual / expected is {middle:.5g} throughout" if same else varied


def _masked(seen: Observed, name: str, wrong: Tensor) -> Iterator[str]:
    x, masked, total = seen.x, 0, 0
    distances: set[int] = set()
    for batch, tile in enumerate(tiles(x)):
        valid = x.valid(tile).expand(wrong.shape[1:])
        masked, total = masked + int((wrong[batch] & ~valid).sum()), total + int(wrong[batch].sum())
        # How far before their rows' diagonals the wrong keys lie.
        before = (x.diagonal(tile) - x.positions(tile)[1]).expand(wrong.shape[1:])
        distances |= set(before[wrong[batch]].unique().tolist())
    if len(distances) == 1:
        keys = distances.pop()
        place = f"{abs(keys)} keys {'before' if keys > 0 else 'beyond'} the diagonal" if keys else "on the diagonal"
        yield f"all of them lie {place}"
    if masked == total:
        yield "all of them are masked entries, where 0 is due"
    elif not masked and seen.case.causal:
        yield "none of them is a masked entry"


def _identities(seen: Observed) -> Iterator[str]:
    tried = [invariant for invariant in seen.measured.invariants if invariant.of == "target"]
    broken = [invariant.name for invariant in tried if not invariant.holds]
    kept = [invariant.key for invariant in tried if invariant.holds]
    if broken and kept:
        yield f"broken: {'; '.join(broken)}; kept: {' '.join(kept)}"


_TOO_LARGE = (
    "no hypothesis was tried: this case is too large for it, and no smaller one was found that fails in the same way; "
    "gradprobe shrink looks further"
)
RACE_CLASS = "RACE"
# What makes no number wrong, and what does only where it comes before the last read.
_SHARED = "shared/"
_OF_RESULTS, _OF_INPUTS = (_SHARED, "dtype/"), "overwritten/"
# What makes two programs write to one place.
_OF_STORES = ("store/", "accumulation/")
# Tried one after another until one explains what is wrong.
_BEHAVIOURS: tuple[Callable[[Again], Diagnosis | None], ...] = (
    right_in_another_file, wrong_in_the_first_call_alone, differs_from_run_to_run, reads_what_was_never_written,
    right_without_dead_rows, right_without_pipelining, right_in_the_interpreter,
)  # fmt: skip


@dataclass(frozen=True)
class Reasons:
    """Why a target is wrong, as far as it was found out."""

    diagnoses: tuple[Diagnosis, ...] = ()
    """Best first."""
    known: tuple[str, ...] = ()
    """Sentences about the error, where no hypothesis is named."""
    sought: bool = True
    """Whether hypotheses were tested, where something is wrong."""


def reasons_of(experiment: Experiment, runs: Sequence[LayoutRun]) -> Reasons:
    """Why the first of some runs with a wrong element went wrong; and what is told of memory.

    What goes wrong in here is told, and no verdict depends on it.
    """
    found = ((run.layout, memory_finding) for run in runs for memory_finding in run.memory)
    memory = of_strays(found, [run.layout for run in runs if run.verdict == MATCH])
    try:
        return _reasons_of(experiment, runs, memory)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        return Reasons(memory, (f"no reason could be sought, by a fault of gradprobe: {fault}",), sought=False)


def _reasons_of(experiment: Experiment, runs: Sequence[LayoutRun], memory: tuple[Diagnosis, ...]) -> Reasons:
    failing = [run for run in runs if run.measured is not None and not run.measured.comparison.matches]
    if not failing:
        return Reasons(memory)
    case = experiment.case
    of_results = [one for one in memory if one.fault.startswith(_OF_RESULTS)]
    memory = tuple(one for one in memory if one not in of_results)
    plain = [run for run in failing if run.is_plain]
    if case.scores > MOST_SCORES:
        return _of_a_smaller_case(experiment, (plain or failing)[0], memory)
    if not plain:
        return _of_other_values(experiment, runs, failing[0], memory)
    reasons = _of_failing(experiment, plain, memory)
    named = reasons.diagnoses and reasons.diagnoses[0].explained >= NAMED
    written = () if named else _written_over(of_results, plain[0])
    return Reasons((*written, *reasons.diagnoses), () if written else reasons.known)


def _of_a_smaller_case(experiment: Experiment, failing: LayoutRun, memory: tuple[Diagnosis, ...]) -> Reasons:
    found = smaller_failing(experiment, failing)
    if found is None:
        return Reasons(memory, (_TOO_LARGE,), sought=False)
    small, runs = found
    reasons = _reasons_of(small, runs, memory)
    words = f"sought on a smaller case that fails in the same way: {size_in_words(small.case)}"
    of_large = {one.fault for one in memory}
    first = next((one for one in reasons.diagnoses if one.fault not in of_large), None)
    told = tuple(
        structs.replace(one, evidence=(*one.evidence, words)) if one is first else one for one in reasons.diagnoses
    )
    return Reasons(told, (words, *reasons.known) if reasons.known else ())


def _written_over(of_results: Sequence[Diagnosis], run: LayoutRun) -> tuple[Diagnosis, ...]:
    """Where two gradients have memory in common and one is wrong by itself: the other was written over it."""
    assert run.measured is not None
    wrong = [name for name, one in run.measured.comparison.findings.items() if one.status == MISMATCH]
    shared = (one for one in of_results if one.fault.startswith(_SHARED))
    return tuple(one for one in shared if set(wrong) & set(one.summary.replace(":", " ").split()))


def _of_failing(experiment: Experiment, failing: Sequence[LayoutRun], memory: Sequence[Diagnosis]) -> Reasons:
    run, *others = failing
    assert run.measured is not None
    seen = observed(experiment.case, run.measured, inputs_of(experiment, run.assigned).tensors)
    again, lines = Again(experiment, run.assigned, seen), Lines(experiment)
    tested = causes(experiment, run.assigned, seen)
    first = _tried_first(again, tested)
    found = [*first, *_diagnoses(lines, seen, tested)]
    if tested and tested[0].explained >= NAMED:
        beside = len(first) + len(tested[0].hypotheses)
        for other, there, one in other_causes(experiment, tested[0], others):
            found[beside:beside] = _diagnoses(lines, there, [one], f"in {other.layout}: ", also=True)[:1]
    else:
        found = [*_behaving(again), *found]
    found = _with_dataflow(experiment, run, found)
    found = _in_order(*_seen_too(found, memory), seen, is_here=bool(run.memory))
    return Reasons(tuple(found), () if found and found[0].explained >= NAMED else tuple(known(seen)))


def _with_dataflow(experiment: Experiment, run: LayoutRun, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The causes with the lines that the dataflow of the run shows, and what it shows besides; then all others."""
    if experiment.first is None or not experiment.first.interpreted or not experiment.first.launched:
        return list(found)
    # It imports Triton, which only a run in the interpreter has surely done already.
    from .dataflow import seen_in_dataflow, with_dataflow

    named = [one for one in found if one.explained >= NAMED]
    others = [one for one in found if one.explained < NAMED]
    return [*with_dataflow(named, seen_in_dataflow(experiment, run)), *others]


def _of_other_values(
    experiment: Experiment, runs: Sequence[LayoutRun], failing: LayoutRun, memory: Sequence[Diagnosis]
) -> Reasons:
    """Where the case's own values came out right and others did not: is it the values, or that calls differ?"""
    tensors = inputs_of(experiment, failing.assigned).tensors
    right = next((run.measured for run in runs if run.is_plain and run.assigned == failing.assigned), None)
    if right is not None:
        later = later_call_differs(Again(experiment, failing.assigned, observed(experiment.case, right, tensors)))
        if later is not None:
            return Reasons((later, *memory))
    assert failing.measured is not None
    facts = known(observed(experiment.case, failing.measured, tensors))
    words = () if failing.inside else ("right with the case's own values: what is wrong shows with others",)
    return Reasons(tuple(memory), (*words, *facts))


def _diagnoses(
    lines: Lines, seen: Observed, tested: Sequence[Tested], where: str = "", *, also: bool = False
) -> list[Diagnosis]:
    """Diagnoses of the hypotheses that explain half or more, with the runner-up and the lines; both of a pair."""
    found = []
    for one, second in zip(tested, [*tested[1:], None], strict=False):
        for number, hypothesis in enumerate(one.hypotheses if one.explained >= CONSISTENT else ()):
            diagnosis = _diagnosis(hypothesis, one, second, seen, where, also=also or number > 0)
            found.append(lines.of(hypothesis, one.explanation.active, diagnosis))
    return found


def _tried_first(again: Again, tested: Sequence[Tested]) -> list[Diagnosis]:
    """Faults whose numbers look like a wrong formula: NaN that nobody wrote over, a first call that adds twice."""
    best = tested[0].hypotheses[0].fault if tested and tested[0].explained >= NAMED else ""
    found = None
    # What is stored elsewhere leaves its own place unwritten.
    if not best.startswith(("store/", "wrap/")) and any(not bool(v.isfinite().all()) for v in again.came.values()):
        found = reads_what_was_never_written(again)
    if found is None and best.startswith(("factor/", "accumulation/")):
        found = wrong_in_the_first_call_alone(again)
    return [found] if found is not None and found.explained >= NAMED else []


def _behaving(again: Again) -> list[Diagnosis]:
    """What running it again shows: the first explanation of nearly all, or those of a part."""
    found = []
    for behaviour in _BEHAVIOURS:
        diagnosis = behaviour(again)
        if diagnosis is not None and diagnosis.explained >= NAMED:
            return [diagnosis]
        found += [diagnosis] if diagnosis is not None and diagnosis.explained >= CONSISTENT else []
    return found


def _seen_too(found: Sequence[Diagnosis], memory: Sequence[Diagnosis]) -> tuple[list[Diagnosis], list[Diagnosis]]:
    """A named cause that was seen in memory too has that for evidence, and is told once."""
    named = {one.fault for one in found if one.explained >= NAMED}
    summaries = {one.fault: one.summary for one in memory if one.fault in named}
    with_evidence = [
        structs.replace(one, evidence=(*one.evidence, summaries[one.fault])) if one.fault in summaries else one
        for one in found
    ]
    return with_evidence, [one for one in memory if one.fault not in named]


def _in_order(
    found: Sequence[Diagnosis], memory: Sequence[Diagnosis], seen: Observed, *, is_here: bool
) -> list[Diagnosis]:
    """What explains most; but what was seen of memory comes before numbers that only depend on it.

    A race does, unless a named fault stores that very tensor elsewhere, or where it is to add; an access outside and a
    read of what nothing wrote do in the kernels of what is wrong, unless a named fault reads that very tensor.

    Args:
        is_here: whether anything of the kind was seen in the run that is explained, and not in other layouts alone.
    """
    named = [one for one in found if one.explained >= NAMED]
    arrays = {_tensor_of(one) for one in memory}
    explains_them = any(_tensor_of(one) in arrays for one in named[:1])
    stored = {_tensor_of(one) for one in named[:1] if one.fault.startswith(_OF_STORES)}
    first = [
        one
        for one in memory
        if (one.fault_class == RACE_CLASS and _tensor_of(one) not in stored)
        or (not explains_them and (is_here or not named) and _in_kernel_of(one, seen.own))
    ]
    order = [*first, *named, *(one for one in memory if one not in first), *found]
    return list(dict.fromkeys(order))


def _tensor_of(diagnosis: Diagnosis) -> str:
    return diagnosis.fault.partition("/")[2].partition("-")[0].lower()


def _in_kernel_of(diagnosis: Diagnosis, own: Sequence[str]) -> bool:
    """Whether a finding lies in a kernel that computes one of these; P, dP and dS are computed in several.

    An input that is overwritten may be so after its last read.
    """
    if diagnosis.fault.startswith(_OF_INPUTS):
        return False
    anywhere = bool({"P", "dP", "dS"} & set(own))
    return anywhere or any(is_named_after(where.kernel, name) for where in diagnosis.where for name in own)


def _diagnosis(
    hypothesis: Hypothesis, tested: Tested, runner_up: Tested | None, seen: Observed, where: str, *, also: bool
) -> Diagnosis:
    names = seen.wrong_names
    wrong = sum(seen.wrong(name) for name in names)
    together = "with the other, " if len(tested.hypotheses) > 1 else ""
    share = f"explains {tested.explained:.0%} of {wrong:,} wrong elements in {plural(len(names), 'intermediate')}"
    second = "no other hypothesis comes near it"
    if runner_up is not None:
        second = f"runner-up: {runner_up.hypotheses[0].summary}, {runner_up.explained:.0%}"
    sentence = f"{where}{together}{share}, and what is right stays right" + ("" if also else f"; {second}")
    evidence, of = (sentence, *filter(None, [tested.said]), *hypothesis.evidence), hypothesis
    return Diagnosis(of.fault, of.fault_class, of.summary, tested.explained, evidence, fix=of.fix, also=also)
