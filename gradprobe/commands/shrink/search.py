"""The search for the smallest case: axis by axis, until nothing simpler fails in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

from ...model.assignment import Assigned
from ...model.case import Case
from ...model.failures import UsageFailure
from ...model.layout_run import MISMATCH
from ...model.report import Report
from .simpler_cases import ALL_OPTIONS, AXES, Simplification, simpler, single_runs

NUMBERS, NAN, MEMORY = "wrong numbers", "not finite", "memory"
IDENTITY, CRASH = "identity", "crash"


@dataclass(frozen=True)
class Symptom:
    """In which way a case fails."""

    kind: str
    first: str
    """The first wrong intermediate; the tensor of a memory finding, with its kind; the key of an identity; CRASH."""
    own: tuple[str, ...] = ()
    """Every intermediate that is wrong by itself, in dataflow order."""
    exposed: tuple[str, ...] = ()
    """Every intermediate that was compared."""
    heads: int = 1
    spares_head_0: bool = False
    """Whether head 0 is right in all of `own`, where there are several heads."""
    fault: str | None = None
    """What a diagnosis names as the cause."""
    alike: tuple[str, ...] = ()
    """The other causes that are named: a small case cannot tell some of them apart."""

    def is_like(self, other: Symptom) -> bool:
        """Whether this smaller case fails like a larger one, causes aside.

        The same intermediates are wrong by themselves, of those that the smaller case still has. Where head 0 was
        right it is still, as long as there are other heads.
        """
        left = tuple(name for name in other.own if name in self.exposed)
        spared = self.spares_head_0 == other.spares_head_0 or 1 in (self.heads, other.heads)
        return (self.kind, self.first, self.own) == (other.kind, other.first, left) and spared

    def is_named_like(self, other: Symptom) -> bool:
        """Whether the cause of the other, if it has one, is among the causes named here."""
        return other.fault is None or other.fault in (self.fault, *self.alike)

    @property
    def sentence(self) -> str:
        """ "dP first, wrong numbers; by itself too: dV"."""
        if self.kind == CRASH:
            return "the process that runs the target ends"
        if self.kind in (MEMORY, IDENTITY):
            return f"{self.kind}: {self.first}"
        words = f"{self.first} first, {self.kind}"
        if too := [name for name in self.own if name != self.first]:
            words += f"; by itself too: {', '.join(too)}"
        if self.spares_head_0:
            words += "; head 0 is right"
        return f"{words}; cause: {self.fault}" if self.fault else words


CRASHED = Symptom(CRASH, CRASH)


def symptom_of(report: Report) -> Symptom | None:
    """In which way a report fails; None where it matches or the case was refused."""
    if report.error is not None and report.error.words:
        return CRASHED
    run = report.failing
    if run is None:
        return None
    named = [each.fault for each in report.diagnoses if each.is_named]
    fault = named[0] if named and report.diagnoses[0].is_named else None
    alike, first = tuple(dict.fromkeys(named[1:])), run.first_mismatch
    if first is None:
        if run.broken:
            return Symptom(IDENTITY, run.broken[0].key, fault=fault, alike=alike)
        stray = f"{run.memory[0].kind} {run.memory[0].tensor}".strip()
        return Symptom(MEMORY, stray, fault=fault, alike=alike)
    own = [each for each in run.compares if each.status == MISMATCH]
    wrong_heads = {head.head for each in own for head in each.having(MISMATCH)}
    heads = report.case.heads if report.case else 1
    return Symptom(
        NUMBERS if first.actual is not None and math.isfinite(first.actual) else NAN,
        first.intermediate,
        tuple(dict.fromkeys(each.name for each in own)),
        tuple(dict.fromkeys(each.name for each in run.compares)),
        heads,
        heads > 1 and 0 not in wrong_heads,
        fault,
        alike,
    )


@dataclass(frozen=True)
class TriedCase:
    """What a try of a case came to."""

    symptom: Symptom | None
    """None where it matches or could not be run."""
    why_not: str = ""
    """Why it could not be run."""
    is_usage: bool = False
    """Whether the words of the case were refused before anything ran."""

    @classmethod
    def of(cls, report: Report) -> TriedCase:
        symptom, error = symptom_of(report), report.error
        if symptom is not None or error is None:
            return cls(symptom)
        return cls(None, error.message, error.kind == UsageFailure.__name__)

    @property
    def sentence(self) -> str:
        """What follows "with 1 head": "it matches"."""
        if self.symptom is not None:
            return f"it fails in another way: {self.symptom.sentence}"
        return f"it does not run: {self.why_not}" if self.why_not else "it matches"


@dataclass(frozen=True)
class ShrunkCase:
    """Where the search ended."""

    case: Case
    symptom: Symptom
    complete: bool
    """Whether every simpler case was tried; False where the tries ran out first."""
    needs: tuple[str, ...]
    """What it takes to fail so: "heads 2: with 1 head it matches"."""
    others: tuple[tuple[Case, Symptom], ...]
    """Cases that failed in another way, one for each way."""


Tries = Generator[tuple[Case, bool], TriedCase, ShrunkCase]
"""Yields each case to try, and whether in a whole check; is sent what came of it."""


@dataclass
class ShrinkSearch:
    """No case is tried twice, and no more than are allowed."""

    tensors: Sequence[str]
    """What the target is given, by name."""
    wanted: Symptom
    in_full: bool
    """Whether the symptom shows only in a whole check."""
    most: int
    has_words: Callable[[Case], bool] = lambda case: True
    """Whether a command line can ask for a case."""
    told: Callable[[Simplification], object] = lambda step: None
    """Told of each step that was taken."""
    count: int = 0
    known: dict[Case, TriedCase] = field(default_factory=dict)

    def run(self, start: Case, first: Sequence[Assigned] = ()) -> Tries:
        """The simplest case that is reached from one that fails, one step after another.

        The axes are gone through in their order, each until nothing simpler along it fails in the same way, and all of
        them again until none gets any further. Every step is strictly simpler, so this ends.

        Args:
            first: layouts to try alone before anything else, because they are known to fail.
        """
        alone = [step for step in single_runs(start) if step.case.runs[0] in first]
        case, before = (yield from self._taken(alone)) or start, None
        while case != before:
            before = case
            for axis in AXES:
                smaller: Case | None = case
                while smaller is not None:
                    case = smaller
                    smaller = yield from self._taken(simpler(case, axis, self.tensors))
        return self._shrunk(case)

    def _taken(
        self, steps: Sequence[Simplification]
    ) -> Generator[tuple[Case, bool], TriedCase, Case | None]:
        """The first of the cases that fails in the same way; None where none does."""
        for step in steps:
            if not self.has_words(step.case):
                continue
            if step.case not in self.known:
                if self.count >= self.most:
                    return None
                self.count += 1
                self.known[step.case] = yield from self._tried(step.case)
            if self._is_it(self.known[step.case].symptom):
                self.told(step)
                return step.case
        return None

    def _tried(self, case: Case) -> Generator[tuple[Case, bool], TriedCase, TriedCase]:
        """What came of a case; with its cause where all but the cause is as wanted, and a cause is."""
        tried = yield case, self.in_full
        symptom = tried.symptom
        if symptom is None or self.in_full or self.wanted.fault is None:
            return tried
        if symptom == CRASHED or not symptom.is_like(self.wanted):
            return tried
        whole = (yield case, True).symptom
        fault, alike = (whole.fault, whole.alike) if whole else (None, ())
        return TriedCase(replace(symptom, fault=fault, alike=alike))

    def _is_it(self, found: Symptom | None) -> bool:
        if found is None:
            return False
        return found.is_like(self.wanted) and found.is_named_like(self.wanted)

    def _shrunk(self, case: Case) -> ShrunkCase:
        others: dict[tuple[object, ...], tuple[Case, Symptom]] = {}
        for tried, seen in self.known.items():
            found = seen.symptom
            if found is not None and not self._is_it(found):
                others.setdefault((found.kind, found.first, found.own), (tried, found))
        # For each way to simplify the case, the nearest that does not fail so: its steps come simplest first.
        nearest: dict[str, tuple[Simplification, TriedCase]] = {}
        for axis in AXES:
            for step in simpler(case, axis, self.tensors):
                if step.case in self.known:
                    nearest[step.subject] = step, self.known[step.case]
        needs = [
            f"{subject}: {step.change} {seen.sentence}"
            for subject, (step, seen) in nearest.items()
            if not seen.is_usage and subject != ALL_OPTIONS
        ]
        complete = self.count < self.most
        return ShrunkCase(case, self.wanted, complete, tuple(needs), tuple(others.values()))
