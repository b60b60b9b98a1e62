"""The search: candidates tried on a small case, and what passes there in every layout of the check."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from ...model.allowance import Allowance
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...processes.forks import Forks
from ...source.rewrites.candidates import Candidate
from ...source.rewrites.spots import Edits
from .cases import fresh, in_words, smaller
from .faults import FileFaults
from .ground import Ground, Small, printed_by
from .judge import Judge, JudgedEdit
from .trial import Came, Trial, came_of, holding, run_trial

# Edits that run at once, and those that are begun before the answer of an earlier one is taken: the same on every
# machine, since what is tried next depends on what came.
_AT_ONCE, _BEGUN = 2, 3
# Seconds of a processor for one run of one edit, which may never end.
_LONGEST_TRIAL = 60
# Scores of a case up to which an edit that is tried on it counts as one; of a larger one it counts as that many more.
_OF_ONE = 1 << 13
# How many more are tried once one is certain, since a smaller one may be too; and where others are not sure to be
# worse: it passes in some cases alone, which may be all that the kernel takes, or by visiting tiles in which nothing is
# seen.
_AFTER_ONE, _AFTER_PART = 6, 24
# On top of how many edits others are tried, beside those on top of none.
_MOST = 3
Whole = Sequence[tuple[LayoutRun, "Came | None"]]
"""What came in each layout of the check; None of those after the first that does not match."""


@dataclass(frozen=True)
class Passed:
    """An edit with which everything matches."""

    candidate: Candidate
    titles: list[str]
    """Of all that was run with it."""
    judged: JudgedEdit
    """What came of it in other cases."""
    needless: int = 0
    """How many products of nothing it adds to kernels that made none."""

    @property
    def is_certain(self) -> bool:
        """Whether nothing is left that could tell it from the right edit."""
        return not (self.needless or self.judged.doubts or self.judged.not_run)


@dataclass
class Found:
    """What came of a search."""

    passed: list[Passed] = field(default_factory=list)
    """What makes everything match."""
    closest: tuple[Candidate, Came, Came] | None = None
    """What makes some of it right: with what came with it and without any edit."""
    tried: int = 0
    """How many edits were run."""
    untried: set[Candidate] = field(default_factory=set)
    """Of the edits that diagnoses print."""
    moves: bool = False
    """Whether anything that came was other than without the edit."""
    breaks: bool = False
    """Whether an edit with which the check matches broke what is right without it in another use."""
    is_late: bool = False
    """Whether the last resort ended it."""


class Search:
    """One search, of so many edits."""

    def __init__(self, experiment: Experiment, runs: Sequence[LayoutRun], folder: Path, allowance: Allowance) -> None:
        self._experiment, self._folder, self._left = experiment, folder, allowance.count
        self._until = time.monotonic() + allowance.seconds
        self._plain = [run for run in runs if run.is_plain and run.measured is not None]
        self.wrong = [run for run in self._plain if not run.matches]
        self._copies = count()
        self._modules: dict[str, list[str]] = {}
        self._faults: Sequence[FileFaults] = ()
        self._grounds: list[Ground] = []
        spoilt = {name for run in self.wrong for name in came_of(run).names}
        self._judge = Judge(experiment, self._all, spoilt, [run.layout for run in self._plain])

    def run(self, faults: Sequence[FileFaults]) -> Found:
        """Tries candidates until one is certain that nothing is likelier than, or as many were tried as may be.

        Nothing is tried where nothing goes wrong in a fork as it did in the check.
        """
        self._faults, self._grounds = faults, [Ground(faults, self.wrong[0])]
        printed, left = printed_by(faults), _AFTER_PART
        found, said = Found(untried=set(printed)), {each.edits for each in printed}
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for ground, candidate, came in self._screened(forks, found):
                before = len(found.passed)
                if came is not None:
                    self._weigh(ground, candidate, came, found)
                left -= _spent(found, before)
                if left <= 0 or _has_what_is_said(found, said):
                    break
        found.is_late = time.monotonic() > self._until
        return found

    def _likeliest(self) -> Ground | None:
        """The ground whose next candidate is the likeliest, the latest one of several, on a case that shows it."""
        while self._grounds:
            ground = min(reversed(self._grounds), key=lambda each: each.cost)
            if ground.cost == math.inf:
                return None
            if ground.small is None:
                self._begin(ground)
            if ground.small is not None:
                return ground
            self._grounds.remove(ground)
        return None

    def _begin(self, ground: Ground) -> None:
        """Begins on the smallest case that shows what is wrong."""
        ground.larger = self._showing(ground)
        ground.small = next(ground.larger, None)

    def _screened(self, forks: Forks, found: Found) -> Iterator[tuple[Ground, Candidate, Came | None]]:
        """Each candidate with what came of it on the small case of its ground, in the order in which they begin."""
        while True:
            # The next one is made ready while forks work.
            while len(forks) < _BEGUN and self._left > 0 and (ground := self._likeliest()) is not None:
                assert ground.small is not None
                candidate, (trial, _) = ground.take(), ground.small
                forks.add((ground, trial, candidate), self._trying(trial, candidate, self._written(candidate)))
                self._left -= max(1, trial.case.scores // _OF_ONE)
            answer = next(forks.answers(self._until), None)
            if answer is None:
                return
            (ground, trial, candidate), came = answer
            found.tried += 1
            found.untried.discard(candidate)
            if ground.small is not None and trial is ground.small[0]:
                yield ground, candidate, came
            elif came is not None and came.matches:
                # It passed a case that was found too small meanwhile.
                ground.due.append(candidate)

    def _weigh(self, ground: Ground, candidate: Candidate, came: Came, found: Found) -> None:
        """Keeps what passes in the whole check, and what helps; more is sought on top of that."""
        assert ground.small is not None
        small, before = ground.small
        found.moves |= bool(came.failure) or came.errors != before.errors
        if not came.matches:
            closest, is_better = found.closest, ground.weigh(candidate, came)
            if is_better and (closest is None or ground.base is not None or came.is_better_than(closest[1])):
                found.closest = candidate, came, closest[2] if closest else before
            if ground.is_due and ground.best is not None:
                self._build_on(ground.best[0], ground.failing, (small, ground.best[1]))
            return
        titles, whole = self._confirmed(candidate)
        judged = self._judge.judged(candidate) if titles else None
        if judged is not None:
            found.passed.append(Passed(candidate, titles, judged, self._needless(candidate, whole)))
        elif titles:
            found.breaks = True
        elif self._goes_on(ground, candidate, whole):
            found.closest = candidate, came, found.closest[2] if found.closest else before

    def _goes_on(self, ground: Ground, candidate: Candidate, whole: Whole) -> bool:
        """Goes on after an edit that passed the small case and not the check; whether on top of it.

        Where the same layout is still wrong the case was too small to tell. Where another is, something else may be.
        """
        wrong = next(((run, came) for run, came in whole if came is not None and not came.matches), None)
        if wrong is None:
            return False
        run, came = wrong
        if run.layout == ground.failing.layout:
            ground.enlarge(candidate)
            return False
        is_left = not run.matches and came.is_no_worse_than(came_of(run))
        if is_left:
            self._build_on(candidate, run)
        return is_left

    def _build_on(self, base: Candidate, failing: LayoutRun, small: Small | None = None) -> None:
        """Also tries candidates on top of an edit, for what is still wrong with it in a layout."""
        if len(self._grounds) <= _MOST:
            self._grounds.append(Ground(self._faults, failing, base, small))

    def _showing(self, ground: Ground) -> Iterator[Small]:
        """The cases in which the same results go wrong, the smallest first, and what comes there.

        None in which memory suffers that does not in the layout itself: what only takes other lengths is right in none.
        """
        failing, candidate = ground.failing, ground.base or Candidate(self._faults[0].file, (), 0.0)
        due = came_of(failing)
        for case in smaller(self._experiment.case, failing):
            trial = Trial(case, failing.assigned, failing.layout)
            (came,) = self._all(candidate, [trial])
            if came is not None and not came.failure and not came.matches and came.is_no_worse_than(due):
                yield trial, came

    def _confirmed(self, candidate: Candidate) -> tuple[list[str], Whole]:
        """What comes of an edit in the whole check.

        Returns:
            The titles of all trials, where all match, fresh values included, else none; and what came in each layout.
        """
        runs = [*self.wrong, *(run for run in self._plain if run.matches)]
        came = self._all(candidate, [Trial(self._experiment.case, run.assigned, run.layout) for run in runs])
        draw = self._drawn_afresh(candidate, runs[0]) if all(each is not None and each.matches for each in came) else ""
        return [*(run.layout for run in self._plain), draw] if draw else [], list(zip(runs, came, strict=True))

    def _needless(self, candidate: Candidate, whole: Whole) -> int:
        """How many products of nothing an edit adds in the first layout; 0 where the file as it is makes some."""
        (run, came), *_ = whole
        if came is None or not came.idle:
            return 0
        nothing = Candidate(candidate.file, (), 0.0)
        (before,) = self._all(nothing, [Trial(self._experiment.case, run.assigned, run.layout)])
        is_tight = before is not None and before.products > 0 and not before.idle
        return came.idle if is_tight else 0

    def _drawn_afresh(self, candidate: Candidate, run: LayoutRun) -> str:
        """What fresh draw matches, "" where none does.

        A kernel may take no length that ends inside a tile: where one is wrong twice the lengths are to match, and the
        judge says what it doubts. A length that it refuses says nothing.
        """
        for number, case in enumerate(fresh(self._experiment.case)):
            (came,) = self._all(candidate, [Trial(case, run.assigned, "")])
            if came is not None and came.matches:
                return f"a fresh draw ({in_words(case)})"
            if came is None or (number and came.names):
                break
        return ""

    def _all(self, candidate: Candidate, trials: Sequence[Trial]) -> list[Came | None]:
        """What comes of each trial; None of those after one that does not match."""
        copy, came = self._written(candidate), dict[Trial, Came | None]()
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for trial in trials:
                forks.add(trial, self._trying(trial, candidate, copy))
            for trial, each in forks.answers(self._until):
                came[trial] = each
                if each is None or not each.matches:
                    break
        return [came.get(trial) for trial in trials]

    def _trying(self, trial: Trial, candidate: Candidate, copy: Path) -> partial[Came]:
        file = candidate.file.file
        return partial(run_trial, self._experiment, trial, file, copy, self._modules[file])

    def _written(self, candidate: Candidate) -> Path:
        """A copy of the file with the edits, under the file's own name."""
        if candidate.file.file not in self._modules:
            self._modules[candidate.file.file] = holding(candidate.file.file)
        copy = self._folder / str(next(self._copies)) / candidate.file.path.name
        copy.parent.mkdir()
        copy.write_bytes(candidate.text.encode())
        return copy


def _spent(found: Found, before: int) -> int:
    """What of `_AFTER_PART` the last edit that was tried takes, where so many had passed before it.

    Each that passes beside others takes more, since it is put to many cases.
    """
    is_dear = any(each.is_certain for each in found.passed) or len(found.passed) > max(before, 1)
    return bool(found.passed) * (_AFTER_PART // _AFTER_ONE if is_dear else 1)


def _has_what_is_said(found: Found, said: set[Edits]) -> bool:
    """Whether an edit is certain that a cause says itself: no other is better."""
    return any(each.is_certain and each.candidate.edits in said for each in found.passed)
