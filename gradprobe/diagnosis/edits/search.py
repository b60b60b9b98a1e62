"""The search: candidates tried on a small case for each cause, and what passes there in every layout of the check."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from ...faults.hypothesis import Hypothesis
from ...model.allowance import Allowance
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...processes.forks import Forks
from ...source.repairs.candidates import Candidate
from .cases import fresh, in_words, lengths_of, smaller
from .cause import Cause
from .found import Found, Mend, Passed
from .hunt import Ground, Hunt, Small
from .judge import Judge
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


class Search:
    """One search, of so many edits."""

    def __init__(self, experiment: Experiment, runs: Sequence[LayoutRun], folder: Path, allowance: Allowance) -> None:
        self._experiment, self._folder, self._no_worse = experiment, folder, allowance.count
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
        found = Found(hunts=list(map(Hunt, causes)))
        left = _AFTER_PART
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

    def _begin(self, hunt: Hunt, ground: Ground) -> None:
        """Begins on the smallest case that shows what is wrong; the ground is left where there is none."""
        ground.larger = self._showing(hunt.cause, ground)
        ground.small = next(ground.larger, None)
        if ground.small is None:
            hunt.leave(ground)

    def _screened(self, forks: Forks, hunts: Sequence[Hunt]) -> Iterator[tuple[Hunt, Ground, Candidate, Came | None]]:
        """Each candidate with what came of it on the small case of its cause, in the order in which they were begun."""
        while True:
            # The next one is made ready while forks work.
            while (hunt := _likeliest(hunts)) is not None and len(forks) < _BEGUN and self._no_worse > 0:
                ground = hunt.likeliest
                if ground.small is None:
                    self._begin(hunt, ground)
                    continue
                candidate, (trial, before) = ground.take(), ground.small
                work = partial(self._tried, trial, candidate, self._written(candidate), hunt.cause.others, before)
                forks.add((hunt, ground, trial, candidate), work)
                self._no_worse -= max(1, trial.case.scores // _OF_ONE)
            for (hunt, ground, trial, candidate), came in forks.answers(self._until):
                hunt.tried += 1
                hunt.untried.discard(candidate)
                if hunt.is_over:
                    break
                if ground.small is not None and trial is ground.small[0]:
                    yield hunt, ground, candidate, came
                elif came is not None and hunt.cause.is_undone(came):
                    # It passed a case that was found too small meanwhile.
                    ground.joined.append(candidate)
                break
            else:
                return

    def _helps(self, hunt: Hunt, ground: Ground, candidate: Candidate, came: Came, found: Found) -> bool:
        """Whether a cause is undone by an edit, or more of it than before."""
        if not hunt.cause.is_undone(came):
            return hunt.weigh(ground, candidate, came)
        titles, at_others, whole = self._confirmed(hunt.cause, candidate)
        if titles:
            judged = self._judge.judged(candidate)
            hunt.breaks |= judged is None
            if judged is not None:
                needless = self._needless(hunt.cause, candidate, whole)
                found.passed.append(Passed(candidate, titles, judged, at_others, needless))
            return False
        mend = None if hunt.cause.is_all else _mend(hunt.cause, candidate, whole)
        if mend is None:
            self._go_on(hunt, ground, candidate, came, whole)
            return False
        hunt.weigh(ground, candidate, came)
        if mend.is_sure:
            found.mends[hunt.cause.fault] = mend
        hunt.is_over = mend.is_sure or came.matches
        return True

    def _go_on(self, hunt: Hunt, ground: Ground, candidate: Candidate, came: Came, whole: Whole) -> None:
        """Goes on after an edit that passed the small case and not the check.

        Where the same layout is still wrong the case was too small to tell. Where another is, something else may be.
        """
        wrong = next((run for run, other in whole if other is not None and not hunt.cause.is_undone(other)), None)
        if wrong is not None and wrong.layout == ground.failing.layout:
            ground.enlarge(candidate)
        elif hunt.cause.is_all and (left := _no_worse(whole)) is not None:
            hunt.keep(ground, candidate, came)
            hunt.build_on(candidate, left)

    def _try_together(self, found: Found) -> None:
        """Puts what undoes each cause, or comes closest to it, to the check as one edit."""
        parts = [(hunt.cause, best) for hunt in found.hunts if (best := found.best(hunt)) is not None]
        together = _joined([candidate for _, candidate in parts]) if len(parts) == len(found.hunts) > 1 else None
        trials = [hunt.first.small[0] for hunt in found.hunts if hunt.first.small is not None]
        if together is None or not _all_match(self._all(together, trials)):
            return
        titles, at_others, _ = self._confirmed(Cause((), tuple(self.wrong)), together)
        judged = self._judge.judged(together) if titles else None
        if judged is not None:
            found.passed.append(Passed(together, titles, judged, at_others, parts=tuple(parts)))

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

    def _confirmed(self, cause: Cause, candidate: Candidate) -> tuple[list[str], str, Whole]:
        """What comes of an edit in the whole check.

        Returns:
            The titles of all trials, where all match, fresh values included, else none; what is wrong with other
            lengths; and what came in each layout, where one edit is to undo everything until the first that does not
            match.
        """
        runs = [*self.wrong, *(run for run in self._plain if run.matches)]
        trials = [Trial(self._experiment.case, run.assigned, run.layout) for run in runs]
        came = self._all(candidate, trials, cause.others, every=not cause.is_all)
        draw, at_others = self._drawn_afresh(candidate, runs[0]) if _all_match(came) else ("", "")
        titles = [*(run.layout for run in self._plain), draw] if draw else []
        return titles, at_others, list(zip(runs, came, strict=True))

    def _needless(self, cause: Cause, candidate: Candidate, whole: Whole) -> int:
        """How many products of nothing an edit adds in the first layout; 0 where the file as it is makes some."""
        (run, came), *_ = whole
        if came is None or not came.idle:
            return 0
        nothing = Candidate(candidate.file, (), 0.0)
        (before,) = self._all(nothing, [Trial(self._experiment.case, run.assigned, run.layout)], cause.others)
        is_tight = before is not None and before.products > 0 and not before.idle
        return came.idle if is_tight else 0

    def _drawn_afresh(self, candidate: Candidate, run: LayoutRun) -> tuple[str, str]:
        """What fresh draw matches, "" where none does, and what is wrong with other lengths.

        A kernel may take no length that ends inside a tile: what is wrong with one is told where twice the lengths
        match. A length that it refuses says nothing.
        """
        at_others = ""
        for number, case in enumerate(fresh(self._experiment.case)):
            (came,) = self._all(candidate, [trial := Trial(case, run.assigned, "")])
            if came is None or (at_others and number > 1):
                break
            if came.matches:
                return f"a fresh draw ({in_words(case)})", at_others
            if came.names and self._judge.may_take(candidate, trial, came):
                if number:
                    break
                at_others = f"{lengths_of(case)}: {' and '.join(sorted(came.names))} wrong"
        return "", ""

    def _all(
        self, candidate: Candidate, trials: Sequence[Trial], others: Sequence[Hypothesis] = (), *, every: bool = False
    ) -> list[Came | None]:
        """What comes of each trial; None of those after one that does not match, unless every one is to be run."""
        copy, came = self._written(candidate), dict[Trial, Came | None]()
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for trial in trials:
                forks.add(trial, partial(self._tried, trial, candidate, copy, others))
            for trial, one in forks.answers(self._until):
                came[trial] = one
                if not every and (one is None or not one.matches):
                    break
        return [came.get(trial) for trial in trials]

    def _tried(
        self,
        trial: Trial,
        candidate: Candidate,
        copy: Path,
        others: Sequence[Hypothesis] = (),
        before: Came | None = None,
    ) -> Came:
        modules = self._modules[candidate.file.file]
        return run_trial(self._experiment, trial, candidate.file.file, copy, modules, others, before)

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
    is_dear = any(one.is_certain for one in found.passed) or len(found.passed) > max(before, 1)
    return bool(found.passed) * (_AFTER_PART // _AFTER_ONE if is_dear else 1)


def _likeliest(hunts: Sequence[Hunt]) -> Hunt | None:
    """The hunt whose next candidate is the likeliest; None where none has any."""
    waiting = [hunt for hunt in hunts if not hunt.is_over and hunt.cost < math.inf]
    return min(waiting, key=lambda hunt: hunt.cost, default=None)


def _no_worse(whole: Whole) -> LayoutRun | None:
    """The layout that failed before and fails no worse, where that is all that keeps an edit from passing."""
    run, came = next(((run, came) for run, came in whole if came is not None and not came.matches), (None, None))
    if run is None or came is None or run.matches or not came.is_no_worse_than(came_of(run)):
        return None
    return run


def _all_match(came: Sequence[Came | None]) -> bool:
    return all(one is not None and one.matches for one in came)


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


def _joined(several: Sequence[Candidate]) -> Candidate | None:
    """All edits as one; None where two overlap or are of different files."""
    together: Candidate | None = several[0]
    for one in several[1:]:
        together = together.with_more(one.edits) if together is not None and one.file is together.file else None
    return together
