"""Causes: what explains the failing layouts of a target, sought in one after another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec import structs

from ..faults.hypothesis import Hypothesis, Observed
from ..frontends import CUDA_ON_CPU, INTERPRETED
from ..model.failures import fault_words
from ..model.intermediates import AXIS_WORDS, GRADIENT_OF, TABLE, reached, slots, steps, title
from ..model.layout_run import MATCH, MISMATCH
from ..model.memory_finding import GUARD, OUTSIDE, RACE
from ..model.number import in_words, plural, spans
from ..model.report import CONSISTENT, NAMED, Diagnosis, Where, causes_among
from ..numerics.evidence import LayoutRun
from ..numerics.tally import Finding
from ..probing.experiment import Experiment
from .behaviour import Again, behaving, observed_in
from .lines import Lines
from .search import explaining, in_parts, ranked
from .testing import Finalist

# Layouts that are searched at most: each takes some hundreds of evaluations of the formulas.
_MOST_LAYOUTS = 6
# The kind of a diagnosis that says: this is wrong, and what it is made of is right.
_VALUE = "value"


@dataclass(frozen=True)
class FailingLayout:
    """One layout in which a target is wrong."""

    run: LayoutRun
    seen: Observed

    @property
    def name(self) -> str:
        return self.run.layout

    @cached_property
    def spoilt(self) -> frozenset[str]:
        """The results that kernels were seen to store outside themselves, or race for: wrong whatever was computed."""
        kinds = (RACE, OUTSIDE, GUARD)
        stored = [found for found in self.run.memory if found.kind in kinds and found.access != "load"]
        # Nothing is made of these: without them the others come as before.
        return frozenset(title(found.tensor) for found in stored) & {*GRADIENT_OF.values()}

    @cached_property
    def unspoilt(self) -> Observed:
        """What came, without those results."""
        return self.seen.of([name for name in self.seen.right if name not in self.spoilt])

    @cached_property
    def fact(self) -> str:
        """How much is wrong, and where: layouts that have it in common fail alike."""
        return fact_about(self.seen)


def failing_layouts(experiment: Experiment, failing: Sequence[LayoutRun]) -> list[FailingLayout]:
    """The runs as they are to be explained: the first, then those that move one tensor alone or show the least."""
    first, *others = [FailingLayout(run, observed_in(experiment, run)) for run in failing]
    others.sort(key=lambda layout: ("all" in dict(layout.run.assigned), len(layout.unspoilt.wrong_names)))
    return [first, *others]


class CauseSearch:
    """Explains one failing layout after another: what the causes of those before explain is not sought again."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment, self._lines = experiment, Lines(experiment)
        self._searched = 0
        self.found = list[Diagnosis]()
        """The causes, each with the layouts in which it shows; then what is consistent with the first layout."""
        self._predicted = dict[str, Hypothesis]()
        """By fault of a cause, what gives the numbers that came."""
        self._own = dict[str, frozenset[str]]()
        """By fault of a cause that no hypothesis predicts, what was wrong by itself where it was found."""
        self._unexplained = dict[str, list[str]]()
        """The layouts that nothing explains, by what is wrong in them."""
        self._failures = list[str]()
        """What could not be looked at."""
        self.predicted = set[str]()
        """The faults that give the numbers that came."""

    def explain(self, layout: FailingLayout) -> None:
        """Tells what is wrong in a layout, if nothing that is told already explains it."""
        is_first = not self._searched
        if not is_first and self._is_explained(layout):
            return
        if layout.fact in self._unexplained:  # then nothing explains it either
            self._unexplained[layout.fact].append(layout.name)
            return
        if self._searched == _MOST_LAYOUTS:
            self._failures.append(f"in {layout.name} something else is wrong: {_MOST_LAYOUTS} layouts were searched")
            return
        self._searched += 1
        seen, table = layout.seen if is_first else layout.unspoilt, Table(layout.seen.case.family, layout.run)
        found = list[Diagnosis]()
        # A formula that gives every number that came names the fault; what no formula predicts comes before what only
        # looks like it; the dataflow has the lines of what is named, else the first value that is wrong by itself.
        parts = in_parts(self._experiment, layout.run.assigned, seen)
        best = [part[0] for part in parts if part and part[0].explained >= NAMED]
        named = {fit.hypothesis.fault: fit.hypothesis for fit in best}
        for fit, diagnosis in _diagnoses(seen, parts, "" if is_first else f"in {layout.name}: "):
            found.append(self._lines.of(fit.hypothesis, fit.active, diagnosis))
        again = Again(self._experiment, layout.run.assigned, seen)
        found = table.agreeing([*behaving(again, next(iter(named.values()), None)), *found])
        if is_first or not causes_among(found):  # beside another fault its lines would show as well
            found = self._with_dataflow(layout.run, table, found, seen, named)
        self.predicted |= named.keys() & {diagnosis.fault for diagnosis in found}
        self._add(layout, found, named)

    def _with_dataflow(
        self, run: LayoutRun, table: Table, found: list[Diagnosis], seen: Observed, named: Mapping[str, Hypothesis]
    ) -> list[Diagnosis]:
        """The causes with the lines that the dataflow of a run shows, and what it shows besides; then all others.

        A fault in following it costs that alone.
        """
        causes = causes_among(found)
        try:
            if not self._experiment.backends & {INTERPRETED, CUDA_ON_CPU}:
                from .plain_python import with_python_lines

                return with_python_lines(self._experiment, run, seen, found, [*named.values()])
            from .dataflow import seen_in_dataflow

            watched = run.watched or seen_in_dataflow(self._experiment, run)
            failures, left = watched.failures, [diagnosis for diagnosis in found if diagnosis not in causes]
            found = [*with_dataflow(causes, table.agreeing(watched.seen), self._lines.read), *left]
        except Exception as error:
            failures = (fault_words(error),)
        words = "the kernels' dataflow could not be followed to the end, by a fault of gradprobe"
        self._failures += [f"{words}: {fault}" for fault in failures]
        return found

    def _add(self, layout: FailingLayout, found: list[Diagnosis], named: Mapping[str, Hypothesis]) -> None:
        """All that was found in the first layout; of another what is new in it, before what explains nothing yet."""
        causes, before = causes_among(found), causes_among(self.found)
        if self._searched == 1:
            self.found = [diagnosis for diagnosis in found if diagnosis not in causes]
        if not causes:
            self._unexplained[layout.fact] = [layout.name]
        new = list[Diagnosis]()
        for cause in causes:
            # What the dataflow shows of a fault in one layout it shows in another.
            lines = set() if cause.fault in named else _lines_of(cause)
            known = [each.fault for each in before if each.fault == cause.fault or lines & _lines_of(each)]
            if known:
                self._show(known, layout)
                continue
            new.append(structs.replace(cause, also=bool(before or new), layouts=(layout.name,)))
            if cause.fault in named:
                self._predicted[cause.fault] = named[cause.fault]
            else:
                self._own[cause.fault] = frozenset(layout.seen.own)
        self.found[len(before) : len(before)] = new

    def _show(self, faults: Collection[str], layout: FailingLayout) -> None:
        for at, cause in enumerate(self.found):
            if cause.fault in faults and cause.is_named:
                self.found[at] = structs.replace(cause, layouts=(*cause.layouts, layout.name))

    def _is_explained(self, layout: FailingLayout) -> bool:
        """Whether what kernels did to memory, or a fault that is told, explains a layout."""
        own = set(layout.unspoilt.own)
        if not own:
            return True
        fault = explaining(layout.unspoilt, self._predicted)
        faults = [fault] if fault else [fault for fault, others in self._own.items() if own <= others]
        self._show(faults, layout)
        return bool(faults)

    @property
    def facts(self) -> list[str]:
        """What is known of the layouts that nothing explains, and what could not be looked at."""
        facts, is_of_some = list[str](), bool(causes_among(self.found)) or len(self._unexplained) > 1
        for fact, names in self._unexplained.items():
            facts.append(f"in {', '.join(names)} no hypothesis fits: {fact}" if is_of_some else fact)
        return [*dict.fromkeys((*facts, *self._failures))]


def _lines_of(diagnosis: Diagnosis) -> set[tuple[str, int]]:
    return {(where.file, where.line) for where in diagnosis.where}


def of_the_formula(seen: Observed) -> list[Diagnosis]:
    """Diagnoses by hypotheses about the formula and its arithmetic alone: no tensor is read or stored elsewhere."""
    tested = [fit for fit in ranked(seen) if not fit.hypothesis.tensor]
    return [diagnosis for _, diagnosis in _diagnoses(seen, [tested])]


def _diagnoses(
    seen: Observed, parts: Sequence[Sequence[Finalist]], where: str = ""
) -> Iterator[tuple[Finalist, Diagnosis]]:
    """Diagnoses of the hypotheses that explain half or more: the best of each part, then the others of the first."""
    best, wrong = [part[0] for part in parts if part], seen.wrong_names
    for number, fit in enumerate([*best, *parts[0][1:]]):
        of, explained = fit.hypothesis, fit.explained
        if explained < CONSISTENT:
            continue
        said = f"{where}explains {explained:.0%} of {sum(map(seen.wrong, wrong)):,} wrong elements in "
        said += f"{plural(len(wrong), 'intermediate')}, and what is right stays right"
        yield (
            fit,
            Diagnosis(
                of.fault,
                of.fault_class,
                of.summary,
                explained,
                (said, *fit.said),
                fix=of.fix,
                also=0 < number < len(best),
                # What is rounded where it is used may be exported right.
                says_wrong=() if of.dtype else tuple(row.name for row in TABLE if row.name in of.changes),
            ),
        )


def fact_about(seen: Observed) -> str:
    """A sentence about the first intermediate that is wrong by itself: how much of it, and where."""
    name = seen.own[0]
    wrong, axes = ~seen.right[name], seen.case.axes(name)
    said = [f"{name}: {int(wrong.sum()):,} of {wrong.numel():,} elements are wrong"]
    for axis, letter in enumerate(axes):
        at = [step for step, of in enumerate(wrong.unbind(axis)) if bool(of.any())]
        if letter in slots(axes) and len(at) < wrong.shape[axis]:
            said.append(f"{AXIS_WORDS[letter]} {in_words(spans(at), 4)} of {wrong.shape[axis]}")
    return "; ".join(said)


# --- beside what hypotheses name, what the dataflow shows

# What was seen in memory, at its own lines; and what the dataflow shows of addresses.
_OF_MEMORY, _OF_ADDRESSES = ("outside", "race", "unwritten"), ("load", "store", "unstored")
# The class of sums that lose what was summed: it is overwritten, or added twice.
_LOST = "ACC"


def with_dataflow(named: Sequence[Diagnosis], seen: Sequence[Diagnosis], read: Collection[str] = ()) -> list[Diagnosis]:
    """The causes that hypotheses name, with the lines that the dataflow shows; where none is named, what it shows.

    Args:
        read: the faults whose lines were read off the source, at which an address is made: these stay the first.
    """
    of_pairs = [cause for cause in seen if cause.kind == "pairs"]
    if named and named[0].kind == "tile" and of_pairs:
        seen = of_pairs  # what is left out says where; the values that it makes wrong do not
    else:
        seen = [cause for cause in seen if cause.is_named or cause not in of_pairs] or seen
    if not named or not seen:
        return [*named, *seen]
    first, *others = named
    never = [cause for cause in of_pairs if cause.is_named and cause.fault_class != _LOST]
    # Tiles that are lost may make anything wrong; heads of a group and a program's share that are, their sums alone.
    if never and first.fault_class == _LOST and (not first.says_wrong or "P" in first.says_wrong):
        return [*never, *others]  # it looks the same, and nothing was lost
    shown = [where for cause in seen for where in cause.where]
    heads = {where.kernel: where for where in reversed(shown)}
    # Before all others the first line of each kernel, at which something goes wrong in it.
    lines = list(dict.fromkeys([*(where for where in shown if where is heads[where.kernel]), *shown]))
    more = list[Where]()
    if first.where and (first.fault in read or first.kind in _OF_MEMORY):
        # One line may have several places, each with an edit.
        lines = [*first.where]
        more = [where for cause in seen if cause.kind in _OF_ADDRESSES for where in cause.where]
    elif first.kind in ("mask", "factor"):  # what is dropped leaves a value that is computed all the same
        functions = {name for where in shown for name in (where.kernel, where.function)}
        more = [where for where in first.where if where.kernel in functions]
    elif first.kind in ("stride", "index"):  # a pointer's line in the kernel comes before the accesses that it misleads
        lines.sort(key=lambda where: where.note != "its address" or where.function != "")
    for where in more:
        if (where.file, where.line) not in {(each.file, each.line) for each in lines}:
            lines.append(where)
    evidence = (*first.evidence, *(sentence for cause in seen for sentence in cause.evidence))
    return [structs.replace(first, evidence=evidence, where=tuple(lines)), *others]


# --- no diagnosis says of an intermediate what the report's own table denies


class Table:
    """What a run shows of each intermediate, in each kernel."""

    def __init__(self, family: str, run: LayoutRun) -> None:
        self._family, self._names = family, [row.name for row, _ in steps(family)]
        self._findings = dict[str, list[tuple[str, Finding]]]()
        shown = run.shown
        for row in shown.rows if shown is not None else ():
            self._findings.setdefault(row.finding.name, []).append((row.kernel, row.finding))
        for name, finding in shown.comparison.findings.items() if shown is not None else ():
            self._findings.setdefault(name, [("", finding)])

    def agreeing(self, diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
        """Those that say nothing that the table denies, each without the kernels of which it does.

        A kernel computes anew what another one exports right: a hypothesis about that stands where none agrees better.
        """
        found, agreed = list[Diagnosis](), list[Diagnosis]()
        for diagnosis in diagnoses:
            if diagnosis.kind == _VALUE:
                stands = self._in_agreeing_kernels(self._after_export(diagnosis))
                found += stands
                agreed += stands
            elif not self._denies(diagnosis.says_wrong):
                found.append(diagnosis)
                agreed.append(diagnosis)
            elif self._is_made_anew(diagnosis.says_wrong):
                found.append(diagnosis)
        return agreed if causes_among(agreed) or not causes_among(found) else found

    def _is_made_anew(self, names: Collection[str]) -> bool:
        """Whether some of these were seen where they are exported alone: another kernel may make them wrong."""
        kernels = [(name, at) for name in names for at, _ in self._findings.get(name, ())]
        return any(not at and name not in GRADIENT_OF.values() for name, at in kernels)

    def _in_agreeing_kernels(self, value: Diagnosis) -> list[Diagnosis]:
        """Without the kernels in which what it is made of is wrong, or what it is a step to right; [] if all are."""
        others = [name for name in self._names if name not in value.says_wrong]
        behind = [name for name in others if not {*reached([name], self._family)}.isdisjoint(value.says_right)]
        where = list[Where]()
        for place in value.where:
            is_inherited = any(of.mismatched for name in behind for of in self._of(name, place.kernel))
            if not (is_inherited or self._denies(value.says_wrong, place.kernel)):
                where.append(place)
        if len(where) == len(value.where):
            return [value]
        return [structs.replace(value, where=tuple(where), evidence=())] if where else []

    def _after_export(self, value: Diagnosis) -> Diagnosis:
        """The diagnosis; of a value that is right where it was seen last, about what its kernel makes of it later."""
        found = [pair for name in value.says_wrong for pair in self._findings.get(name, ())]
        is_right = all(finding.status == MATCH for _, finding in found)
        if any(at for at, _ in found):
            is_right &= not set(value.says_right).isdisjoint(value.says_wrong)
        later = [name for name in reached(value.says_wrong, self._family) if name not in value.says_wrong]
        later = [name for name in later if any(of.status == MISMATCH for of in self._of(name, ""))]
        if not found or not is_right or not later:
            return value
        line = value.where[0]
        summary = f"{line.kernel} makes a wrong {' and '.join(later)} from line {line.line} on: its inputs are right"
        return structs.replace(value, fault=f"{_VALUE}/{later[0]}", summary=summary, says_wrong=tuple(later))

    def _denies(self, names: Collection[str], kernel: str = "") -> bool:
        """Whether all of these are shown, and none is wrong by itself."""
        shown = [self._of(name, kernel) for name in names if name in self._names]
        return bool(shown) and all(of and not any(each.status == MISMATCH for each in of) for of in shown)

    def _of(self, name: str, kernel: str) -> list[Finding]:
        """What is shown of an intermediate in a kernel, "" for all; what no kernel was seen to hold is of each."""
        of = self._findings.get(name, [])
        return [each for at, each in of if not (at and kernel) or at == kernel or at.startswith(f"{kernel} for ")]
