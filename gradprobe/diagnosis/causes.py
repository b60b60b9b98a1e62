"""Causes: what explains the failing layouts of a target, sought in one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from ..faults.addressed import axes_of
from ..faults.hypothesis import Hypothesis, Observed
from ..frontends.interface import CUDA_ON_CPU, INTERPRETED
from ..model.failures import fault_words
from ..model.intermediates import TABLE
from ..model.number import plural
from ..model.report import CONSISTENT, NAMED, Diagnosis, Misread, causes_among
from ..probing.experiment import Experiment
from .agreement import Table
from .behaviour import (
    Again,
    differs_from_run_to_run,
    multiplies_coarser,
    reads_what_was_never_written,
    right_in_the_interpreter,
    right_without_dead_rows,
    wrong_in_the_first_call_alone,
)
from .facts import facts_about
from .layouts import FailingLayout
from .lines import Lines
from .search import Finalist, explaining, in_parts, ranked

# Layouts that are searched at most: each takes some hundreds of evaluations of the formulas.
_MOST_LAYOUTS = 6
# Tried one after another where no hypothesis is named, until one explains what is wrong.
_BEHAVIOURS: tuple[Callable[[Again], Diagnosis | None], ...] = (
    wrong_in_the_first_call_alone, differs_from_run_to_run, reads_what_was_never_written,
    right_without_dead_rows, right_in_the_interpreter,
)  # fmt: skip


class CauseSearch:
    """Explains one failing layout after another: what the faults of those before explain is not sought again."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment, self._lines = experiment, Lines(experiment)
        self._searched = 0
        self._found: list[Diagnosis] = []
        self.shown: dict[str, tuple[str, ...]] = {}
        """By fault that is named, the layouts that it explains."""
        self.predicted: dict[str, Hypothesis] = {}
        """By fault that is named, what predicts it."""
        self._own: dict[str, frozenset[str]] = {}
        """By fault that no hypothesis predicts, what was wrong by itself where it was found."""
        self._unexplained: dict[str, tuple[FailingLayout, list[str]]] = {}
        """By layout, with others that fail in the same places."""
        self._late: list[str] = []
        self._not_followed: dict[str, None] = {}
        """Faults of gradprobe that kept the dataflow of a run from being followed."""

    def explain(self, layout: FailingLayout) -> None:
        """Tells what is wrong in a layout, if nothing that is told already explains it."""
        if self._searched and (self._is_explained(layout) or self._fails_as_another(layout)):
            return
        if self._searched == _MOST_LAYOUTS:
            self._late.append(layout.name)
            return
        self._searched += 1
        seen = layout.seen if self._searched == 1 else layout.unspoilt
        parts = in_parts(self._experiment, layout.run.assigned, seen)
        table = Table(seen.case.family, layout.run)
        found = table.agreeing(self._explained(layout, table, seen, parts))
        best = [finalist for part in parts for finalist in part[:1] if finalist.explained >= NAMED]
        self._tell(layout, found, [finalist.hypothesis for finalist in best])

    def _explained(
        self, layout: FailingLayout, table: Table, seen: Observed, parts: Sequence[Sequence[Finalist]]
    ) -> list[Diagnosis]:
        """What explains a layout: runs that look like other faults, hypotheses, and the dataflow of its kernels."""
        again, is_first = Again(self._experiment, layout.run.assigned, seen), self._searched == 1
        best = parts[0][0].hypothesis if parts[0] and parts[0][0].explained >= NAMED else None
        found = [*([] if best else _behaving(again)), *_mistakable(again, best)]
        for finalist, told in _diagnoses(seen, parts, "" if is_first else f"in {layout.name}: "):
            found.append(self._lines.of(finalist.hypothesis, finalist.explanation.active, told))
        # Beside another fault its lines would show as well.
        return self._with_dataflow(layout, table, found) if is_first or not causes_among(found) else found

    def _with_dataflow(self, layout: FailingLayout, table: Table, found: list[Diagnosis]) -> list[Diagnosis]:
        """The causes with the lines that the dataflow of a run shows, and what it shows besides; then all others.

        A fault in following it costs that alone.
        """
        try:
            if not self._experiment.backends & {INTERPRETED, CUDA_ON_CPU}:
                from .plain_python import with_python_lines

                return with_python_lines(self._experiment, layout.run, found)
            from .dataflow import seen_in_dataflow, with_dataflow

            watched = layout.run.watched or seen_in_dataflow(self._experiment, layout.run)
            self._not_followed.update(dict.fromkeys(watched.failures))
            causes = causes_among(found)
            seen = table.agreeing(watched.seen)
            return [*with_dataflow(causes, seen, self._lines.read), *(one for one in found if one not in causes)]
        except Exception as error:
            self._not_followed[fault_words(error)] = None
            return found

    def _tell(self, layout: FailingLayout, found: Sequence[Diagnosis], predicting: Sequence[Hypothesis]) -> None:
        """All that was found in the first layout; of another what is new in it, before what explains nothing yet."""
        causes, told = causes_among(found), causes_among(self._found)
        predicted = {one.fault: one for one in predicting if one.fault in {each.fault for each in found}}
        self.predicted = predicted | self.predicted
        # What the dataflow shows of a fault in one layout it shows in another.
        lines = _lines_of(told)
        new = [one for one in causes if one.fault not in self.shown]
        new = [one for one in new if one.fault in predicted or not lines & _lines_of([one])]
        new = [structs.replace(one, also=bool(told) or number > 0) for number, one in enumerate(new)]
        is_first = self._searched == 1
        self._found = [*found] if is_first else [*told, *new, *(one for one in self._found if one not in told)]
        for cause in causes:
            self.shown[cause.fault] = (*self.shown.get(cause.fault, ()), layout.name)
            if cause.fault not in predicted:
                self._own[cause.fault] = frozenset(layout.seen.own)
        if not causes:
            self._unexplained[layout.name] = (layout, [])

    def _is_explained(self, layout: FailingLayout) -> bool:
        """Whether what kernels did to memory, or a fault that is told, explains a layout."""
        own = set(layout.unspoilt.own)
        faults = explaining(layout.unspoilt, list(self.predicted.values())) if own else ()
        for fault in faults or [fault for fault, others in self._own.items() if own <= others]:
            self.shown[fault] = (*self.shown[fault], layout.name)
        return not own or bool(faults) or any(own <= others for others in self._own.values())

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
        several = {fault: ", ".join(names) for fault, names in self.shown.items() if len(names) > 1}
        return [
            structs.replace(one, evidence=(*one.evidence, f"layouts that show it: {several[one.fault]}"))
            if one.fault in several and one.is_named
            else one
            for one in self._found
        ]

    @property
    def facts(self) -> tuple[str, ...]:
        """What is known of the layouts that nothing explains, and what could not be looked at."""
        facts: list[str] = []
        for layout, alike in self._unexplained.values():
            sentences = facts_about(layout.seen)
            if self.shown or len(self._unexplained) > 1:
                names = ", ".join([layout.name, *alike])
                sentences = [f"in {names} no hypothesis fits: {sentences[0]}", *sentences[1:]]
            facts += sentences
        if self._late:
            where = ", ".join(self._late)
            facts.append(f"in {where} something else is wrong: causes were sought in {_MOST_LAYOUTS} layouts")
        if self._not_followed:
            faults = "; ".join(self._not_followed)
            facts.append(f"the kernels' dataflow could not be followed to the end, by a fault of gradprobe: {faults}")
        return tuple(facts)


def _lines_of(found: Sequence[Diagnosis]) -> set[tuple[str, int]]:
    return {(where.file, where.line) for one in found for where in one.where}


def _mistakable(again: Again, best: Hypothesis | None) -> list[Diagnosis]:
    """Faults whose numbers look like others: coarser dots, NaN that nobody wrote over, a first call that adds twice."""
    if (coarser := multiplies_coarser(again)) is not None:
        return [coarser]
    found, is_finite = None, all(bool(value.isfinite().all()) for value in again.seen.actual.values())
    # What is stored elsewhere leaves its own place unwritten.
    if not is_finite and not (best and best.tensor and best.not_finite):
        found = reads_what_was_never_written(again)
    if found is None and best and best.kind in ("factor", "accumulation"):
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


def of_the_formula(seen: Observed) -> list[Diagnosis]:
    """Diagnoses by hypotheses about the formula and its arithmetic alone: no tensor is read or stored elsewhere."""
    tested = [finalist for finalist in ranked(seen) if not finalist.hypothesis.tensor]
    return [told for _, told in _diagnoses(seen, [tested])]


def _diagnoses(
    seen: Observed, parts: Sequence[Sequence[Finalist]], where: str = ""
) -> Iterator[tuple[Finalist, Diagnosis]]:
    """Diagnoses of the hypotheses that explain half or more: the best of each part, then the others of the first."""
    for number, part in enumerate(parts):
        for finalist in part[:1] if part and part[0].explained >= CONSISTENT else ():
            told = _diagnosis(finalist, part[1] if part[1:] else None, seen, where)
            yield finalist, structs.replace(told, also=number > 0)
    for finalist, runner_up in zip(parts[0][1:], [*parts[0][2:], None], strict=False):
        if finalist.explained >= CONSISTENT:
            yield finalist, _diagnosis(finalist, runner_up, seen, where)


def _diagnosis(finalist: Finalist, runner_up: Finalist | None, seen: Observed, where: str) -> Diagnosis:
    of, wrong = finalist.hypothesis, finalist.explanation.wrong
    share = f"explains {finalist.explained:.0%} of {sum(wrong.values()):,} wrong elements"
    second = "no other hypothesis comes near it"
    if runner_up is not None:
        second = f"runner-up: {runner_up.hypothesis.summary}, {runner_up.explained:.0%}"
    said = f"{where}{share} in {plural(len(wrong), 'intermediate')}, and what is right stays right; {second}"
    # What the target makes for itself, its LSE, lies in memory that is not known here.
    is_known = bool(of.taken) and of.tensor in seen.tensors
    # What is rounded where it is used may be exported right.
    says_wrong = () if of.dtype else tuple(row.name for row in TABLE if row.name in of.changes)
    return Diagnosis(
        of.fault, of.fault_class, of.summary, finalist.explained, (said, *finalist.said), fix=of.fix,
        says_wrong=says_wrong, misread=_misread(of, seen) if is_known else None,
    )  # fmt: skip


def _misread(of: Hypothesis, seen: Observed) -> Misread:
    tensor = seen.tensors[of.tensor]
    shape, due = tuple(tensor.shape), tuple(tensor.stride())
    return Misread(tensor=of.tensor, along=of.axes, axes=axes_of(of.tensor, seen), sizes=shape, due=due, taken=of.taken)
