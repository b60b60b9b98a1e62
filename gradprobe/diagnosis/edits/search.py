"""The search: candidates tried on a small case, and what passes there in every layout of the check."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from ...model.assignment import run_name
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...processes.forks import Forks
from ...source.repairs.candidates import Candidate, candidates_of
from .cases import fresh, in_words, smaller
from .faults import FileFaults
from .trial import Came, Trial, holding, run_trial

_AT_ONCE = 2
# Seconds for one run of one edit.
_LONGEST_TRIAL = 60.0
# How much later the lines of the next diagnosis are tried, in the ranks of the rules.
_NEXT = 0.5
# The same of lines that no diagnosis names, where any is named.
_UNNAMED = 3.0
# Layouts that tell edits apart which are the same when contiguous: no strides agree; q, k and v are programs' views.
_ELSEWHERE = ((("all", "distinct"),), (("q", "blhd"), ("k", "blhd"), ("v", "blhd")))
# How many more are tried once one makes some result right and leaves others wrong, until the next is sought beside it;
# and how many once one passes, since a smaller one may too.
_BEFORE_TWO, _AFTER_ONE = 24, 6


@dataclass(frozen=True)
class Passed:
    """An edit with which everything matches."""

    candidate: Candidate
    titles: list[str]
    """Of all that was run with it."""
    elsewhere: int
    """How many elements are wrong with it in layouts that a check without `distinct` leaves out: of two edits that are
    the same in its own the right one is the better there."""


@dataclass
class Found:
    """What came of a search."""

    passed: list[Passed] = field(default_factory=list)
    """What makes everything match."""
    closest: tuple[Candidate, Came, Came] | None = None
    """What makes some of it right: with what came with it and without it."""
    tried: int = 0
    ran: bool = True
    """Whether the file as it is fails in a fork as it failed in the check; nothing is tried where it does not."""


class Search:
    """One search, within a time."""

    def __init__(self, experiment: Experiment, runs: Sequence[LayoutRun], folder: Path, budget: float) -> None:
        self._experiment, self._folder = experiment, folder
        self._until = time.monotonic() + budget
        self._at_the_latest = self._until + budget  # what passes the small case in time is put to all of the check
        self._plain = [run for run in runs if run.is_plain and run.measured is not None]
        self._wrong = [run for run in self._plain if not run.matches]
        self._copies = count()
        self._modules: dict[str, list[str]] = {}

    def run(self, faults: Sequence[FileFaults]) -> Found:
        """Tries the candidates of all faults until one passes, or the time is over."""
        found = Found()
        if not self._wrong or not faults:
            return found
        with Forks(_AT_ONCE) as forks:
            base: Candidate | None = None
            failing = self._wrong[0]
            while not found.passed and time.monotonic() < self._until:
                further = self._round(forks, found, faults, base, failing)
                if further is None:
                    break
                base, failing = further
        return found

    def _round(
        self,
        forks: Forks,
        found: Found,
        faults: Sequence[FileFaults],
        base: Candidate | None,
        failing: LayoutRun,
    ) -> tuple[Candidate, LayoutRun] | None:
        """Tries candidates on top of what is there.

        Returns:
            What the next round begins with: an edit that leaves something wrong, and the layout in which it does.
        """
        trial, before = self._small(faults, base, failing)
        if before is None:
            found.ran = base is not None
            return None
        waiting, left = _in_turn(faults, base), _BEFORE_TWO
        better: tuple[Candidate, Came] | None = None
        after = _AFTER_ONE
        for candidate, came in self._screened(forks, trial, waiting):
            found.tried += 1
            if came is not None and came.matches:
                titles, wrong = self._confirmed(candidate)
                if titles:
                    found.passed.append(Passed(candidate, titles, self._elsewhere(candidate)))
                elif wrong is not None and not found.passed:
                    found.closest = found.closest or (candidate, came, before)
                    return candidate, wrong
            elif came is not None and came.is_better_than(before if better is None else better[1]):
                better = (candidate, came)
            left -= better is not None
            after -= bool(found.passed)
            if (better and not left and not found.passed) or not after:
                break
        if better is not None and found.closest is None:
            found.closest = (*better, before)
        return (better[0], failing) if better is not None and not found.passed else None

    def _screened(
        self, forks: Forks, trial: Trial, waiting: Iterator[Candidate]
    ) -> Iterator[tuple[Candidate, Came | None]]:
        """Each candidate with what came of it on the small case, as long as there is time."""
        more = True
        while more and time.monotonic() < self._until:
            while more and forks.idle > 0:
                candidate = next(waiting, None)
                more = candidate is not None
                if candidate is not None:
                    forks.add(candidate, partial(self._tried, trial, candidate, self._written(candidate)))
            for each in forks.answers(self._until, _LONGEST_TRIAL):
                yield each
                break
        for each in forks.answers(self._until, _LONGEST_TRIAL):
            yield each

    def _small(
        self, faults: Sequence[FileFaults], base: Candidate | None, failing: LayoutRun
    ) -> tuple[Trial, Came | None]:
        """The smallest case in which the same results go wrong, and what comes there; None where none does."""
        candidate = base or Candidate(faults[0].file, (), 0.0)
        trial = Trial(self._experiment.case, failing.assigned, failing.layout)
        for case in smaller(self._experiment.case, failing):
            trial = Trial(case, failing.assigned, failing.layout)
            (came,) = self._all(candidate, [trial])
            if came is not None and not came.failure and not came.matches and came.names <= _wrong_names(failing):
                return trial, came
        return trial, None

    def _confirmed(self, candidate: Candidate) -> tuple[list[str], LayoutRun | None]:
        """The titles of all trials that the check stands for, where all of them match.

        Returns:
            Nothing where one does not; and the layout that failed before and fails no worse, where that is why.
        """
        runs = [*self._wrong, *(run for run in self._plain if run.matches)]
        trials = [Trial(self._experiment.case, run.assigned, run.layout) for run in runs]
        came = self._all(candidate, trials)
        for run, one in zip(runs, came, strict=True):
            if one is not None and not one.matches:
                is_left = not run.matches and not one.failure and one.names <= _wrong_names(run)
                return [], run if is_left else None
        titles = [run.layout for run in self._plain]
        draw = None if None in came else self._drawn_afresh(candidate, runs[0])
        return ([*titles, draw] if draw else []), None

    def _elsewhere(self, candidate: Candidate) -> int:
        if any(run.layout.startswith("distinct") for run in self._plain) or self._experiment.case.inputs:
            return 0
        trials = [Trial(self._experiment.case, assigned, run_name(assigned)) for assigned in _ELSEWHERE]
        found = [came for trial in trials for came in self._all(candidate, [trial])]
        return sum(sum(came.wrong.values()) for came in found if came is not None)

    def _drawn_afresh(self, candidate: Candidate, run: LayoutRun) -> str | None:
        """What fresh draw matches; a length that the file as it is refuses too is left out."""
        for case in fresh(self._experiment.case):
            trial = Trial(case, run.assigned, f"a fresh draw ({in_words(case)})")
            (came,) = self._all(candidate, [trial])
            if came is not None and came.matches:
                return trial.title
            (plain,) = self._all(Candidate(candidate.file, (), 0.0), [trial])
            if plain is None or not plain.failure:
                return None
        return None

    def _all(self, candidate: Candidate, trials: Sequence[Trial]) -> list[Came | None]:
        """What comes of each trial; None of those after one that does not match."""
        copy, came = self._written(candidate), dict[Trial, Came | None]()
        with Forks(_AT_ONCE) as forks:
            for trial in trials:
                forks.add(trial, partial(self._tried, trial, candidate, copy))
            for trial, one in forks.answers(self._at_the_latest, _LONGEST_TRIAL):
                came[trial] = one
                if one is None or not one.matches:
                    break
        return [came.get(trial) for trial in trials]

    def _tried(self, trial: Trial, candidate: Candidate, copy: Path) -> Came:
        return run_trial(self._experiment, trial, candidate.file.file, copy, self._modules[candidate.file.file])

    def _written(self, candidate: Candidate) -> Path:
        """A copy of the file with the edits, under the file's own name."""
        if candidate.file.file not in self._modules:
            self._modules[candidate.file.file] = holding(candidate.file.file)
        copy = self._folder / str(next(self._copies)) / candidate.file.path.name
        copy.parent.mkdir()
        copy.write_bytes(candidate.text.encode())
        return copy


def _wrong_names(run: LayoutRun) -> set[str]:
    """The results that are wrong in a run."""
    findings = run.measured.comparison.findings if run.measured is not None else {}
    return {name for name, one in findings.items() if one.mismatched}


def _in_turn(faults: Sequence[FileFaults], base: Candidate | None) -> Iterator[Candidate]:
    """The candidates of all faults, the likeliest first, on top of what is there; those of a worse diagnosis later."""

    def costed(at: int, one: FileFaults) -> Iterator[tuple[float, int, int, Candidate]]:
        late = _UNNAMED if one.diagnosis is None and faults[0].diagnosis is not None else 0.0
        for number, candidate in enumerate(candidates_of(one.file, one.faults, one.wanted)):
            whole = candidate if base is None else base.with_more(candidate.edits)
            if whole is not None and (base is None or base.file is one.file):
                yield candidate.cost + at * _NEXT + late, at, number, whole

    yield from (each[-1] for each in heapq.merge(*(costed(at, one) for at, one in enumerate(faults))))
