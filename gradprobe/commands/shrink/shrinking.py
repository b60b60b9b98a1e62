"""The search: down the ordering, axis by axis, until nothing simpler fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.history import CheckRequest
from ...model.case import Case
from ...model.failures import TargetFailure, UsageFailure
from .case_worker import Attempts, CaseCheck, TargetCrashed
from .repeat import Facts, fewest_words
from .simpler_cases import ALL_OPTIONS, AXES, Simplification, key, simpler, single_runs
from .symptom import CRASHED, Symptom, TriedCase


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


@dataclass
class ShrinkSearch:
    """One search."""

    attempts: Attempts
    facts: Facts
    kept: Mapping[str, Any]
    """Words that stand in each case, such as --device."""
    wanted: Symptom
    in_full: bool
    """Whether the symptom shows only in a whole check."""
    told: Callable[[Simplification], object]
    """Told of each step that was taken."""

    def run(self, start: Case, first: Sequence[tuple[tuple[str, str], ...]] = ()) -> ShrunkCase:
        """The simplest case that is reached from one that fails, one step after another.

        The axes are gone through in their order, each until nothing simpler along it fails in the same way, and all of
        them again until none gets any further. Every step is strictly simpler by `simpler_cases.key`, so this ends.

        Args:
            first: layouts to try alone before anything else, because they are known to fail.
        """
        case = (
            self._taken([step for step in single_runs(start) if step.case.runs[0] in first])
            or start
        )
        while True:
            before = case
            for axis in AXES:
                while (
                    smaller := self._taken(simpler(case, axis, self.facts.tensors))
                ) is not None:
                    assert key(smaller) < key(case)
                    case = smaller
            if case == before:
                return self._shrunk(case)

    def _taken(self, steps: Sequence[Simplification]) -> Case | None:
        """The first of the cases that fails in the same way; None where none does."""
        for step, seen in self.attempts.outcomes(
            steps, self.facts, self.kept, self.wanted, in_full=self.in_full
        ):
            if self._is_it(seen.symptom):
                self.told(step)
                return step.case
        return None

    def _is_it(self, found: Symptom | None) -> bool:
        return (
            found is not None and found.is_like(self.wanted) and found.is_named_like(self.wanted)
        )

    def _shrunk(self, case: Case) -> ShrunkCase:
        known = self.attempts.known
        others: dict[tuple[object, ...], tuple[Case, Symptom]] = {}
        for tried, seen in known.items():
            found = seen.symptom
            if found is not None and not self._is_it(found):
                others.setdefault((found.kind, found.first, found.own), (tried, found))
        # For each way to simplify the case, the nearest that does not fail so: its steps come simplest first.
        nearest: dict[str, tuple[Simplification, TriedCase]] = {}
        for axis in AXES:
            for step in simpler(case, axis, self.facts.tensors):
                if step.case in known:
                    nearest[step.subject] = step, known[step.case]
        needs = []
        for subject, (step, seen) in nearest.items():
            if not seen.is_usage and subject != ALL_OPTIONS:
                needs.append(f"{subject}: {step.change} {seen.sentence}")
        return ShrunkCase(
            case, self.wanted, not self.attempts.is_over, tuple(needs), tuple(others.values())
        )


# Words that are no part of a case, and stand in every try as they were asked for.
_AS_ASKED = ("device", "recover")


@dataclass(frozen=True)
class ShrinkResult:
    """What a target's case came to."""

    facts: Facts
    """Of the target, and the case asked for."""
    shrunk: ShrunkCase | None
    """None where the case asked for matches."""
    told: CaseCheck | None
    """A whole check of the shrunken case; None where the case matches or crashes the process that runs it."""
    request: CheckRequest
    """The target with the fewest words of the shrunken case."""
    looked: CaseCheck
    """The case asked for, in a whole check."""
    tries: int
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 where nothing was to shrink, 1 where the small case fails; 3 where it crashes, which is no mismatch."""
        if self.shrunk is None:
            return 0
        return TargetFailure.exit_code if self.shrunk.symptom == CRASHED else 1


Step = Callable[[Case, Simplification | None, int, Mapping[str, Any]], object]
"""Told of the case that fails before the search, and of each step taken, with the number of tries so far and the words
that give the case."""


def shrink(
    request: CheckRequest,
    *,
    most: int,
    alone: bool = False,
    timeout: float | None = None,
    fix_budget: int = 0,
    scripted: bool = True,
    told: Step = lambda case, step, count, words: None,
    echo: Callable[[str], object],
) -> ShrinkResult:
    """The smallest case that fails in the same way as the one asked for.

    Args:
        most: how many cases may be tried.
        alone: whether each runs in a process that may crash; a crash is then a way to fail.
        timeout: seconds for one case there.
        fix_budget: how many edits of the target are tried on the smallest case.
        scripted: whether a script that shows the fault without gradprobe is made.
        echo: told what targets print in other processes.

    Raises:
        UsageFailure: the values come from a file, so that no others can be tried.
        Failure: whatever keeps the case asked for from being run.
    """
    if "inputs" in request.options:
        raise UsageFailure(
            "--inputs: only a case whose values are drawn can be made smaller", "drop --inputs"
        )
    start, attempts = time.perf_counter(), Attempts(request, alone, timeout, most, echo)
    facts = attempts.facts(request.options)
    try:
        looked = attempts.look(request.options)
    except TargetCrashed:  # a way to fail too
        looked = CaseCheck(CRASHED, CRASHED)
    wanted = looked.plain or looked.symptom
    if wanted is None:
        return ShrinkResult(facts, None, None, request, looked, 0, time.perf_counter() - start)
    if looked.symptom is not None:
        wanted = replace(wanted, fault=looked.symptom.fault)
    words = {name: word for name, word in request.options.items() if name in _AS_ASKED}

    def tell(case: Case, step: Simplification | None) -> None:
        told(case, step, attempts.count, fewest_words(case, facts, words) or {})

    tell(facts.case, None)
    in_full = looked.plain is None
    search = ShrinkSearch(
        attempts, facts, words, wanted, in_full, lambda step: tell(step.case, step)
    )
    failing = (
        [pair for pair in looked.run if pair[1] != "contiguous"]
        if looked.run is not None
        else None
    )
    shrunk = search.run(facts.case, [] if failing is None else [tuple(failing)])
    fewest = fewest_words(shrunk.case, facts, words)
    assert fewest is not None
    last = None if wanted == CRASHED else attempts.look(fewest, fix_budget, scripted=scripted)
    small, took = replace(request, options=fewest), time.perf_counter() - start
    return ShrinkResult(facts, shrunk, last, small, looked, attempts.count, took)
