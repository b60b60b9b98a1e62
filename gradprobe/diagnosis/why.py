"""Runs -> Reasons: the diagnoses of every failing layout, best first, and what is known where none fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs
from torch import Tensor

from ..faults.hypothesis import Hypothesis, Observed
from ..model.intermediates import is_named_after, slots
from ..model.number import in_words, plural, spans
from ..model.report import CONSISTENT, NAMED, Diagnosis
from ..model.run import MISMATCH
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
from .layouts import FailingLayout, explaining, failing_layouts
from .lines import Lines, of_strays
from .prediction import observed
from .search import Tested, causes
from .smaller import MOST_SCORES, smaller_failing

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
# Seconds of a processor after which no further layout is searched, where one is explained.
_LONGEST = 20.0
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
    """Sentences about what no named hypothesis explains."""
    sought: bool = True
    """Whether hypotheses were tested, where something is wrong."""


def reasons_of(experiment: Experiment, runs: Sequence[LayoutRun]) -> Reasons:
    """Why runs with a wrong element went wrong, in every layout; and what is told of memory.

    What goes wrong in here is told, and no verdict depends on it.
    """
    found = ((run.layout, memory_finding) for run in runs for memory_finding in run.memory)
    memory = of_strays(found, [run.layout for run in runs if run.measured is not None])
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
        return _of_a_smaller_case(experiment, plain or failing, memory)
    if not plain:
        return _of_other_values(experiment, runs, failing[0], memory)
    reasons = _of_failing(experiment, plain, memory)
    named = reasons.diagnoses and reasons.diagnoses[0].explained >= NAMED
    written = () if named else _written_over(of_results, plain[0])
    return Reasons((*written, *reasons.diagnoses), () if written else reasons.known)


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
    return Reasons(told, (words, *reasons.known) if reasons.known else ())


def _written_over(of_results: Sequence[Diagnosis], run: LayoutRun) -> tuple[Diagnosis, ...]:
    """Where two gradients have memory in common and one is wrong by itself: the other was written over it."""
    assert run.measured is not None
    wrong = [name for name, one in run.measured.comparison.findings.items() if one.status == MISMATCH]
    shared = (one for one in of_results if one.fault.startswith(_SHARED))
    return tuple(one for one in shared if set(wrong) & set(one.summary.replace(":", " ").split()))


def _of_failing(experiment: Experiment, failing: Sequence[LayoutRun], memory: Sequence[Diagnosis]) -> Reasons:
    layouts, search = failing_layouts(experiment, failing), _Search(experiment)
    for layout in layouts:
        search.explain(layout)
    first = layouts[0]
    here = {one.fault for one in of_strays((first.name, one) for one in first.run.memory)}
    worst = {_tensor_of(one): one for one in reversed(memory)}
    spoilt = [worst.get(name.lower()) for layout in layouts for name in layout.spoilt & set(layout.seen.own)]
    memory = [structs.replace(one, also=True) if one in spoilt else one for one in memory]
    found = _in_order(*_seen_too(search.told, memory), first.seen, here)
    return Reasons(tuple(found), search.facts)


class _Search:
    """Explains one failing layout after another: what the faults of those before explain is not sought again."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment, self._lines, self._start = experiment, Lines(experiment), time.process_time()
        self._found: list[Diagnosis] = []
        self._shown: dict[str, list[str]] = {}
        """By fault that is named, the layouts that it explains."""
        self._known: dict[str, Hypothesis] = {}
        """By fault, the hypotheses that are named."""
        self._of_behaviour: list[tuple[str, FailingLayout]] = []
        """Faults that no hypothesis predicts, with where they were found."""
        self._unexplained: dict[str, tuple[FailingLayout, list[str]]] = {}
        """By layout, with others that fail in the same places."""
        self._late: list[str] = []

    def explain(self, layout: FailingLayout) -> None:
        """Tells what is wrong in a layout, if nothing that is told already explains it."""
        if self._is_explained(layout) or self._fails_as_another(layout):
            return
        is_first = not self._found and not self._unexplained
        if not is_first and time.process_time() - self._start > _LONGEST:
            self._late.append(layout.name)
            return
        seen = layout.seen if is_first else layout.unspoilt
        tested = causes(self._experiment, layout.run.assigned, seen, list(self._known.values()))
        again = Again(self._experiment, layout.run.assigned, seen)
        first, where = _tried_first(again, tested), "" if is_first else f"in {layout.name}: "
        named = tested[:1] if tested and tested[0].explained >= NAMED else []
        behaving = [*([] if named else _behaving(again)), *first]
        found = [*behaving, *_diagnoses(self._lines, seen, tested, where)]
        if is_first or not _causes(found):  # beside another fault, whose lines it would show as well
            found = _with_dataflow(self._experiment, layout.run, found)
        predicted = {one.fault: one for pair in named for one in pair.hypotheses}
        self._tell(layout, found, predicted)
        self._known = {**predicted, **self._known}

    def _tell(self, layout: FailingLayout, found: Sequence[Diagnosis], predicted: Mapping[str, Hypothesis]) -> None:
        """All that was found in the first layout; of another what is new in it, before what explains nothing yet."""
        is_first, causes, told = not self._shown and not self._unexplained, _causes(found), _causes(self._found)
        new = [one for one in causes if one.fault not in self._shown]
        # What the dataflow shows of a fault in one layout it shows in another.
        lines = _lines_of(told)
        new = [one for one in new if one.fault in predicted or not lines & _lines_of([one])]
        new = [structs.replace(one, also=bool(told) or number > 0) for number, one in enumerate(new)]
        self._found = list(found) if is_first else [*told, *new, *(one for one in self._found if one not in told)]
        self._of_behaviour += [(one.fault, layout) for one in causes if one.fault not in predicted]
        for fault in {**predicted, **{one.fault: None for one in causes}}:
            self._shown.setdefault(fault, []).append(layout.name)
        if not causes:
            self._unexplained[layout.name] = (layout, [])

    def _is_explained(self, layout: FailingLayout) -> bool:
        """Whether what kernels did to memory, or a fault that is told, explains a layout."""
        if not self._shown and not self._unexplained:
            return False
        own = set(layout.unspoilt.own)
        faults = explaining(layout.unspoilt, list(self._known.values())) if own else ()
        faults += tuple(fault for fault, other in self._of_behaviour if not faults and own <= set(other.seen.own))
        for fault in faults:
            self._shown[fault].append(layout.name)
        return bool(faults) or not own

    def _fails_as_another(self, layout: FailingLayout) -> bool:
        """Whether a layout fails in the very places of one that nothing explains: then nothing explains it either."""
        for other, names in self._unexplained.values():
            if other.places == layout.places:
                names.append(layout.name)
                return True
        return False

    @property
    def told(self) -> list[Diagnosis]:
        """The diagnoses; a cause that explains several layouts says so."""
        several = {fault: ", ".join(names) for fault, names in self._shown.items() if len(names) > 1}
        return [
            structs.replace(one, evidence=(*one.evidence, f"it shows in {several[one.fault]}"))
            if one.fault in several and one.is_named
            else one
            for one in self._found
        ]

    @property
    def facts(self) -> tuple[str, ...]:
        """What is known of the layouts that nothing explains."""
        facts: list[str] = []
        for layout, alike in self._unexplained.values():
            sentences = known(layout.seen)
            if self._shown or len(self._unexplained) > 1:
                names = ", ".join([layout.name, *alike])
                sentences = [f"in {names} no hypothesis fits: {sentences[0]}", *sentences[1:]]
            facts += sentences
        late = f"in {', '.join(self._late)} something else is wrong, which was not sought: {_LONGEST:.0f} s were over"
        return (*facts, *([late] if self._late else []))


def _causes(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The first diagnosis, where it is named, and what stands beside it."""
    named = bool(found) and found[0].is_named
    return [one for number, one in enumerate(found) if one.is_named and (number == 0 or one.also)] if named else []


def _lines_of(found: Sequence[Diagnosis]) -> set[tuple[str, int]]:
    return {(where.file, where.line) for one in found for where in one.where}


def _with_dataflow(experiment: Experiment, run: LayoutRun, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The causes with the lines that the dataflow of the run shows, and what it shows besides; then all others."""
    if experiment.first is None or not experiment.first.interpreted or not experiment.first.launched:
        return list(found)
    # It imports Triton, which only a run in the interpreter has surely done already.
    from .dataflow import seen_in_dataflow, with_dataflow

    causes = _causes(found)
    others = [one for one in found if one not in causes]
    return [*with_dataflow(causes, seen_in_dataflow(experiment, run)), *others]


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
    found: Sequence[Diagnosis], memory: Sequence[Diagnosis], seen: Observed, here: Collection[str]
) -> list[Diagnosis]:
    """What explains most; but what was seen of memory comes before numbers that only depend on it.

    A race does, unless a named fault stores that very tensor elsewhere, or where it is to add; an access outside and a
    read of what nothing wrote do in the kernels of what is wrong, unless a named fault reads that very tensor.

    Args:
        here: the faults of memory that were seen in the first layout.
    """
    named = [one for one in found if one.explained >= NAMED]
    arrays = {_tensor_of(one) for one in memory}
    explains_them = any(_tensor_of(one) in arrays for one in named[:1])
    stored = {_tensor_of(one) for one in named[:1] if one.fault.startswith(_OF_STORES)}
    first = [
        one
        for one in memory
        if (one.fault in here or not named)
        and (
            (one.fault_class == RACE_CLASS and _tensor_of(one) not in stored)
            or (not explains_them and _in_kernel_of(one, seen.own))
        )
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
