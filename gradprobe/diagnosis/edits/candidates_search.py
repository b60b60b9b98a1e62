"""The search: candidates in order, each tried on the smallest case that shows the fault; what passes is judged."""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from ...model.allowance import Allowance
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...processes.forks import Forks
from ...source.rewrites.candidates import SOONEST, Candidate, candidates_of
from ...source.rewrites.spots import Edits
from .cases import fresh, in_words, smaller
from .faults import FileFaults
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
# How much later the lines of the next diagnosis are tried, in the ranks of the rows; and those that none names.
_NEXT, _UNNAMED = 0.5, 3.0
# How many more are tried once one makes some result right and leaves others wrong, until more are sought beside it.
_BEFORE_TWO = 24
# How much sooner that is tried which is on top of an edit with which a whole layout matches.
_SOONER = 1.5
# On top of how many edits others are tried, beside those on top of none.
_MOST = 3
Small = tuple[Trial, Came]
"""A case, and what comes there."""
Costed = tuple[float, Candidate]
"""How unlikely a candidate is, and it."""
Whole = Sequence[tuple[LayoutRun, Came | None]]
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
    moves: bool = False
    """Whether anything that came was other than without the edit."""
    is_late: bool = False
    """Whether the last resort ended it."""

    def keep(self, candidate: Candidate, came: Came, before: Came) -> None:
        """Keeps what comes closest."""
        self.closest = candidate, came, self.closest[2] if self.closest else before


@dataclass(eq=False)
class Ground:
    """What candidates are put on top of, an edit or nothing, and the small case that they are tried on."""

    failing: LayoutRun
    """What is still wrong."""
    cases: Iterator[Small]
    """Those in which it shows, from the quickest on."""
    waiting: Iterator[Costed]
    """The candidates, the likeliest first."""
    small: Small | None = None
    due: deque[Candidate] = field(default_factory=deque)
    """What is to be tried before all others."""
    best: tuple[Candidate, Came] | None = None
    left: int = _BEFORE_TWO
    """How many more are tried until others are sought on top of the best."""
    _ahead: Costed | None = None

    @property
    def cost(self) -> float:
        """How unlikely the next candidate is; infinite where there is none."""
        if self.due:
            return -math.inf
        self._ahead = self._ahead or next(self.waiting, None)
        return self._ahead[0] if self._ahead else math.inf

    def take(self) -> Candidate:
        """The next candidate, once its cost is known."""
        if self.due:
            return self.due.popleft()
        assert self._ahead is not None
        (_, candidate), self._ahead = self._ahead, None
        return candidate

    def enlarge(self) -> bool:
        """Goes on with the next larger case in which it shows; whether there is one."""
        larger = next(self.cases, None)
        if larger is not None:
            self.due += [self.best[0]] if self.best else []
            self.small, self.best = larger, None
        return larger is not None


class Search:
    """One search, of so many edits."""

    def __init__(self, experiment: Experiment, runs: Sequence[LayoutRun], folder: Path, allowance: Allowance) -> None:
        self._experiment, self._folder, self._left = experiment, folder, allowance.count
        self._until = time.monotonic() + allowance.seconds
        self._plain = [run for run in runs if run.is_plain and run.measured is not None]
        self.wrong = [run for run in self._plain if not run.matches]
        self._found, self._grounds = Found(), list[Ground]()
        self._faults: Sequence[FileFaults] = ()
        self._copies = count()
        self._modules: dict[str, list[str]] = {}
        spoilt = {name for run in self.wrong for name in came_of(run).names}
        self._judge = Judge(experiment, self._all, spoilt, [run.layout for run in self._plain])

    def run(self, faults: Sequence[FileFaults]) -> Found:
        """Tries the candidates of some lines until one is sure, or as many were tried as may be.

        Nothing is tried where what is wrong does not show in a fork as it did in the check.
        """
        found, left = self._found, _AFTER_PART
        self._faults = faults
        self._build_on(Candidate(faults[0].file, (), 0.0), self.wrong[0])
        printed = [Candidate(each.file, each.printed, 0.0, is_wanted=True) for each in faults if each.printed]
        self._grounds[0].due += printed
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for ground, candidate, came in self._screened(forks):
                before = len(found.passed)
                (self._confirm if came.matches else self._weigh)(ground, candidate, came)
                left -= _spent(found, before)
                if left <= 0:
                    break
        found.is_late = time.monotonic() > self._until
        return found

    def _screened(self, forks: Forks) -> Iterator[tuple[Ground, Candidate, Came]]:
        """Each candidate with what came of it on the small case of its ground, in the order in which they began."""
        while True:
            # The next one is made ready while forks work.
            while len(forks) < _BEGUN and self._left > 0 and (ground := self._likeliest()):
                assert ground.small is not None
                candidate, (trial, _) = ground.take(), ground.small
                forks.add((ground, trial, candidate), partial(self._running(candidate), trial))
                self._left -= max(1, trial.case.scores // _OF_ONE)
                if candidate.is_wanted and not self._found.tried:
                    break  # it likely ends the search: nothing is begun beside it
            answer = next(forks.answers(self._until), None)
            if answer is None:
                return
            (ground, trial, candidate), came = answer
            self._found.tried += 1
            if came is not None and ground.small is not None and trial is ground.small[0]:
                yield ground, candidate, came
            elif came is not None and came.matches:
                # It passed a case that was found too small meanwhile.
                ground.due.append(candidate)

    def _likeliest(self) -> Ground | None:
        """The ground whose next candidate is the likeliest, the latest one of several; None where none has any."""
        while self._grounds:
            ground = min(reversed(self._grounds), key=lambda each: each.cost)
            if ground.cost == math.inf:
                return None
            if ground.small is not None or ground.enlarge():
                return ground
            self._grounds.remove(ground)
        return None

    def _build_on(self, base: Candidate, failing: LayoutRun, done: Collection[int] = ()) -> None:
        """Tries candidates on top of an edit, or of none, for what is wrong with it in a layout.

        Args:
            done: the lines of one that brings a whole layout right: what is wrong in another is sought soon, elsewhere.
        """
        if len(self._grounds) <= _MOST:
            waiting = _in_turn(self._faults, base, done, contiguous=failing.layout == "contiguous")
            self._grounds.append(Ground(failing, self._showing(base, failing), waiting))

    def _weigh(self, ground: Ground, candidate: Candidate, came: Came) -> None:
        """Keeps what helps; once nothing better comes for long, more is sought on top of it.

        Two edits that help differently are tried together.
        """
        assert ground.small is not None
        found, best, before = self._found, ground.best, ground.small[1]
        found.moves |= bool(came.failure) or came.errors != before.errors
        if came.is_better_than(before if best is None else best[1]):
            ground.best, ground.left = (candidate, came), _BEFORE_TWO
            is_elsewhere = ground.failing is not self.wrong[0]
            if found.closest is None or is_elsewhere or came.is_better_than(found.closest[1]):
                found.keep(candidate, came, before)
        elif best is not None and came.is_better_than(before) and best[1].names - came.names:
            both = best[0].with_more(candidate.edits)
            ground.due += [both] if both is not None else []
        ground.left -= ground.best is not None
        if ground.best is not None and ground.left == 0:
            self._build_on(ground.best[0], ground.failing)

    def _confirm(self, ground: Ground, candidate: Candidate, came: Came) -> None:
        """Puts an edit that passes the small case to the whole check, to a fresh draw and to the judge.

        Where the same layout is still wrong the case was too small to tell. Where another is, something else may be.
        """
        found, whole = self._found, self._whole(candidate)
        titles = self._titles(candidate, whole)
        if titles:
            judged = self._judge.judged(candidate)
            if judged is not None:
                found.passed.append(Passed(candidate, titles, judged, self._needless(candidate, whole)))
            return
        run, other = next(((run, other) for run, other in whole if not (other and other.matches)), (None, None))
        if run is None or other is None:
            return
        if run.layout == ground.failing.layout:
            if ground.enlarge():
                ground.due.appendleft(candidate)
        elif not run.matches and other.is_no_worse_than(came_of(run)):
            found.keep(candidate, came, came_of(ground.failing))
            self._build_on(candidate, run, candidate.lines)

    def _showing(self, base: Candidate, failing: LayoutRun) -> Iterator[Small]:
        """The cases in which the same results go wrong, the smallest first, and what comes there.

        None in which memory suffers that does not in the layout itself: what only takes other lengths is right in none.
        """
        due = came_of(failing)
        for case in smaller(self._experiment.case, failing):
            trial = Trial(case, failing.assigned, failing.layout)
            (came,) = self._all(base, [trial])
            if came is not None and not came.matches and came.is_no_worse_than(due):
                yield trial, came

    def _whole(self, candidate: Candidate) -> Whole:
        """What comes of an edit in each layout of the check, first those that are wrong, until one does not match."""
        runs = [*self.wrong, *(run for run in self._plain if run.matches)]
        trials = [Trial(self._experiment.case, run.assigned, run.layout) for run in runs]
        return list(zip(runs, self._all(candidate, trials), strict=True))

    def _titles(self, candidate: Candidate, whole: Whole) -> list[str]:
        """The titles of all trials, where all match, fresh values included; else none.

        A kernel may take no length that ends inside a tile: where one is wrong twice the lengths are to match, and the
        judge says what it doubts. A length that it refuses says nothing.
        """
        draws = fresh(self._experiment.case) if all(came and came.matches for _, came in whole) else []
        for number, case in enumerate(draws):
            (came,) = self._all(candidate, [Trial(case, whole[0][0].assigned, "")])
            if came is not None and came.matches:
                return [*(run.layout for run in self._plain), f"a fresh draw ({in_words(case)})"]
            if came is None or (number and came.names):
                break
        return []

    def _needless(self, candidate: Candidate, whole: Whole) -> int:
        """How many products of nothing an edit adds in the first layout; 0 where the file as it is makes some."""
        (run, came), *_ = whole
        if came is None or not came.idle:
            return 0
        (before,) = self._all(candidate.undone, [Trial(self._experiment.case, run.assigned, run.layout)])
        return came.idle if before is not None and before.products > 0 and not before.idle else 0

    def _all(self, candidate: Candidate, trials: Sequence[Trial]) -> list[Came | None]:
        """What comes of each trial; None of those after one that does not match."""
        run, found = self._running(candidate), dict[Trial, Came | None]()
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for trial in trials:
                forks.add(trial, partial(run, trial))
            for trial, came in forks.answers(self._until):
                found[trial] = came
                if came is None or not came.matches:
                    break
        return [found.get(trial) for trial in trials]

    def _running(self, candidate: Candidate) -> partial[Came]:
        """What runs a trial with a copy of the file that has the edits, under the file's own name."""
        file = candidate.file.file
        if file not in self._modules:
            self._modules[file] = holding(file)
        copy = self._folder / str(next(self._copies)) / candidate.file.path.name
        copy.parent.mkdir()
        copy.write_bytes(candidate.text.encode())
        return partial(run_trial, self._experiment, file, copy, self._modules[file])


def _spent(found: Found, before: int) -> int:
    """What of `_AFTER_PART` the last edit that was tried takes, where so many had passed before it.

    Each that passes beside others takes more, since it is put to many cases. One that is certain and has the words that
    its cause says of the right text takes all: no other is better.
    """
    certain = [each for each in found.passed if each.is_certain]
    if any(each.candidate.is_wanted for each in certain):
        return _AFTER_PART
    is_dear = bool(certain) or len(found.passed) > max(before, 1)
    return bool(found.passed) * (_AFTER_PART // _AFTER_ONE if is_dear else 1)


def _in_turn(
    faults: Sequence[FileFaults], base: Candidate, done: Collection[int], *, contiguous: bool
) -> Iterator[Costed]:
    """The candidates of all faults, the likeliest first, on top of what is there; those of a worse diagnosis later."""

    def costed(at: int, each: FileFaults) -> Iterator[tuple[float, int, int, Candidate | None]]:
        late = at * _NEXT + (_UNNAMED if each.diagnosis is None and faults[0].diagnosis is not None else 0.0)
        late -= _SOONER if done else 0.0
        yield late - SOONEST, at, -1, None  # none is made before it may be its turn
        for number, candidate in enumerate(candidates_of(each.file, each.faults, each.wanted, contiguous=contiguous)):
            yield candidate.cost + late, at, number, candidate

    seen: set[tuple[Path, Edits]] = set()
    for cost, _, _, candidate in heapq.merge(*(costed(at, each) for at, each in enumerate(faults))):
        if candidate is not None and (key := (candidate.file.path, candidate.edits)) not in seen:
            seen.add(key)
            whole = candidate.on_top_of(base, done)
            yield from [(cost, whole)] if whole is not None else []
