"""The search for the smallest case: in one respect after another, until nothing simpler fails in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ...model.assignment import Assigned
from ...model.case import Case
from ...model.layout_run import MISMATCH
from ...model.report import Report
from .simpler_cases import AXES, Facts, WordedCase, simpler

NUMBERS, NAN, MEMORY = "wrong numbers", "not finite", "memory"
IDENTITY, CRASH = "identity", "crash"


@dataclass(frozen=True)
class Symptom:
    kind: str
    first: str
    """The first wrong intermediate; the tensor of a memory finding, with its kind; the key of an identity; CRASH."""
    own: tuple[str, ...] = ()
    """Every intermediate that is wrong by itself, in dataflow order."""
    exposed: tuple[str, ...] = ()
    heads: int = 1
    spares_head_0: bool = False
    """Whether head 0 is right in all of `own`, where there are several heads."""
    fault: str | None = None
    alike: tuple[str, ...] = ()
    """The other causes that are named: a small case cannot tell some of them apart."""

    def is_like(self, other: Symptom) -> bool:
        """Whether this smaller case fails like a larger one, causes aside: the same intermediates are wrong by
        themselves, of those that it still has; where head 0 was right it is still, as long as there are others."""
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
        kind, subject = IDENTITY, run.broken[0].key if run.broken else ""
        if not run.broken:
            kind, subject = MEMORY, f"{run.memory[0].kind} {run.memory[0].tensor}".strip()
        return Symptom(kind, subject, fault=fault, alike=alike)
    own = [each for each in run.compares if each.status == MISMATCH]
    heads = report.case.heads if report.case else 1
    wrong_heads = {head.head for each in own for head in each.having(MISMATCH)}
    is_number = first.actual is not None and math.isfinite(first.actual)
    return Symptom(
        NUMBERS if is_number else NAN,
        first.intermediate,
        tuple(dict.fromkeys(each.name for each in own)),
        tuple(dict.fromkeys(each.name for each in run.compares)),
        heads,
        heads > 1 and 0 not in wrong_heads,
        fault,
        alike,
    )


Tried = Symptom | str


def tried_of(report: Report) -> Tried:
    if symptom := symptom_of(report):
        return symptom
    return f"it does not run: {report.error.message}" if report.error else "it matches"


@dataclass
class ShrinkSearch:
    """No case is tried twice, and no more than are allowed."""

    attempt: Callable[[WordedCase, bool], Tried]
    facts: Facts
    wanted: Symptom
    in_full: bool
    """Whether the symptom shows only in a whole check."""
    most: int
    told: Callable[[WordedCase, WordedCase], object] = lambda before, step: None
    count: int = 0
    known: dict[Case, Tried] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.count < self.most

    def run(self, start: WordedCase, layout: Assigned = ()) -> WordedCase:
        """The simplest case that is reached from one that fails, one step after another.

        The axes are gone through in their order, each until nothing simpler along it fails in the same way, and all of
        them again until none gets any further. A `layout` that is known to fail is tried alone before all else.
        """
        layouts = simpler(start, "layouts", self.facts)
        alone = (step for step in layouts if step.case.runs == (layout,))
        case, before = self._taken(start, alone) or start, None
        while case != before:
            before = case
            for axis in AXES:
                smaller: WordedCase | None = case
                while smaller is not None:
                    case = smaller
                    smaller = self._taken(case, simpler(case, axis, self.facts))
        return case

    def _taken(self, case: WordedCase, steps: Iterable[WordedCase]) -> WordedCase | None:
        for step in steps:
            if step.case not in self.known:
                if not self.complete:
                    return None
                self.count += 1
                self.known[step.case] = self._tried(step)
            found = self.known[step.case]
            if isinstance(found, str):
                continue
            if found.is_like(self.wanted) and found.is_named_like(self.wanted):
                self.told(case, step)
                return step
        return None

    def _tried(self, case: WordedCase) -> Tried:
        tried = self.attempt(case, self.in_full)
        if isinstance(tried, str) or self.in_full or self.wanted.fault is None:
            return tried
        if tried == CRASHED or not tried.is_like(self.wanted):
            return tried
        whole = self.attempt(case, True)
        fault, alike = (None, ()) if isinstance(whole, str) else (whole.fault, whole.alike)
        return replace(tried, fault=fault, alike=alike)

    def needs(self, case: WordedCase) -> list[str]:
        nearest: dict[str, str] = {}
        for axis in AXES:
            for step in simpler(case, axis, self.facts):
                if (found := self.known.get(step.case)) is not None:
                    subject, change = case.beside(step)
                    if isinstance(found, Symptom):
                        found = f"it fails in another way: {found.sentence}"
                    nearest[subject] = f"{subject}: {change} {found}"
        return list(nearest.values())
