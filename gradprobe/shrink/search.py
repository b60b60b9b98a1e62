"""The search: down the ordering, axis by axis, until nothing simpler fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..cases.case import Case
from .attempts import Attempts
from .fewest import Facts
from .ordering import AXES, key
from .steps import ALL_OPTIONS, Step, simpler, single_runs
from .symptom import Seen, Symptom


@dataclass(frozen=True)
class Shrunk:
    """Where the search ended."""

    case: Case
    symptom: Symptom
    complete: bool
    """Whether every simpler case was tried; False where the tries ran out first."""
    needs: tuple[str, ...]
    """What it takes to fail so: "heads 2: with 1 head it matches"."""
    others: tuple[tuple[Case, Symptom], ...]
    """Cases that failed in another way, one for each way."""


@dataclass
class Search:
    """One search."""

    attempts: Attempts
    facts: Facts
    kept: Mapping[str, Any]
    """Words that stand in each case, such as --device."""
    wanted: Symptom
    in_full: bool
    """Whether the symptom shows only in a whole check."""
    told: Callable[[Step, int], object]
    """Told of each step that was taken, and the number of tries so far."""

    def run(self, start: Case, first: Sequence[tuple[tuple[str, str], ...]] = ()) -> Shrunk:
        """The simplest case that is reached from one that fails, one step after another.

        The axes are gone through in their order, each until nothing simpler along it fails in the same way, and all of
        them again until none gets any further. Every step is strictly simpler by `ordering.key`, so this ends.

        Args:
            first: layouts to try alone before anything else, because they are known to fail.
        """
        case = self._taken([step for step in single_runs(start) if step.case.runs[0] in first]) or start
        while True:
            before = case
            for axis in AXES:
                while (smaller := self._taken(simpler(case, axis, self.facts.tensors))) is not None:
                    assert key(smaller) < key(case)
                    case = smaller
            if case == before:
                return self._shrunk(case)

    def _taken(self, steps: Sequence[Step]) -> Case | None:
        """The first of the cases that fails in the same way; None where none does."""
        for step, seen in self.attempts.seen(steps, self.facts, self.kept, self.wanted, in_full=self.in_full):
            if self._is_it(seen):
                self.told(step, self.attempts.count)
                return step.case
        return None

    def _is_it(self, seen: Seen) -> bool:
        found = seen.symptom
        return found is not None and found.is_like(self.wanted) and found.is_named_like(self.wanted)

    def _shrunk(self, case: Case) -> Shrunk:
        known = self.attempts.known
        steps = [step for axis in AXES for step in simpler(case, axis, self.facts.tensors)]
        seen = [(step, known[step.case]) for step in steps if step.case in known]
        complete = self.attempts.count < self.attempts.most
        others: dict[tuple[str, str, tuple[str, ...]], tuple[Case, Symptom]] = {}
        for tried, found in known.items():
            if found.symptom is not None and not self._is_it(found):
                way = (found.symptom.kind, found.symptom.first, found.symptom.own)
                others.setdefault(way, (tried, found.symptom))
        return Shrunk(case, self.wanted, complete, tuple(_needs(seen)), tuple(others.values()))


def _needs(seen: Sequence[tuple[Step, Seen]]) -> Iterator[str]:
    """What the failure needs: for each way to simplify the case, the nearest case that does not fail so."""
    nearest: dict[str, tuple[Step, Seen]] = {}
    for step, found in seen:
        nearest[step.subject] = (step, found)  # the steps of a subject come simplest first
    for subject, (step, found) in nearest.items():
        if not found.is_usage and subject != ALL_OPTIONS:
            yield f"{subject}: {step.change} {found.words}"
