"""The search: candidates in order, each tried on the smallest case that shows the fault; what passes is judged."""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.allowance import Allowance
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...processes.forks import Forks
from ...source.kernel_file import KernelFile
from ...source.rewrites.candidates import SOONEST, Candidate, Fault, candidates_of
from ...source.rewrites.spots import Edits
from ..cases import Trial, fresh, in_words, smaller
from .judge import Judge, JudgedEdit
from .trial import EditResult, begun, holding, result_of, run_trial

if TYPE_CHECKING:
    from .quick_trials import Answer, QuickTrials

# Edits that run at once, and those that are begun before the answer of an earlier one is taken: the same on every
# machine, since what is tried next depends on what came.
_AT_ONCE, _BEGUN = 2, 3
# Candidates that are tried quickly before what came of the first is looked at.
_SIFTED = 8
# Seconds of a processor for one run of one edit, which may never end.
_LONGEST_TRIAL = 60
# Scores of a case up to which an edit that is tried on it counts as one; of a larger one it counts as that many more.
_OF_ONE = 1 << 13
# How many more are tried once one passes in some cases alone, which may be all that the kernel takes.
_AFTER_PART = 8
# How much later that is tried which is on top of an edit that makes some result right; and of one with which a whole
# layout matches.
_BESIDE, _ELSEWHERE = 2.5, -1.5
# On top of how many edits others are tried, beside those on top of none.
_MOST = 3
Small = tuple[Trial, EditResult]
"""A case, and what comes there."""
Costed = tuple[float, Candidate]
"""How unlikely a candidate is, and it."""
Whole = Sequence[tuple[LayoutRun, EditResult | None]]
"""What came in each layout of the check; None of one that was not run to its end."""


@dataclass(frozen=True)
class FileFaults:
    """Lines of one file that one diagnosis names."""

    file: KernelFile
    faults: tuple[Fault, ...]
    wanted: tuple[str, ...] = ()
    """Words of the right text."""
    late: float = 0.0
    """How much later they are tried than those of the best diagnosis, in the ranks of the rows."""
    printed: Edits = ()
    """The edit that it prints, in all places that it names; none where it prints no text for any."""


@dataclass(frozen=True)
class Passed:
    """An edit with which everything matches."""

    candidate: Candidate
    titles: list[str]
    """Of all that was run with it."""
    judged: JudgedEdit
    """What came of it in other cases."""

    @property
    def is_certain(self) -> bool:
        """Whether nothing is left that could tell it from the right edit."""
        return not (self.judged.doubts or self.judged.not_run)


@dataclass
class Found:
    """What came of a search."""

    passed: list[Passed] = field(default_factory=list)
    """What makes everything match."""
    closest: tuple[Candidate, EditResult, EditResult] | None = None
    """What makes some of it right: with what came with it and without any edit."""
    tried: int = 0
    """How many edits were run."""
    is_late: bool = False
    """Whether the last resort ended it."""


@dataclass(eq=False)
class Ground:
    """What candidates are put on top of, an edit or nothing, and the small case that they are tried on."""

    number: int
    base: Candidate
    failing: LayoutRun
    """What is still wrong."""
    cases: Iterator[Small]
    """Those in which it shows, from the quickest on."""
    small: Small | None = None
    begun: set[tuple[Path, Edits]] = field(default_factory=set)
    quick: QuickTrials | None = None
    """Of that case; None before the first edit is tried so."""

    def enlarge(self) -> bool:
        """Goes on with the next larger case in which it shows; whether there is one."""
        larger = next(self.cases, None)
        self.small = larger or self.small
        self.close()
        return larger is not None

    def close(self) -> None:
        """Ends what it has begun."""
        if self.quick is not None:
            self.quick.close()
        self.quick = None

    def begins(self, candidate: Candidate, *, again: bool) -> bool:
        """Whether a candidate is to be tried: it was not, or is to be tried again."""
        key = candidate.file.path, candidate.edits
        is_new = key not in self.begun
        self.begun.add(key)
        return is_new or again

    def candidates(self, of: FileFaults, late: float) -> Iterator[Costed]:
        """Those for some lines, the likeliest first, on top of the base."""
        contiguous = self.failing.layout == "contiguous"
        for candidate in candidates_of(of.file, of.faults, of.wanted, contiguous=contiguous):
            whole = candidate.on_top_of(self.base)
            if whole is not None:
                yield candidate.cost + late, whole


class Search:
    """One search, of so many edits."""

    def __init__(self, experiment: Experiment, runs: Sequence[LayoutRun], folder: Path, allowance: Allowance) -> None:
        self._experiment, self._folder, self._left = experiment, folder, float(allowance.count)
        self._until = time.monotonic() + allowance.seconds
        self._plain = [run for run in runs if run.is_plain and run.measured is not None]
        self.wrong = [run for run in self._plain if not run.matches]
        self._found, self._grounds, self._faults = Found(), list[Ground](), list[FileFaults]()
        self._ready = deque[tuple[Ground, Candidate]]()
        """What is to be tried next as a whole."""
        self._begun, self._is_near_end = 0, False
        self._queue: list[tuple[float, int, int, Ground, Candidate | None, Iterable[Costed]]] = []
        """What waits, a heap: (cost, the newest ground first, number, ground, candidate, those behind it)."""
        self._numbers, self._modules = count(), dict[str, list[str]]()
        self.spoilt = {name for run in self.wrong for name in result_of(run).names}
        """The results that are wrong in the check."""
        self._judge = Judge(experiment, self._all, self.spoilt, [run.layout for run in self._plain])

    def run(self, faults: Sequence[FileFaults]) -> Found:
        """Tries the candidates of some lines until one is certain, or as many were tried as may be.

        Nothing is tried where what is wrong does not show in a fork as it did in the check.
        """
        found = self._found
        self._faults = list(faults)
        ground = self._build_on(Candidate(faults[0].file, (), 0.0), self.wrong[0])
        for each in faults:
            if each.printed:
                self._put(ground, Candidate(each.file, each.printed, 0.0, is_wanted=True))
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            while not any(each.is_certain for each in found.passed):
                self._begin(forks)
                answer = next(forks.answers(self._until), None)
                if answer is None:
                    break
                self._take(*answer)
                if found.passed and not self._is_near_end:
                    (trial, _) = answer[0][1]
                    most = float(_AFTER_PART * max(1, trial.case.scores // _OF_ONE))
                    self._is_near_end, self._left = True, min(self._left, most)
        for ground in self._grounds:
            ground.close()
        found.is_late = time.monotonic() > self._until
        return found

    def _begin(self, forks: Forks) -> None:
        """Begins with the likeliest candidates that are promising: the next one is made ready while forks work."""
        while len(forks) < _BEGUN and (self._ready or (self._left > 0 and self._queue)):
            if not self._ready:
                self._sift()
                continue
            ground, candidate = self._ready.popleft()
            assert ground.small is not None
            trial = ground.small[0]
            forks.add((ground, ground.small, candidate), partial(self._running(candidate), trial))
            self._left -= max(1, trial.case.scores // _OF_ONE)
            self._begun += 1
            if candidate.is_wanted and self._begun == 1:
                break  # it likely ends the search: nothing is begun beside it

    def _sift(self) -> None:
        """Tries the likeliest few candidates quickly; ready is what makes less wrong, and what that tells nothing of.

        So are, untried, the first of all, one of which likely ends the search, and what is tried again.
        """
        asked: list[tuple[Ground, Candidate, Callable[[], Answer | None]]] = []
        while self._queue and len(asked) < min(_SIFTED, max(1, int(self._left))):
            cost, _, _, ground, candidate, behind = heapq.heappop(self._queue)
            for later, following in islice(behind, 1):
                self._put(ground, following, later, behind)
            is_again = cost == -math.inf
            if candidate is None or not ground.begins(candidate, again=is_again):
                continue
            if ground.small is None and not ground.enlarge():
                continue  # what is wrong shows in none of its cases
            if is_again or self._begun < _BEGUN:
                self._ready.append((ground, candidate))
                break
            ask = self._quick(ground).ask
            asked.append((ground, candidate, ask(candidate.file, candidate.edits, self._until)))
        for ground, candidate, answer in asked:
            is_better, cost = answer() or (True, 0.0)
            self._left -= cost
            if is_better:
                self._ready.append((ground, candidate))
            else:
                self._found.tried += 1

    def _quick(self, ground: Ground) -> QuickTrials:
        """What tries candidates quickly in the small case of a ground."""
        if ground.quick is None:
            from .quick_trials import QuickTrials  # most searches end with the first edit

            assert ground.small is not None
            first, *others = dict.fromkeys([ground.base.file, *(each.file for each in self._faults)])
            copy = self._copied(ground.base)
            files = {first.file: (first, str(copy))} | {file.file: (file, file.file) for file in others}
            begin = partial(begun, self._experiment, first.file, copy, self._modules_of(first.file), ground.small[0])
            ground.quick = QuickTrials(begin, ground.base.edits, files)
        return ground.quick

    def _put(
        self, ground: Ground, candidate: Candidate | None, cost: float = -math.inf, behind: Iterable[Costed] = ()
    ) -> None:
        """Has a candidate wait, and behind it others; one of no cost comes before all others."""
        heapq.heappush(self._queue, (cost, -ground.number, next(self._numbers), ground, candidate, behind))

    def _build_on(self, base: Candidate, failing: LayoutRun, late: float = 0.0) -> Ground:
        """Tries candidates on top of an edit, or of none, for what is wrong with it in a layout."""
        ground = Ground(len(self._grounds), base, failing, self._showing(base, failing))
        self._grounds.append(ground)
        for each in self._faults if len(self._grounds) <= _MOST + 1 else ():
            later = late + each.late
            # None is made before it may be its turn.
            self._put(ground, None, later - SOONEST, ground.candidates(each, later))
        return ground

    def _take(self, begun: tuple[Ground, Small, Candidate], result: EditResult | None) -> None:
        """What is to follow from what came of a candidate."""
        ground, small, candidate = begun
        self._found.tried += 1
        if result is None:
            return
        if small is not ground.small:
            if result.matches:
                self._put(ground, candidate)  # it passed a case that was found too small meanwhile
        elif result.matches:
            self._confirm(ground, candidate, result, self._whole(candidate))
        elif result.is_better_than(small[1]):
            self._weigh(ground, candidate, result)

    def _weigh(self, ground: Ground, candidate: Candidate, result: EditResult) -> None:
        """Keeps what makes some of it right, and seeks more on top of it.

        Unless all is right with it in the check: then the target is not right in that small a case.
        """
        closest, small = self._found.closest, ground.small
        if small is None or (closest is not None and not result.is_better_than(closest[1])):
            return
        whole = self._whole(candidate) if small[0].case != self._experiment.case else []
        if whole and all(other and other.matches for _, other in whole):
            ground.enlarge()
            self._confirm(ground, candidate, result, whole)
            return
        self._found.closest = candidate, result, small[1]
        self._build_on(candidate, ground.failing, _BESIDE)

    def _confirm(self, ground: Ground, candidate: Candidate, result: EditResult, whole: Whole) -> None:
        """Puts an edit that passes the small case to the whole check, to a fresh draw and to the judge.

        Where the same layout is still wrong the case was too small to tell. Where another is, something else may be.
        """
        titles = self._titles(candidate, whole)
        judged = self._judge.judged(candidate) if titles else None
        if judged is not None:
            self._found.passed.append(Passed(candidate, titles, judged))
        run, other = next(((run, other) for run, other in whole if not (other and other.matches)), (None, None))
        if run is None or other is None:
            return
        if run.layout == ground.failing.layout:
            if ground.enlarge():
                self._put(ground, candidate)
        elif not run.matches and other.is_no_worse_than(result_of(run)):
            self._found.closest = candidate, result, result_of(ground.failing)
            self._build_on(candidate, run, _ELSEWHERE)

    def _showing(self, base: Candidate, failing: LayoutRun) -> Iterator[Small]:
        """The cases in which the same results go wrong, the smallest first, and what comes there.

        None in which memory suffers that does not in the layout itself: what only takes other lengths is right in none.
        """
        due = result_of(failing)
        for case in smaller(self._experiment.case):
            trial = Trial(case, failing.assigned, failing.layout)
            (result,) = self._all(base, [trial])
            if result is not None and not result.matches and result.is_no_worse_than(due):
                yield trial, result

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
        if not all(result and result.matches for _, result in whole):
            return []
        for number, case in enumerate(fresh(self._experiment.case)):
            (result,) = self._all(candidate, [Trial(case, whole[0][0].assigned, "")])
            if result is not None and result.matches:
                return [*(run.layout for run in self._plain), f"a fresh draw ({in_words(case)})"]
            if result is None or (number and result.names):
                break
        return []

    def _all(self, candidate: Candidate, trials: Sequence[Trial]) -> list[EditResult | None]:
        """What comes of each trial; None of those after one that does not match."""
        run, found = self._running(candidate), dict[Trial, EditResult | None]()
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for trial in trials:
                forks.add(trial, partial(run, trial))
            for trial, result in forks.answers(self._until):
                found[trial] = result
                if result is None or not result.matches:
                    break
        return [found.get(trial) for trial in trials]

    def _running(self, candidate: Candidate) -> partial[EditResult]:
        """What runs a trial with a copy of the file that has the edits, under the file's own name."""
        file = candidate.file.file
        return partial(run_trial, self._experiment, file, self._copied(candidate), self._modules_of(file))

    def _copied(self, candidate: Candidate) -> Path:
        copy = self._folder / str(next(self._numbers)) / candidate.file.path.name
        copy.parent.mkdir()
        copy.write_bytes(candidate.text.encode())
        return copy

    def _modules_of(self, file: str) -> list[str]:
        if file not in self._modules:
            self._modules[file] = holding(file)
        return self._modules[file]
