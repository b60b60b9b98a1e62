"""The search: candidates tried on a small case for each cause, and what passes there in every layout of the check."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from ...faults.hypothesis import Hypothesis
from ...model.allowance import Allowance
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...processes.forks import Forks
from ...source.rewrites.candidates import Candidate
from .cases import fresh, in_words, smaller
from .hunt import Cause, Ground, Hunt, Mend, Small
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
Whole = Sequence[tuple[LayoutRun, "Came | None"]]
"""What came in each layout of the check; None of one that was not run to its end."""


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
    parts: tuple[tuple[Hunt, Candidate], ...] = ()
    """Where it undoes several causes, what of it undoes which."""

    @property
    def is_certain(self) -> bool:
        """Whether nothing is left that could tell it from the right edit."""
        return not (self.needless or self.judged.doubts or self.judged.not_run)


@dataclass
class Found:
    """What came of a search."""

    passed: list[Passed] = field(default_factory=list)
    """What makes everything match."""
    hunts: list[Hunt] = field(default_factory=list)
    """All that was tried, by cause."""
    is_late: bool = False
    """Whether the last resort ended it."""

    @property
    def tried(self) -> int:
        """How many edits were run."""
        return sum(hunt.tried for hunt in self.hunts)

    @property
    def has_what_is_said(self) -> bool:
        """Whether an edit is certain that a cause says itself: no other is better."""
        said = {printed.edits for hunt in self.hunts for printed in hunt.cause.printed}
        return any(each.is_certain and each.candidate.edits in said for each in self.passed)


class Search:
    """One search, of so many edits."""

    def __init__(self, experiment: Experiment, runs: Sequence[LayoutRun], folder: Path, allowance: Allowance) -> None:
        self._experiment, self._folder, self._left = experiment, folder, allowance.count
        self._until = time.monotonic() + allowance.seconds
        self._plain = [run for run in runs if run.is_plain and run.measured is not None]
        self.wrong = [run for run in self._plain if not run.matches]
        self._copies = count()
        self._modules: dict[str, list[str]] = {}
        spoilt = {name for run in self.wrong for name in came_of(run).names}
        self._judge = Judge(experiment, self._all, spoilt, [run.layout for run in self._plain])

    def run(self, causes: Sequence[Cause]) -> Found:
        """Tries the candidates of all causes until all are undone, or as many were tried as may be.

        Nothing is tried for a cause that does not show in a fork as it did in the check.
        """
        found, left = Found(hunts=list(map(Hunt, causes))), _AFTER_PART
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for hunt, ground, candidate, came in self._screened(forks, found.hunts):
                before = len(found.passed)
                helps = came is not None and self._helps(hunt, ground, candidate, came, found)
                if helps and not found.passed:
                    self._try_together(found)
                left -= _spent(found, before)
                if left <= 0 or found.has_what_is_said or all(hunt.is_over for hunt in found.hunts):
                    break
        found.is_late = time.monotonic() > self._until
        return found

    def _screened(self, forks: Forks, hunts: Sequence[Hunt]) -> Iterator[tuple[Hunt, Ground, Candidate, Came | None]]:
        """Each candidate with what came of it on the small case of its cause, in the order in which they were begun."""
        while True:
            # The next one is made ready while forks work.
            while len(forks) < _BEGUN and self._left > 0:
                hunt = min(hunts, key=lambda hunt: hunt.cost)  # of which the next candidate is the likeliest
                if hunt.cost == math.inf:
                    break
                ground = hunt.likeliest
                if ground.small is None and not self._begin(hunt, ground):
                    continue
                assert ground.small is not None
                candidate, (trial, before) = ground.take(), ground.small
                work = self._trying(trial, candidate, self._written(candidate), hunt.cause.others, before)
                forks.add((hunt, ground, trial, candidate), work)
                self._left -= max(1, trial.case.scores // _OF_ONE)
            answer = next(forks.answers(self._until), None)
            if answer is None:
                return
            (hunt, ground, trial, candidate), came = answer
            hunt.tried += 1
            hunt.untried.discard(candidate)
            if hunt.is_over:
                continue
            if ground.small is not None and trial is ground.small[0]:
                yield hunt, ground, candidate, came
            elif came is not None and hunt.cause.is_undone(came):
                # It passed a case that was found too small meanwhile.
                ground.due.append(candidate)

    def _begin(self, hunt: Hunt, ground: Ground) -> bool:
        """Begins on the smallest case that shows what is wrong; the ground is left where there is none."""
        ground.larger = self._showing(hunt.cause, ground)
        ground.small = next(ground.larger, None)
        if ground.small is None:
            hunt.grounds.remove(ground)
            hunt.is_over = hunt.is_over or not hunt.grounds
        return ground.small is not None

    def _helps(self, hunt: Hunt, ground: Ground, candidate: Candidate, came: Came, found: Found) -> bool:
        """Whether a cause of several is undone by an edit, or more of it than before."""
        if not hunt.cause.is_undone(came):
            return hunt.weigh(ground, candidate, came)
        titles, whole = self._confirmed(hunt.cause, candidate)
        if titles:
            judged = self._judge.judged(candidate)
            hunt.breaks |= judged is None
            if judged is not None:
                found.passed.append(Passed(candidate, titles, judged, self._needless(candidate, whole)))
            return False
        mend = None if hunt.cause.is_all else _mend(hunt.cause, candidate, whole)
        if mend is None:
            self._go_on(hunt, ground, candidate, came, whole)
            return False
        hunt.weigh(ground, candidate, came)
        hunt.mend = mend if mend.is_sure else hunt.mend
        hunt.is_over = mend.is_sure or came.matches
        return True

    def _go_on(self, hunt: Hunt, ground: Ground, candidate: Candidate, came: Came, whole: Whole) -> None:
        """Goes on after an edit that passed the small case and not the check.

        Where the same layout is still wrong the case was too small to tell. Where another is, something else may be.
        """
        left = ((run, other) for run, other in whole if other is not None and not hunt.cause.is_undone(other))
        run, other = next(left, (None, None))
        if run is None or other is None:
            return
        if run.layout == ground.failing.layout:
            ground.enlarge(candidate)
        elif hunt.cause.is_all and not run.matches and other.is_no_worse_than(came_of(run)):
            hunt.keep(ground, candidate, came)
            hunt.build_on(candidate, run)

    def _try_together(self, found: Found) -> None:
        """Puts what undoes each cause, or comes closest to it, to the check as one edit."""
        parts = [(hunt, part) for hunt in found.hunts if (part := hunt.part) is not None]
        together = parts[0][1] if len(parts) == len(found.hunts) > 1 else None
        for _, part in parts[1:]:
            together = together.with_more(part.edits) if together and part.file is together.file else None
        trials = [hunt.first.small[0] for hunt in found.hunts if hunt.first.small is not None]
        if together is None or not _all_match(self._all(together, trials)):
            return
        titles, _ = self._confirmed(Cause((), tuple(self.wrong)), together)
        judged = self._judge.judged(together) if titles else None
        if judged is not None:
            found.passed.append(Passed(together, titles, judged, parts=tuple(parts)))

    def _showing(self, cause: Cause, ground: Ground) -> Iterator[Small]:
        """The cases in which the same results go wrong, the smallest first, and what comes there.

        Of one of several causes all of them, and not by the others alone. None in which memory suffers that does not
        in the layout itself: what only takes other lengths is right in none.
        """
        failing, candidate = ground.failing, ground.base or Candidate(cause.faults[0].file, (), 0.0)
        due = came_of(failing)
        for case in smaller(self._experiment.case, failing):
            trial = Trial(case, failing.assigned, failing.layout)
            (came,) = self._all(candidate, [trial], cause.others)
            if came is None or came.failure or came.matches or not came.is_no_worse_than(due):
                continue
            if cause.is_all or (came.names == due.names and not cause.is_undone(came)):
                yield trial, came

    def _confirmed(self, cause: Cause, candidate: Candidate) -> tuple[list[str], Whole]:
        """What comes of an edit in the whole check.

        Returns:
            The titles of all trials, where all match, fresh values included, else none; and what came in each layout,
            where one edit is to undo everything until the first that does not match.
        """
        runs = [*self.wrong, *(run for run in self._plain if run.matches)]
        trials = [Trial(self._experiment.case, run.assigned, run.layout) for run in runs]
        came = self._all(candidate, trials, cause.others, every=not cause.is_all)
        draw = self._drawn_afresh(candidate, runs[0]) if _all_match(came) else ""
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

    def _all(
        self, candidate: Candidate, trials: Sequence[Trial], others: Sequence[Hypothesis] = (), *, every: bool = False
    ) -> list[Came | None]:
        """What comes of each trial; None of those after one that does not match, unless every one is to be run."""
        copy, came = self._written(candidate), dict[Trial, Came | None]()
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for trial in trials:
                forks.add(trial, self._trying(trial, candidate, copy, others))
            for trial, each in forks.answers(self._until):
                came[trial] = each
                if not every and (each is None or not each.matches):
                    break
        return [came.get(trial) for trial in trials]

    def _trying(
        self,
        trial: Trial,
        candidate: Candidate,
        copy: Path,
        others: Sequence[Hypothesis] = (),
        before: Came | None = None,
    ) -> partial[Came]:
        file = candidate.file.file
        return partial(run_trial, self._experiment, trial, file, copy, self._modules[file], others, before)

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


def _all_match(came: Sequence[Came | None]) -> bool:
    return all(each is not None and each.matches for each in came)


def _mend(cause: Cause, candidate: Candidate, whole: Whole) -> Mend | None:
    """The edit, where it makes every layout that shows its cause better, and none worse."""
    layouts, shown = [], {run.layout for run in cause.shown}
    for run, came in whole:
        before = came_of(run)
        if came is None or not came.is_no_worse_than(before):
            return None
        if run.layout in shown:
            if not (cause.is_undone(came) or came.is_better_than(before)):
                return None
            layouts.append((run.layout, came, before))
    return Mend(cause, candidate, tuple(layouts))
