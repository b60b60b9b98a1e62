"""The search: candidates in order, each tried on the smallest case that shows the fault; what passes is judged."""

from __future__ import annotations

import heapq
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.allowance import Allowance
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...processes.forks import Forks
from ...source.kernel_file import KernelFile
from ...source.rewrites.candidates import SOONEST, Candidate, Fault, candidates_of
from ...source.rewrites.spots import Edits
from ...targets.naming import holding
from ..cases import Trial, fresh, quicker
from .judge import Judge, JudgedEdit
from .trial import EditResult, begun, result_of, run_trial

if TYPE_CHECKING:
    from .quick_trials import QuickTrials

# Edits that run at once; and candidates that are tried quickly before what came of the first is looked at.
_AT_ONCE, _SIFTED = 2, 8
# Seconds of a processor for one run of one edit, which may never end.
_LONGEST_TRIAL = 60
# Scores of a case up to which an edit that is tried on it counts as one; of a larger one it counts as that many more.
_OF_ONE = 1 << 13
# How many more are tried once one passes in some cases alone, which may be all that the kernel takes.
_AFTER_PART = 8
# The cost of what is tried at once; and how much later that is tried which is on top of an edit that makes some result
# right, and of one with which a whole layout matches.
_NOW, _BESIDE, _ELSEWHERE = -math.inf, 2.5, -1.5
# On top of how many edits others are tried, beside those on top of none.
_MOST = 3


@dataclass(frozen=True)
class FileFaults:
    """Lines of one file that one diagnosis names, with words of the right text, and the edit that it prints."""

    file: KernelFile
    faults: tuple[Fault, ...]
    wanted: tuple[str, ...] = ()
    late: float = 0.0
    """How much later they are tried than those of the best diagnosis, in the ranks of the rows."""
    printed: Edits = ()


@dataclass
class Found:
    """What came of a search."""

    passed: list[JudgedEdit] = field(default_factory=list)
    closest: tuple[Candidate, EditResult, EditResult] | None = None
    """What makes some of it right, with what came with it and without any edit."""
    tried: int = 0
    is_late: bool = False
    """Whether the last resort ended it."""
    faults: dict[str, None] = field(default_factory=dict)
    """What went wrong in gradprobe itself."""


@dataclass(eq=False)
class Ground:
    """What candidates are put on top of, an edit or nothing, and the small case that they are tried on."""

    number: int
    base: Candidate
    failing: LayoutRun
    cases: Iterator[tuple[Trial, EditResult]]
    """Those in which that is wrong, from the quickest on, with what comes there."""
    small: tuple[Trial, EditResult] | None = None
    asked: defaultdict[Path, set[Edits]] = field(default_factory=lambda: defaultdict(set))
    quick: QuickTrials | None = None

    def enlarge(self) -> bool:
        """Goes on with the next larger case; whether there is one."""
        larger = next(self.cases, None)
        self.small = larger or self.small
        self.close()
        return larger is not None

    def close(self) -> None:
        if self.quick is not None:
            self.quick.close()
        self.quick = None

    def candidates(self, of: FileFaults, late: float) -> Iterator[Candidate]:
        """Those for some lines, the likeliest first, on top of the base."""
        contiguous = self.failing.layout == "contiguous"
        for candidate in candidates_of(of.file, of.faults, of.wanted, contiguous=contiguous):
            whole = candidate.on_top_of(self.base)
            if whole is not None:
                yield replace(whole, cost=candidate.cost + late)


class Search:
    def __init__(
        self, experiment: Experiment, runs: Sequence[LayoutRun], folder: Path, allowance: Allowance
    ) -> None:
        self._experiment, self._folder, self._left = experiment, folder, float(allowance.count)
        self._until = time.monotonic() + allowance.seconds
        self._plain = [run for run in runs if run.is_plain and run.measured is not None]
        self.wrong = [run for run in self._plain if not run.matches]
        self.spoilt = set[str]().union(*(result_of(run).names for run in self.wrong))
        self._found, self._grounds, self._faults = Found(), list[Ground](), list[FileFaults]()
        self._queue: list[
            tuple[float, int, int, Ground, Candidate | None, Iterable[Candidate]]
        ] = []
        """What waits, a heap: (cost, the newest ground first, number, ground, candidate, those behind it)."""
        self._numbers, self._modules_of = count(), cache(holding)
        self._judge = Judge(experiment, self._all, self.spoilt, [run.layout for run in self._plain])

    def run(self, faults: Sequence[FileFaults]) -> Found:
        """Tries candidates until one is certain, or as many were tried as may be."""
        self._faults = [*faults]
        ground = self._build_on(Candidate(faults[0].file, (), 0.0), self.wrong[0])
        for each in faults:
            if each.printed:
                self._put(ground, Candidate(each.file, each.printed, 0.0, is_wanted=True))
        while self._queue and self._left > 0 and not self._is_over:
            self._try(self._promising())
        for ground in self._grounds:
            ground.close()
        self._found.is_late = time.monotonic() > self._until
        return self._found

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._until or any(each.is_certain for each in self._found.passed)

    def _promising(self) -> list[tuple[Ground, Candidate]]:
        """The likeliest few candidates, but for those that a quick trial shows to make nothing less wrong.

        The first of all are given untried, and what is tried again: it likely ends the search.
        """
        promising, waiting = list[tuple[Ground, Candidate]](), list[tuple[Ground, Candidate]]()
        is_first = not self._found.tried
        most = _AT_ONCE if is_first else min(_SIFTED, max(1, int(self._left)))
        while self._queue and len(promising) + len(waiting) < most:
            cost, _, _, ground, candidate, behind = heapq.heappop(self._queue)
            if ground.small is None and not ground.enlarge():
                continue  # what is wrong shows in none of its cases
            for following in islice(behind, 1):
                self._put(ground, following, following.cost, behind)
            if candidate is None or (
                candidate.edits in ground.asked[candidate.file.path] and cost != _NOW
            ):
                continue
            ground.asked[candidate.file.path].add(candidate.edits)
            (promising if is_first or cost == _NOW else waiting).append((ground, candidate))
            if promising and (cost == _NOW or candidate.is_wanted):
                break  # nothing is begun beside it
        answers = []
        for ground, candidate in waiting:
            answers.append(self._quick(ground).ask(candidate.file, candidate.edits, self._until))
        for asked, answer in zip(waiting, answers, strict=True):
            is_better, cost = answer() or (True, 0.0)
            self._left -= cost
            if is_better:
                promising.append(asked)
            else:
                self._found.tried += 1
        return promising

    def _try(self, candidates: Sequence[tuple[Ground, Candidate]]) -> None:
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for ground, candidate in candidates:
                assert ground.small is not None
                forks.add(
                    (ground, *ground.small, candidate),
                    partial(self._running(candidate), ground.small[0]),
                )
            for (ground, trial, before, candidate), result in self._answers(forks):
                self._found.tried += 1
                self._left -= _weight(trial)
                if (
                    ground.small is not None and ground.small[0] is not trial
                ):  # that was too small meanwhile
                    if result is not None and result.matches:
                        self._put(ground, candidate)
                elif result is not None and (result.matches or self._is_closer(result, before)):
                    self._confirm(ground, candidate, result)
                if self._is_over:
                    break

    def _quick(self, ground: Ground) -> QuickTrials:
        if ground.quick is None:
            from .quick_trials import QuickTrials  # most searches end with the first edit

            assert ground.small is not None
            first, *others = dict.fromkeys(
                [ground.base.file, *(each.file for each in self._faults)]
            )
            copy = self._copied(ground.base)
            files = {first.file: (first, str(copy))} | {
                file.file: (file, file.file) for file in others
            }
            begin = partial(
                begun,
                self._experiment,
                first.file,
                copy,
                self._modules_of(first.file),
                ground.small[0],
            )
            ground.quick = QuickTrials(begin, ground.base.edits, files, self._found.faults)
        return ground.quick

    def _put(
        self,
        ground: Ground,
        candidate: Candidate | None,
        cost: float = _NOW,
        behind: Iterable[Candidate] = (),
    ) -> None:
        heapq.heappush(
            self._queue, (cost, -ground.number, next(self._numbers), ground, candidate, behind)
        )

    def _build_on(self, base: Candidate, failing: LayoutRun, late: float = 0.0) -> Ground:
        """Tries candidates on top of an edit, or of none, for what is wrong with it in a layout."""
        ground = Ground(len(self._grounds), base, failing, self._showing(base, failing))
        self._grounds.append(ground)
        for each in self._faults if len(self._grounds) <= _MOST + 1 else ():
            later = late + each.late
            # None is made before it may be its turn.
            self._put(ground, None, later - SOONEST, ground.candidates(each, later))
        return ground

    def _is_closer(self, result: EditResult, before: EditResult) -> bool:
        closest = self._found.closest
        return result.is_better_than(before) and (
            closest is None or result.is_better_than(closest[1])
        )

    def _confirm(self, ground: Ground, candidate: Candidate, result: EditResult) -> None:
        """Puts an edit to the whole check, and to the judge; seeks more on top of what makes some of it right.

        Where the same layout is still wrong there, or only the check is right, the case was too small.
        """
        assert ground.small is not None
        trial, before = ground.small
        is_asked = result.matches or trial.case != self._experiment.case
        whole = self._whole(candidate) if is_asked else []
        wrong, other = next(
            (pair for pair in whole if not (pair[1] and pair[1].matches)), (None, None)
        )
        if whole and wrong is None:
            if not result.matches:
                ground.enlarge()
            titles = self._titles(candidate)
            judged = self._judge.judged(candidate, titles) if titles else None
            if judged is not None:
                self._found.passed.append(judged)
                self._left = min(self._left, _AFTER_PART * _weight(trial))
        elif not result.matches:
            self._found.closest = candidate, result, before
            self._build_on(candidate, ground.failing, _BESIDE)
        elif wrong is None or other is None:
            return
        elif wrong.layout == ground.failing.layout:
            if ground.enlarge():
                self._put(ground, candidate)
        elif not wrong.matches and other.is_no_worse_than(result_of(wrong)):
            self._found.closest = candidate, result, result_of(ground.failing)
            self._build_on(candidate, wrong, _ELSEWHERE)

    def _showing(self, base: Candidate, failing: LayoutRun) -> Iterator[tuple[Trial, EditResult]]:
        """The cases in which the same results go wrong, the smallest first, and no other memory suffers.

        What only takes other lengths is right in none.
        """
        due = result_of(failing)
        for case in quicker(self._experiment.case):
            trial = Trial(case, failing.assigned)
            (result,) = self._all(base, [trial])
            if result is not None and not result.matches and result.is_no_worse_than(due):
                yield trial, result

    def _whole(self, candidate: Candidate) -> list[tuple[LayoutRun, EditResult | None]]:
        """What comes of an edit in each layout, those that are wrong first, until one does not match."""
        runs = sorted(self._plain, key=lambda run: run.matches)
        trials = [Trial(self._experiment.case, run.assigned) for run in runs]
        return list(zip(runs, self._all(candidate, trials), strict=True))

    def _titles(self, candidate: Candidate) -> list[str]:
        """The layouts, and the fresh draw with which all matches as well; none where one is wrong.

        A kernel may take no length that ends inside a tile: where one is wrong twice the lengths are to match, and the
        judge says what it doubts. A length that it refuses says nothing.
        """
        for number, case in enumerate(fresh(self._experiment.case)):
            (result,) = self._all(candidate, [Trial(case, self.wrong[0].assigned)])
            if result is not None and result.matches:
                return [
                    *(run.layout for run in self._plain),
                    f"a fresh draw (seed {case.seed}, {case.seqlen_q} rows)",
                ]
            if result is None or (number and result.names):
                break
        return []

    def _all(self, candidate: Candidate, trials: Sequence[Trial]) -> list[EditResult | None]:
        """What comes of each trial; None of those after one that does not match."""
        run, found = self._running(candidate), dict[Trial, EditResult | None]()
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for trial in trials:
                forks.add(trial, partial(run, trial))
            for trial, result in self._answers(forks):
                found[trial] = result
                if result is None or not result.matches:
                    break
        return [*map(found.get, trials)]

    def _answers(self, forks: Forks) -> Iterator[tuple[Any, EditResult | None]]:
        for key, result in forks.answers(self._until):
            if result is not None and result.fault:
                self._found.faults[result.fault] = None
            yield key, result

    def _running(self, candidate: Candidate) -> partial[EditResult]:
        file = candidate.file.file
        return partial(
            run_trial, self._experiment, file, self._copied(candidate), self._modules_of(file)
        )

    def _copied(self, candidate: Candidate) -> Path:
        copy = self._folder / str(next(self._numbers)) / candidate.file.path.name
        copy.parent.mkdir()
        copy.write_bytes(candidate.text.encode())
        return copy


def _weight(trial: Trial) -> int:
    return max(1, trial.case.scores // _OF_ONE)
