"""The search for the smallest case: axis by axis, until nothing simpler fails in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ...model.assignment import Assigned
from ...model.case import Case
from ...model.layout_run import MISMATCH
from ...model.report import Report
from .simpler_cases import ALL_OPTIONS, AXES, Simplification, simpler

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

    @classmethod
    def of(cls, report: Report) -> TriedCase:
        symptom = symptom_of(report)
        is_error = symptom is None and report.error is not None
        return cls(symptom, report.error.message if is_error and report.error else "")

    @property
    def sentence(self) -> str:
        """What follows "with heads=1": "it matches"."""
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
    """What it takes to fail so: "heads=2: with heads=1 it matches"."""


@dataclass
class ShrinkSearch:
    """No case is tried twice, and no more than are allowed."""

    attempt: Callable[[Case, bool], TriedCase]
    """Tries a case, where the second says so in a whole check."""
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

    def run(self, start: Case, first: Sequence[Assigned] = ()) -> ShrunkCase:
        """The simplest case that is reached from one that fails, one step after another.

        The axes are gone through in their order, each until nothing simpler along it fails in the same way, and all of
        them again until none gets any further. Every step is strictly simpler, so this ends.

        Args:
            first: layouts to try alone before anything else, because they are known to fail.
        """
        layouts = simpler(start, "layouts", self.tensors)
        alone = [step for step in layouts if step.case.runs in [(run,) for run in first]]
        case, before = self._taken(alone) or start, None
        while case != before:
            before = case
            for axis in AXES:
                smaller: Case | None = case
                while smaller is not None:
                    case = smaller
                    smaller = self._taken(simpler(case, axis, self.tensors))
        return ShrunkCase(case, self.wanted, self.count < self.most, tuple(self._needs(case)))

    def _taken(self, steps: Sequence[Simplification]) -> Case | None:
        """The first of the cases that fails in the same way; None where none does."""
        for step in steps:
            if not self.has_words(step.case):
                continue
            if step.case not in self.known:
                if self.count >= self.most:
                    return None
                self.count += 1
                self.known[step.case] = self._tried(step.case)
            found = self.known[step.case].symptom
            if found and found.is_like(self.wanted) and found.is_named_like(self.wanted):
                self.told(step)
                return step.case
        return None

    def _tried(self, case: Case) -> TriedCase:
        """What came of a case; with its cause where all but the cause is as wanted, and a cause is."""
        tried = self.attempt(case, self.in_full)
        symptom = tried.symptom
        if symptom is None or self.in_full or self.wanted.fault is None:
            return tried
        if symptom == CRASHED or not symptom.is_like(self.wanted):
            return tried
        whole = self.attempt(case, True).symptom
        fault, alike = (whole.fault, whole.alike) if whole else (None, ())
        return TriedCase(replace(symptom, fault=fault, alike=alike))

    def _needs(self, case: Case) -> list[str]:
        """For each way to simplify the case, the nearest that does not fail so: its steps come simplest first."""
        nearest: dict[str, str] = {}
        for axis in AXES:
            for step in simpler(case, axis, self.tensors):
                if step.case in self.known and step.subject != ALL_OPTIONS:
                    nearest[step.subject] = f"{step.change} {self.known[step.case].sentence}"
        return [f"{subject}: {sentence}" for subject, sentence in nearest.items()]
