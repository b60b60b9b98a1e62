"""Causes: what explains the failing layouts of a target, sought in one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from ..faults.hypothesis import Hypothesis, Observed
from ..faults.index import axes_of
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
from .layouts import FailingLayout, facts_about
from .lines import Lines
from .search import Finalist, explaining, in_parts, ranked

# Layouts that are searched at most: each takes some hundreds of evaluations of the formulas.
_MOST_LAYOUTS = 6


def _behaving(again: Again, best: Hypothesis | None) -> list[Diagnosis]:
    """What running a target again shows: the first explanation of nearly all; where none is named, those of a part.

    Args:
        best: the hypothesis that is named.
    """
    is_finite = all(bool(value.isfinite().all()) for value in again.seen.actual.values())
    is_factor = best is None or best.kind in ("factor", "accumulation")
    # What is stored elsewhere leaves its own place unwritten.
    is_unwritten = best is None or not (is_finite or (best.tensor and best.not_finite))
    behaviours: tuple[tuple[bool, Callable[[Again], Diagnosis | None]], ...] = (
        (True, multiplies_coarser),  # rounding is like other rounding, and what was compiled says whose it is
        (is_factor, wrong_in_the_first_call_alone),  # what is added twice is a factor, in one call
        (best is None, differs_from_run_to_run),
        (is_unwritten, reads_what_was_never_written),  # two runs, on memory that is prepared
        (best is None, right_without_dead_rows),
        (best is None, right_in_the_interpreter),  # a process of its own, and minutes
    )
    found = []
    for is_asked, behaviour in behaviours:
        diagnosis = behaviour(again) if is_asked else None
        if diagnosis is not None and diagnosis.explained >= NAMED:
            return [diagnosis]
        if diagnosis is not None and best is None and diagnosis.explained >= CONSISTENT:
            found.append(diagnosis)
    return found


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
        self._unexplained: list[tuple[FailingLayout, list[str]]] = []
        """Each with others that fail in the same places."""
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
        is_first = self._searched == 1
        seen, table = layout.seen if is_first else layout.unspoilt, Table(layout.seen.case.family, layout.run)
        parts = in_parts(self._experiment, layout.run.assigned, seen)
        best = [part[0].hypothesis for part in parts if part and part[0].explained >= NAMED]
        found = _behaving(Again(self._experiment, layout.run.assigned, seen), best[0] if best else None)
        for finalist, told in _diagnoses(seen, parts, "" if is_first else f"in {layout.name}: "):
            found.append(self._lines.of(finalist.hypothesis, finalist.explanation.active, told))
        # Beside another fault its lines would show as well.
        if is_first or not causes_among(found):
            found = self._with_dataflow(layout, table, found)
        self._tell(layout, table.agreeing(found), best)

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
        if self._searched == 1:
            self._found = [*found]
        else:
            # What the dataflow shows of a fault in one layout it shows in another.
            lines, new = _lines_of(told), list[Diagnosis]()
            for cause in causes:
                is_seen = cause.fault not in predicted and lines & _lines_of([cause])
                if cause.fault not in self.shown and not is_seen:
                    new.append(structs.replace(cause, also=bool(told or new)))
            self._found = [*told, *new, *(one for one in self._found if one not in told)]
        for cause in causes:
            self.shown[cause.fault] = (*self.shown.get(cause.fault, ()), layout.name)
            if cause.fault not in predicted:
                self._own[cause.fault] = frozenset(layout.seen.own)
        if not causes:
            self._unexplained.append((layout, [layout.name]))

    def _is_explained(self, layout: FailingLayout) -> bool:
        """Whether what kernels did to memory, or a fault that is told, explains a layout."""
        own = set(layout.unspoilt.own)
        faults = explaining(layout.unspoilt, list(self.predicted.values())) if own else ()
        faults = faults or tuple(fault for fault, others in self._own.items() if own <= others)
        for fault in faults:
            self.shown[fault] = (*self.shown[fault], layout.name)
        return not own or bool(faults)

    def _fails_as_another(self, layout: FailingLayout) -> bool:
        """Whether a layout fails in the very places of one that nothing explains: then nothing explains it either."""
        for other, names in self._unexplained:
            if other.places == layout.places:
                names.append(layout.name)
                return True
        return False

    @property
    def diagnoses(self) -> list[Diagnosis]:
        """The diagnoses; a cause that explains several layouts says so."""
        found = list[Diagnosis]()
        for one in self._found:
            layouts = self.shown.get(one.fault, ()) if one.is_named else ()
            said = (f"layouts that show it: {', '.join(layouts)}",) if len(layouts) > 1 else ()
            found.append(structs.replace(one, evidence=(*one.evidence, *said)))
        return found

    @property
    def facts(self) -> tuple[str, ...]:
        """What is known of the layouts that nothing explains, and what could not be looked at."""
        facts: list[str] = []
        for layout, names in self._unexplained:
            first, *others = facts_about(layout.seen)
            is_of_some = self.shown or len(self._unexplained) > 1
            facts += [f"in {', '.join(names)} no hypothesis fits: {first}" if is_of_some else first, *others]
        if self._late:
            where = ", ".join(self._late)
            facts.append(f"in {where} something else is wrong: causes were sought in {_MOST_LAYOUTS} layouts")
        if self._not_followed:
            faults = "; ".join(self._not_followed)
            facts.append(f"the kernels' dataflow could not be followed to the end, by a fault of gradprobe: {faults}")
        return tuple(facts)


def _lines_of(found: Sequence[Diagnosis]) -> set[tuple[str, int]]:
    return {(where.file, where.line) for one in found for where in one.where}


def of_the_formula(seen: Observed) -> list[Diagnosis]:
    """Diagnoses by hypotheses about the formula and its arithmetic alone: no tensor is read or stored elsewhere."""
    tested = [finalist for finalist in ranked(seen) if not finalist.hypothesis.tensor]
    return [told for _, told in _diagnoses(seen, [tested])]


def _diagnoses(
    seen: Observed, parts: Sequence[Sequence[Finalist]], where: str = ""
) -> Iterator[tuple[Finalist, Diagnosis]]:
    """Diagnoses of the hypotheses that explain half or more: the best of each part, then the others of the first."""
    told = [(part, 0, number > 0) for number, part in enumerate(parts) if part]
    told += [(parts[0], at, False) for at in range(1, len(parts[0]))]
    for part, at, also in told:
        if part[at].explained >= CONSISTENT:
            runner_up = part[at + 1] if len(part) > at + 1 else None
            yield part[at], structs.replace(_diagnosis(part[at], runner_up, seen, where), also=also)


def _diagnosis(finalist: Finalist, runner_up: Finalist | None, seen: Observed, where: str) -> Diagnosis:
    of, wrong = finalist.hypothesis, finalist.explanation.wrong
    share = f"explains {finalist.explained:.0%} of {sum(wrong.values()):,} wrong elements"
    second = "no other hypothesis comes near it"
    if runner_up is not None:
        second = f"runner-up: {runner_up.hypothesis.summary}, {runner_up.explained:.0%}"
    said = f"{where}{share} in {plural(len(wrong), 'intermediate')}, and what is right stays right; {second}"
    # What is rounded where it is used may be exported right.
    says_wrong = () if of.dtype else tuple(row.name for row in TABLE if row.name in of.changes)
    return Diagnosis(
        of.fault, of.fault_class, of.summary, finalist.explained, (said, *finalist.said), fix=of.fix,
        says_wrong=says_wrong, misread=_misread(of, seen),
    )  # fmt: skip


def _misread(of: Hypothesis, seen: Observed) -> Misread | None:
    # What the target makes for itself, its LSE, lies in memory that is not known here.
    tensor = seen.tensors.get(of.tensor)
    if tensor is None or not of.taken:
        return None
    shape, due = tuple(tensor.shape), tuple(tensor.stride())
    return Misread(tensor=of.tensor, along=of.axes, axes=axes_of(of.tensor, seen), sizes=shape, due=due, taken=of.taken)
