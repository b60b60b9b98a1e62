"""The search: down the ordering, axis by axis, until nothing simpler fails in the same way."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.history import CheckRequest
from ...model.case import Case
from ...model.failures import TargetFailure, UsageFailure
from . import symptom as keeping
from .case_worker import CRASHED, FACTS, LOOK, TELL, Attempts, CaseCheck, LastCheck, TargetCrashed
from .ordering import AXES, key
from .repeat import Facts, fewest_words
from .simpler_cases import ALL_OPTIONS, Simplification, simpler, single_runs
from .symptom import IDENTITY, KeptCase, Symptom, TriedCase


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
class ShrinkSearch:
    """One search."""

    attempts: Attempts
    facts: Facts
    kept: Mapping[str, Any]
    """Words that stand in each case, such as --device."""
    wanted: Symptom
    in_full: bool
    """Whether the symptom shows only in a whole check."""
    told: Callable[[Simplification, int], object]
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

    def _taken(self, steps: Sequence[Simplification]) -> Case | None:
        """The first of the cases that fails in the same way; None where none does."""
        for step, seen in self.attempts.outcomes(steps, self.facts, self.kept, self.wanted, in_full=self.in_full):
            if self._is_it(seen):
                self.told(step, self.attempts.count)
                return step.case
        return None

    def _is_it(self, seen: TriedCase) -> bool:
        found = seen.symptom
        return found is not None and found.is_like(self.wanted) and found.is_named_like(self.wanted)

    def _shrunk(self, case: Case) -> Shrunk:
        known = self.attempts.known
        steps = [step for axis in AXES for step in simpler(case, axis, self.facts.tensors)]
        seen = [(step, known[step.case]) for step in steps if step.case in known]
        complete = not self.attempts.is_over
        others: dict[tuple[str, str, tuple[str, ...]], tuple[Case, Symptom]] = {}
        for tried, found in known.items():
            if found.symptom is not None and not self._is_it(found):
                way = (found.symptom.kind, found.symptom.first, found.symptom.own)
                others.setdefault(way, (tried, found.symptom))
        return Shrunk(case, self.wanted, complete, tuple(_needs(seen)), tuple(others.values()))


def _needs(seen: Sequence[tuple[Simplification, TriedCase]]) -> Iterator[str]:
    """What the failure needs: for each way to simplify the case, the nearest case that does not fail so."""
    nearest: dict[str, tuple[Simplification, TriedCase]] = {}
    for step, found in seen:
        nearest[step.subject] = (step, found)  # the steps of a subject come simplest first
    for subject, (step, found) in nearest.items():
        if not found.is_usage and subject != ALL_OPTIONS:
            yield f"{subject}: {step.change} {found.sentence}"


# Words that are no part of a case, and stand in every try as they were asked for.
_AS_ASKED = ("device", "recover")


@dataclass(frozen=True)
class ShrinkResult:
    """What a target's case came to."""

    facts: Facts
    """Of the target, and the case asked for."""
    shrunk: Shrunk | None
    """None where the case asked for matches."""
    told: LastCheck | None
    """A whole check of the shrunken case; None where the case matches or crashes the process that runs it."""
    request: CheckRequest
    """The target with the fewest words of the shrunken case."""
    looked: CaseCheck
    """The case asked for, in a whole check."""
    tries: int
    seconds: float
    from_kept: bool
    """Whether the search began from a case kept from before."""
    still: tuple[KeptCase, ...] = ()
    """Where the case asked for matches: the kept ones that fail still."""
    dropped: int = 0
    """How many kept cases pass now."""

    @property
    def exit_code(self) -> int:
        """0 where nothing was to shrink, 1 where the small case fails; 3 where it crashes, which is no mismatch."""
        if self.shrunk is None:
            return 0
        return TargetFailure.exit_code if self.shrunk.symptom.kind == CRASHED.kind else 1


def shrink(
    request: CheckRequest,
    *,
    most: int,
    alone: bool,
    timeout: float | None,
    fix_budget: int = 0,
    scripted: bool = True,
    told: Callable[[Case, Simplification | None, int, Mapping[str, Any]], object],
    echo: Callable[[str], object],
) -> ShrinkResult:
    """The smallest case that fails in the same way as the one asked for.

    Args:
        most: how many cases may be tried.
        alone: whether each runs in a process that may crash; a crash is then a way to fail.
        timeout: seconds for one case there.
        scripted: whether a script that shows the fault without gradprobe is made.
        fix_budget: how many edits of the target are tried on the smallest case.
        told: told of the case that fails before the search, and of each step taken, with the number of tries so far
            and the words that give the case.
        echo: told what targets print in other processes.

    Raises:
        UsageFailure: the values come from a file, so that no others can be tried.
        Failure: whatever keeps the case asked for from being run.
    """
    if "inputs" in request.options:
        raise UsageFailure("--inputs: only a case whose values are drawn can be made smaller", "drop --inputs")
    start = time.perf_counter()
    attempts = Attempts(request, alone, timeout, most, echo, fix_budget, scripted)
    facts = _facts(attempts, request)
    try:
        looked: CaseCheck = attempts.ask(LOOK, request.options)
    except TargetCrashed:  # a way to fail too
        looked = CaseCheck(CRASHED, CRASHED, None, None)
    wanted = looked.plain or looked.symptom
    words = {name: word for name, word in request.options.items() if name in _AS_ASKED}
    before = _KnownCases(attempts, request, facts, words)
    if wanted is None:
        still, took = tuple(before.failing()), time.perf_counter() - start
        return ShrinkResult(facts, None, None, request, looked, attempts.count, took, False, still, before.dropped)
    if looked.symptom is not None:
        wanted = replace(wanted, fault=looked.symptom.fault)
    in_full = looked.plain is None and wanted.kind != CRASHED.kind
    found = before.first_like(wanted, in_full=in_full)
    start_case = found or facts.case

    def tell(case: Case, step: Simplification | None) -> None:
        told(case, step, attempts.count, fewest_words(case, facts, words) or {})

    tell(start_case, None)
    search = ShrinkSearch(attempts, facts, words, wanted, in_full, lambda step, _: tell(step.case, step))
    failing = [tuple(one for one in run if one[1] != "contiguous") for run in (looked.run,) if run is not None]
    shrunk = search.run(start_case, failing)
    fewest = fewest_words(shrunk.case, facts, words)
    assert fewest is not None
    small = replace(request, options=fewest)
    seen = attempts.known.get(shrunk.case)
    keeping.save(
        keeping.with_another(keeping.load(), KeptCase(small, seen.symptom if seen and seen.symptom else wanted))
    )
    last = None if wanted.kind == CRASHED.kind else attempts.ask(TELL, fewest)
    took, is_kept = time.perf_counter() - start, found is not None
    return ShrinkResult(facts, shrunk, last, small, looked, attempts.count, took, is_kept, dropped=before.dropped)


def _facts(attempts: Attempts, request: CheckRequest) -> Facts:
    """What cases of the target are made of. A crash on the case asked for leaves the target as it was named."""
    try:
        facts: Facts = attempts.ask(FACTS, request.options)
    except TargetCrashed:
        attempts.fits = False
        facts = attempts.ask(FACTS, request.options)
    return facts


@dataclass
class _KnownCases:
    """The kept cases of a target, tried again. Those that pass now are dropped."""

    attempts: Attempts
    request: CheckRequest
    facts: Facts
    words: Mapping[str, Any]
    dropped: int = 0

    def first_like(self, wanted: Symptom, *, in_full: bool) -> Case | None:
        """The smallest kept case that fails as wanted; None where none does."""
        like = [kept for kept in keeping.of_target(keeping.load(), self.request) if kept.symptom.is_like(wanted)]
        failing = self._failing_as(wanted, like, in_full=in_full)
        return next((case for case in failing if key(case) < key(self.facts.case)), None)

    def failing(self) -> list[KeptCase]:
        """Those that fail still, in whatever way."""
        return [
            kept
            for kept in keeping.of_target(keeping.load(), self.request)
            if self._failing_as(kept.symptom, [kept], in_full=kept.symptom.kind == IDENTITY)
        ]

    def _failing_as(self, wanted: Symptom, kept: Sequence[KeptCase], *, in_full: bool) -> list[Case]:
        """The kept cases that fail as wanted, the smallest first."""
        cases: dict[Case, KeptCase] = {}
        for candidate in kept:
            with contextlib.suppress(UsageFailure):
                cases[self.facts.resolved({**candidate.request.options, **self.words})] = candidate
        steps = [Simplification("", "", case) for case in sorted(cases, key=key)]
        found = []
        for step, seen in self.attempts.outcomes(steps, self.facts, self.words, wanted, in_full=in_full):
            if seen.symptom is None and not seen.why_not:
                self.dropped += 1
                keeping.save([one for one in keeping.load() if one != cases[step.case]])
            found += [step.case] if seen.symptom is not None and seen.symptom.is_like(wanted) else []
        return found
