"""What explains the failing layouts of a target."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from msgspec.structs import replace

from ..faults.hypothesis import Hypothesis, WrongRun
from ..frontends import CUDA_ON_CPU, INTERPRETED
from ..model.failures import fault_words
from ..model.intermediates import AXIS_WORDS, GRADIENT_OF, names, reached, slots, steps, title
from ..model.layout_run import MATCH, MISMATCH
from ..model.memory_finding import GUARD, OUTSIDE, RACE
from ..model.number import in_words, plural, spans
from ..model.report import CONSISTENT, NAMED, CauseLine, Diagnosis, causes_among
from ..numerics.evidence import LayoutRun
from ..probing.experiment import Experiment
from .behaviour import FurtherRuns, behaving, observed_in
from .lines import Lines
from .testing import Finalist, explaining, in_parts, ranked

_Named = Mapping[str, Hypothesis]
_place = attrgetter("file", "line")
# Layouts that are searched at most: each takes some hundreds of evaluations of the formulas.
_MOST_LAYOUTS = 6


@dataclass(frozen=True)
class FailingLayout:
    run: LayoutRun
    seen: WrongRun

    @cached_property
    def spoilt(self) -> set[str]:
        stored = set[str]()
        for found in self.run.memory:
            if found.kind in (RACE, OUTSIDE, GUARD) and found.access != "load":
                stored.add(title(found.tensor))
        return stored.intersection(GRADIENT_OF.values())

    @cached_property
    def unspoilt(self) -> WrongRun:
        return self.seen.of(self.seen.right.keys() - self.spoilt)


def failing_layouts(experiment: Experiment, failing: Sequence[LayoutRun]) -> list[FailingLayout]:
    first, *others = [FailingLayout(run, observed_in(experiment, run)) for run in failing]

    def order(layout: FailingLayout) -> tuple[bool, int]:
        return "all" in dict(layout.run.assigned), len(layout.unspoilt.wrong_names)

    return [first, *sorted(others, key=order)]


class CauseSearch:
    def __init__(self, experiment: Experiment) -> None:
        self._experiment, self._lines = experiment, Lines(experiment)
        self._searched = 0
        # The causes; then what is consistent with the first layout.
        self.found = list[Diagnosis]()
        # By fault, what gives the numbers that came; of another cause, what was wrong by itself.
        self.predicted, self._own = dict[str, Hypothesis](), dict[str, frozenset[str]]()
        # Layouts by what is wrong in them.
        self._unexplained, self._failures = dict[str, list[str]](), list[str]()

    def explain(self, layout: FailingLayout) -> None:
        name, is_first = layout.run.layout, not self._searched
        if not is_first and self._is_explained(layout):
            return
        fact = fact_about(layout.seen)
        if fact in self._unexplained:  # then nothing explains it either
            self._unexplained[fact].append(name)
            return
        if self._searched == _MOST_LAYOUTS:
            words = f"something else is wrong in {name}: {_MOST_LAYOUTS} layouts were searched"
            self._failures.append(words)
            return
        self._searched += 1
        seen = layout.seen if is_first else layout.unspoilt
        table = Table(layout.seen.case.family, layout.run)
        # A formula that gives every number that came names the fault; what no formula predicts comes before what only
        # looks like it; the dataflow has the lines of what is named, else the first value that is wrong by itself.
        parts = in_parts(self._experiment, layout.run.assigned, seen)
        best = [part[0].hypothesis for part in parts if part and part[0].explained >= NAMED]
        fitting = _diagnoses(seen, parts, "" if is_first else f"in {name}: ", self._lines)
        again = FurtherRuns(self._experiment, layout.run.assigned, seen)
        behaved = behaving(again, best[0] if best else None)
        found, named = table.agreeing([*behaved, *fitting]), {each.fault: each for each in best}
        # Beside another fault its lines would show as well.
        if is_first or not causes_among(found):
            found = self._with_dataflow(layout.run, table, found, seen, named)
        self._add(layout, found, named)

    def _with_dataflow(
        self, run: LayoutRun, table: Table, found: list[Diagnosis], seen: WrongRun, named: _Named
    ) -> list[Diagnosis]:
        causes = causes_among(found)
        try:
            if not self._experiment.backends & {INTERPRETED, CUDA_ON_CPU}:
                from .plain_python import with_python_lines

                return with_python_lines(self._experiment, run, seen, found, named)
            from .dataflow import seen_in_dataflow

            watched = run.watched or seen_in_dataflow(self._experiment, run)
            failures, of_flow = watched.failures, table.agreeing(watched.seen)
            left = [diagnosis for diagnosis in found if diagnosis not in causes]
            found = [*with_dataflow(causes, of_flow, self._lines.read), *left]
        except Exception as error:
            failures = (fault_words(error),)
        for fault in failures:
            words = "could not be followed to the end, by a fault of gradprobe"
            self._failures.append(f"the kernels' dataflow {words}: {fault}")
        return found

    def _add(self, layout: FailingLayout, found: list[Diagnosis], named: _Named) -> None:
        causes, before, new = causes_among(found), causes_among(self.found), list[Diagnosis]()
        if self._searched == 1:
            self.found = [diagnosis for diagnosis in found if diagnosis not in causes]
        if not causes:
            self._unexplained[fact_about(layout.seen)] = [layout.run.layout]
        for cause in causes:
            # What the dataflow shows of a fault in one layout it shows in another.
            known, where = set[str](), () if cause.fault in named else cause.where
            for each in before:
                if each.fault == cause.fault or {*map(_place, where)} & {
                    *map(_place, each.where)
                }:
                    known.add(each.fault)
            if known:
                self._show(known, layout)
                continue
            new.append(replace(cause, also=bool(before or new), layouts=(layout.run.layout,)))
            if cause.fault in named:
                self.predicted[cause.fault] = named[cause.fault]
            else:
                self._own[cause.fault] = frozenset(layout.seen.own)
        self.found[len(before) : len(before)] = new

    def _show(self, faults: Collection[str], layout: FailingLayout) -> None:
        for at, cause in enumerate(self.found):
            if cause.fault in faults and cause.is_named:
                self.found[at] = replace(cause, layouts=(*cause.layouts, layout.run.layout))

    def _is_explained(self, layout: FailingLayout) -> bool:
        own = {*layout.unspoilt.own}
        fault = explaining(layout.unspoilt, self.predicted) if own else ""
        faults = [fault] if fault else [each for each in self._own if own <= self._own[each]]
        self._show(faults if own else (), layout)
        return bool(faults) or not own

    @property
    def facts(self) -> list[str]:
        facts = [*self._unexplained]
        if causes_among(self.found) or len(facts) > 1:
            for at, (fact, names) in enumerate(self._unexplained.items()):
                facts[at] = f"in {', '.join(names)} no hypothesis fits: {fact}"
        return [*dict.fromkeys((*facts, *self._failures))]


def of_the_formula(seen: WrongRun) -> list[Diagnosis]:
    """By hypotheses about the formula and its arithmetic alone."""
    return [*_diagnoses(seen, [[fit for fit in ranked(seen) if not fit.hypothesis.tensor]])]


def _diagnoses(
    seen: WrongRun,
    parts: Sequence[Sequence[Finalist]],
    where: str = "",
    lines: Lines | None = None,
) -> Iterator[Diagnosis]:
    best, wrong = [part[0] for part in parts if part], seen.wrong_names
    count, of_all = sum(map(seen.wrong, wrong)), plural(len(wrong), "intermediate")
    for number, fit in enumerate([*best, *parts[0][1:]]):
        of, explained = fit.hypothesis, fit.explained
        if explained < CONSISTENT:
            continue
        words = f"{where}explains {explained:.0%} of {count:,} wrong elements in {of_all}"
        # What is rounded where it is used may be exported right.
        wrong_there = of.changes if of.kind != "precision" else ()
        says_wrong = tuple(filter(wrong_there.__contains__, names()))
        diagnosis = Diagnosis(
            of.fault, of.fault_class, of.summary, explained, fix=of.fix,
            evidence=(f"{words}, and what is right stays right", *fit.said),
            also=0 < number < len(best), says_wrong=says_wrong,
        )  # fmt: skip
        yield lines.of(of, fit.active, diagnosis) if lines is not None else diagnosis


def fact_about(seen: WrongRun) -> str:
    """How much of the first intermediate that is wrong by itself is wrong."""
    name = seen.own[0]
    wrong, axes = ~seen.right[name], seen.case.axes(name)
    said = [f"{name}: {int(wrong.sum()):,} of {wrong.numel():,} elements are wrong"]
    for axis, letter in enumerate(axes):
        at = wrong.nonzero()[:, axis].unique().tolist()
        if letter in slots(axes) and len(at) < wrong.shape[axis]:
            said.append(f"{AXIS_WORDS[letter]} {in_words(spans(at), 4)} of {wrong.shape[axis]}")
    return "; ".join(said)


# --- beside what hypotheses name, what the dataflow shows


def with_dataflow(
    named: Sequence[Diagnosis], seen: Sequence[Diagnosis], read: Collection[str] = ()
) -> list[Diagnosis]:
    """Causes with the lines of the dataflow; `read`: faults whose own lines stay the first."""
    of_pairs = [cause for cause in seen if cause.kind == "pairs"]
    if named and named[0].kind == "tile" and of_pairs:
        # What is left out says where; the values that it makes wrong do not.
        seen = of_pairs
    else:
        seen = [cause for cause in seen if cause.is_named or cause not in of_pairs] or seen
    if not named or not seen:
        return [*named, *seen]
    first, *others = named
    never = [cause for cause in of_pairs if cause.is_named and cause.fault_class != "ACC"]
    # Tiles that are lost may make anything wrong; heads of a group and a program's share that are, their sums alone.
    is_any = not first.says_wrong or "P" in first.says_wrong
    if never and first.fault_class == "ACC" and is_any:
        return [*never, *others]  # it looks the same, and nothing was lost
    evidence, shown, more = [*first.evidence], list[CauseLine](), list[CauseLine]()
    for cause in seen:
        evidence += cause.evidence
        shown += cause.where
    # Before all others the first line of each kernel, at which something goes wrong in it.
    heads = dict[str, CauseLine]()
    for where in shown:
        heads.setdefault(where.kernel, where)
    lines = [*heads.values(), *shown]
    if first.where and (first.fault in read or first.kind in ("outside", "race", "unwritten")):
        lines = [*first.where]
        more = []
        for cause in seen:
            if cause.kind in ("load", "store"):
                more += cause.where
    elif first.kind in ("mask", "factor"):  # the value is computed all the same
        functions = {*map(attrgetter("kernel"), shown), *map(attrgetter("function"), shown)}
        more = [where for where in first.where if where.kernel in functions]
    elif first.kind in ("stride", "index"):  # pointers before the accesses that they mislead
        lines.sort(key=lambda where: where.note != "its address" or where.function != "")
    for where in more:
        if _place(where) not in map(_place, lines):
            lines.append(where)
    return [replace(first, evidence=tuple(evidence), where=tuple(dict.fromkeys(lines))), *others]


# --- no diagnosis says of an intermediate what the report's own table denies


class Table:
    def __init__(self, family: str, run: LayoutRun) -> None:
        self._family, self._names = family, [row.name for row, _ in steps(family)]
        # By intermediate, (kernel, status); "" where it is only exported.
        self._shown = defaultdict[str, list[tuple[str, str]]](list)
        for row in run.shown.rows if run.shown is not None else ():
            self._shown[row.finding.name].append((row.kernel, row.finding.status))
        findings = run.shown.comparison.findings if run.shown is not None else {}
        for name, finding in findings.items():
            self._shown[name] = self._shown[name] or [("", finding.status)]

    def agreeing(self, diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
        found, agreed = list[Diagnosis](), list[Diagnosis]()
        for diagnosis in diagnoses:
            is_denied, stands = self._denies(diagnosis.says_wrong), [diagnosis]
            if diagnosis.kind == "value":
                is_denied = False
                stands = self._in_agreeing_kernels(self._after_export(diagnosis))
            agreed += [] if is_denied else stands
            # What is exported may be made anew in kernels, and be wrong there.
            steps = {*diagnosis.says_wrong}.difference(GRADIENT_OF.values())
            is_made_anew = any("" in dict(self._shown[name]) for name in steps)
            found += stands if is_made_anew or not is_denied else []
        return agreed if causes_among(agreed) or not causes_among(found) else found

    def _in_agreeing_kernels(self, value: Diagnosis) -> list[Diagnosis]:
        behind, where = list[str](), list[CauseLine]()
        for name in {*self._names}.difference(value.says_wrong):
            behind += [name] if {*value.says_right} & {*reached([name], self._family)} else []
        for place in value.where:
            is_inherited = any(self._in(name, place.kernel) - {MATCH} for name in behind)
            if not (is_inherited or self._denies(value.says_wrong, place.kernel)):
                where.append(place)
        if where and len(where) < len(value.where):
            value = replace(value, where=tuple(where), evidence=())
        return [value] if where or not value.where else []

    def _after_export(self, value: Diagnosis) -> Diagnosis:
        found, later = list[tuple[str, str]](), list[str]()
        for name in value.says_wrong:
            found += self._shown[name]
        for name in reached(value.says_wrong, self._family):
            if name not in value.says_wrong and MISMATCH in self._in(name):
                later.append(name)
        # What kernels hold is right only where it was seen, which may be before the line.
        if not later or {*found} != {("", MATCH)}:
            return value
        line = value.where[0]
        summary = f"{line.kernel} makes a wrong {' and '.join(later)} from line {line.line} on: its inputs are right"
        fault, says_wrong = f"value/{later[0]}", tuple(later)
        return replace(value, fault=fault, summary=summary, says_wrong=says_wrong)

    def _denies(self, names: Collection[str], kernel: str = "") -> bool:
        shown = [self._in(name, kernel) for name in names if name in self._names]
        return bool(shown) and all(shown) and MISMATCH not in set().union(*shown)

    def _in(self, name: str, kernel: str = "") -> set[str]:
        shown, here = self._shown[name], ("", kernel)
        return {status for at, status in shown if not kernel or at.partition(" for ")[0] in here}
