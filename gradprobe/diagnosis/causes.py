"""Causes: what explains the failing layouts of a target, sought in one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import structs

from ..faults.addressed import axes_of
from ..faults.hypothesis import Hypothesis, Observed
from ..model.failures import fault_words
from ..model.intermediates import TABLE
from ..model.layout_run import VisitedPairs
from ..model.number import plural
from ..model.report import CONSISTENT, NAMED, Diagnosis, Misread, causes_among
from ..probing.experiment import Experiment
from .agreement import Table
from .behaviour import (
    Again,
    differs_from_run_to_run,
    multiplies_coarser,
    reads_what_was_never_written,
    right_in_another_file,
    right_in_the_interpreter,
    right_without_dead_rows,
    wrong_in_the_first_call_alone,
)
from .facts import facts_about
from .layouts import FailingLayout
from .lines import Lines
from .search import Finalist, explaining, fitting, ranked

# Layouts that are searched at most: each takes some hundreds of evaluations of the formulas.
_MOST_LAYOUTS = 6
# Tried one after another until one explains what is wrong.
_BEHAVIOURS: tuple[Callable[[Again], Diagnosis | None], ...] = (
    right_in_another_file, wrong_in_the_first_call_alone, differs_from_run_to_run, reads_what_was_never_written,
    right_without_dead_rows, right_in_the_interpreter,
)  # fmt: skip


class CauseSearch:
    """Explains one failing layout after another: what the faults of those before explain is not sought again."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment, self._lines = experiment, Lines(experiment)
        self._searched = 0
        self._found: list[Diagnosis] = []
        self._shown: dict[str, list[str]] = {}
        """By fault that is named, the layouts that it explains."""
        self.predicted: dict[str, Hypothesis] = {}
        """By fault that is named, what predicts it."""
        self._of_behaviour: list[tuple[str, FailingLayout]] = []
        """Faults that no hypothesis predicts, with where they were found."""
        self._unexplained: dict[str, tuple[FailingLayout, list[str]]] = {}
        """By layout, with others that fail in the same places."""
        self._late: list[str] = []
        self.visited: dict[str, tuple[VisitedPairs, ...]] = {}
        """By layout that was followed, what each result was summed over."""
        self._not_followed: dict[str, None] = {}
        """Faults of gradprobe that kept the dataflow of a run from being followed."""

    def explain(self, layout: FailingLayout) -> None:
        """Tells what is wrong in a layout, if nothing that is told already explains it."""
        if self._is_explained(layout) or self._fails_as_another(layout):
            return
        is_first = not self._found and not self._unexplained
        if self._searched == _MOST_LAYOUTS:
            self._late.append(layout.name)
            return
        self._searched += 1
        self._explain(layout, is_first=is_first)

    def _explain(self, layout: FailingLayout, *, is_first: bool) -> None:
        """Tells what hypotheses and the dataflow of a run say of a layout."""
        seen = layout.seen if is_first else layout.unspoilt
        tested = fitting(self._experiment, layout.run.assigned, seen, list(self.predicted.values()))
        again, table = Again(self._experiment, layout.run.assigned, seen), Table(seen.case.family, layout.run)
        first, where = _tried_first(again, tested), "" if is_first else f"in {layout.name}: "
        named = tested[:1] if tested and tested[0].explained >= NAMED else []
        behaving = [*([] if named else _behaving(again)), *first]
        placed = (self._lines.of(one, of.explanation.active, told) for one, of, told in _diagnoses(seen, tested, where))
        found = [*behaving, *placed]
        if is_first or not causes_among(found):  # beside another fault, whose lines it would show as well
            found = self._with_dataflow(layout, table, found)
        found = table.agreeing(found)
        predicted = {one.fault: one for pair in named for one in pair.hypotheses}
        predicted = {fault: one for fault, one in predicted.items() if fault in {each.fault for each in found}}
        self._tell(layout, found, predicted)
        self.predicted = {**predicted, **self.predicted}

    def _with_dataflow(self, layout: FailingLayout, table: Table, found: list[Diagnosis]) -> list[Diagnosis]:
        """The causes with the lines that the dataflow of a run shows, and what it shows besides; then all others.

        A fault in following it costs that alone.
        """
        first = self._experiment.first
        is_interpreted = first is not None and first.interpreted and bool(first.launched)
        try:
            if not is_interpreted and self._experiment.cuda != "cuda-on-cpu":
                from .plain_python import with_python_lines

                return with_python_lines(self._experiment, layout.run, found)
            from .dataflow import seen_in_dataflow, with_dataflow

            watched = layout.run.watched or seen_in_dataflow(self._experiment, layout.run)
            self.visited[layout.run.layout] = watched.visited
            self._not_followed.update(dict.fromkeys(watched.failures))
            causes = causes_among(found)
            seen = table.agreeing(watched.seen)
            return [*with_dataflow(causes, seen), *(one for one in found if one not in causes)]
        except Exception as error:
            self._not_followed[fault_words(error)] = None
            return found

    def _tell(self, layout: FailingLayout, found: Sequence[Diagnosis], predicted: Mapping[str, Hypothesis]) -> None:
        """All that was found in the first layout; of another what is new in it, before what explains nothing yet."""
        is_first = not self._shown and not self._unexplained
        causes, told = causes_among(found), causes_among(self._found)
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
        faults = explaining(layout.unspoilt, list(self.predicted.values())) if own else ()
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
    def diagnoses(self) -> list[Diagnosis]:
        """The diagnoses; a cause that explains several layouts says so."""
        several = {fault: ", ".join(names) for fault, names in self._shown.items() if len(names) > 1}
        return [
            structs.replace(one, evidence=(*one.evidence, f"layouts that show it: {several[one.fault]}"))
            if one.fault in several and one.is_named
            else one
            for one in self._found
        ]

    @property
    def shown(self) -> dict[str, tuple[str, ...]]:
        """By fault that is named, the layouts that it explains."""
        return {fault: tuple(layouts) for fault, layouts in self._shown.items()}

    @property
    def facts(self) -> tuple[str, ...]:
        """What is known of the layouts that nothing explains, and what could not be looked at."""
        facts: list[str] = []
        for layout, alike in self._unexplained.values():
            sentences = facts_about(layout.seen)
            if self._shown or len(self._unexplained) > 1:
                names = ", ".join([layout.name, *alike])
                sentences = [f"in {names} no hypothesis fits: {sentences[0]}", *sentences[1:]]
            facts += sentences
        late = f"in {', '.join(self._late)} something else is wrong: causes were sought in {_MOST_LAYOUTS} layouts"
        faults = "; ".join(self._not_followed)
        missed = f"the kernels' dataflow could not be followed to the end, by a fault of gradprobe: {faults}"
        return (*facts, *([late] if self._late else []), *([missed] if faults else []))


def _lines_of(found: Sequence[Diagnosis]) -> set[tuple[str, int]]:
    return {(where.file, where.line) for one in found for where in one.where}


def of_the_formula(seen: Observed) -> list[Diagnosis]:
    """Diagnoses by hypotheses about the formula and its arithmetic alone: no tensor is read or stored elsewhere."""
    tested = [one for one in ranked(seen) if not any(hypothesis.tensor for hypothesis in one.hypotheses)]
    return [diagnosis for _, _, diagnosis in _diagnoses(seen, tested)]


def _diagnoses(
    seen: Observed, tested: Sequence[Finalist], where: str = ""
) -> Iterator[tuple[Hypothesis, Finalist, Diagnosis]]:
    """Diagnoses of the hypotheses that explain half or more, with the runner-up; both of a pair."""
    for one, second in zip(tested, [*tested[1:], None], strict=False):
        for number, hypothesis in enumerate(one.hypotheses if one.explained >= CONSISTENT else ()):
            yield hypothesis, one, _diagnosis(hypothesis, one, second, seen, where, also=number > 0)


def _tried_first(again: Again, tested: Sequence[Finalist]) -> list[Diagnosis]:
    """Faults whose numbers look like others: coarser dots, NaN that nobody wrote over, a first call that adds twice."""
    if (coarser := multiplies_coarser(again)) is not None:
        return [coarser]
    best = tested[0].hypotheses[0].fault if tested and tested[0].explained >= NAMED else ""
    found, is_finite = None, all(bool(value.isfinite().all()) for value in again.seen.actual.values())
    # What is stored elsewhere leaves its own place unwritten.
    if not is_finite and not best.startswith(("store/", "wrap/")):
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


def _diagnosis(
    hypothesis: Hypothesis, tested: Finalist, runner_up: Finalist | None, seen: Observed, where: str, *, also: bool
) -> Diagnosis:
    names = seen.wrong_names
    count = sum(seen.wrong(name) for name in names)
    together = "with the other, " if len(tested.hypotheses) > 1 else ""
    share = f"explains {tested.explained:.0%} of {count:,} wrong elements in {plural(len(names), 'intermediate')}"
    second = "no other hypothesis comes near it"
    if runner_up is not None:
        second = f"runner-up: {runner_up.hypotheses[0].summary}, {runner_up.explained:.0%}"
    sentence = f"{where}{together}{share}, and what is right stays right" + ("" if also else f"; {second}")
    evidence, of = (sentence, *filter(None, [tested.said]), *hypothesis.evidence), hypothesis
    # What is rounded where it is used may be exported right.
    wrong = () if of.dtype else tuple(row.name for row in TABLE if row.name in of.changes)
    told = Diagnosis(
        of.fault, of.fault_class, of.summary, tested.explained, evidence, fix=of.fix, also=also, says_wrong=wrong
    )
    # What the target makes for itself, its LSE, lies in memory that is not known here.
    is_known = bool(of.taken) and of.tensor in seen.tensors
    return structs.replace(told, misread=_misread(of, seen)) if is_known else told


def _misread(of: Hypothesis, seen: Observed) -> Misread:
    tensor = seen.tensors[of.tensor]
    shape, due = tuple(tensor.shape), tuple(tensor.stride())
    return Misread(tensor=of.tensor, along=of.axes, axes=axes_of(of.tensor, seen), sizes=shape, due=due, taken=of.taken)
