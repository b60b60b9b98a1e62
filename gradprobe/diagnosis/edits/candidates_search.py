"""The search: candidates in order, each tried on the smallest case that shows the fault."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.allowance import Allowance
from ...numerics.evidence import LayoutRun
from ...probing.experiment import Experiment
from ...processes.forks import Forks
from ...source.kernel_file import KernelFile
from ...source.rewrites.candidate import SOONEST, Candidate, Fault
from ...source.syntax import Edits
from ...targets.naming import holding
from ..cases import Trial, fresh, quicker
from .judge import EditedTarget, EditResult, Judge, JudgedEdit, result_of

if TYPE_CHECKING:
    from .quick_trials import QuickTrials

# Edits that run at once; and candidates that are tried quickly before what came of the first is looked at.
_AT_ONCE, _SIFTED = 2, 8
# Seconds of a processor for one run of one edit, which may never end.
_LONGEST_TRIAL = 60
# Scores of a case up to which an edit that is tried on it counts as one; of a larger one it counts as that many more.
# How many more are tried once one passes in some cases alone, which may be all that the kernel takes.
_OF_ONE, _AFTER_PART = 1 << 13, 8
# The cost of what is tried at once; and how much later that is tried which is on top of an edit that makes some result
# right, and of one with which a whole layout matches.
_NOW, _BESIDE, _ELSEWHERE = -math.inf, 2.5, -1.5
# On top of how many edits others are tried, beside those on top of none.
_MOST = 3
Source = Iterator[tuple[float, Candidate | None]]
"""(cost, candidate) in turn; None before those behind it are made."""


@dataclass(frozen=True)
class FileFaults:
    """What a diagnosis says of a file: lines, right text, its own edit, when they are tried."""

    file: KernelFile
    faults: tuple[Fault, ...]
    wanted: tuple[str, ...] = ()
    late: float = 0.0
    printed: Edits = ()


@dataclass
class SearchResult:
    passed: list[JudgedEdit] = field(default_factory=list)
    closest: tuple[Candidate, EditResult, EditResult] | None = None
    """What makes some of it right, and what came with and without it."""
    tried: int = 0
    is_late: bool = False
    faults: dict[str, None] = field(default_factory=dict)
    """What went wrong in gradprobe itself."""


@dataclass(eq=False)
class Ground:
    """What candidates are put on top of, if anything, and the small case they are tried on."""

    number: int
    base: Candidate
    failing: LayoutRun
    cases: Iterator[tuple[Trial, EditResult]]
    """Those in which that is wrong, from the quickest on, with what comes there."""
    trial: Trial = field(init=False)
    before: EditResult = field(init=False)
    is_shown: bool = False
    asked: set[tuple[Path, Edits]] = field(default_factory=set)
    quick: QuickTrials | None = None

    def enlarge(self) -> bool:
        """Goes on with the next case, if there is one."""
        self.close()
        larger = next(self.cases, None)
        if larger is not None:
            self.trial, self.before = larger
            self.is_shown = True
        return larger is not None

    def close(self) -> None:
        if self.quick is not None:
            self.quick.close()
        self.quick = None

    def candidates(self, of: FileFaults, late: float) -> Source:
        """None (no edit), and the edits for some lines on top of the base, likeliest first."""
        if of.printed and not self.number:
            yield _NOW, Candidate(of.file, of.printed, 0.0, is_wanted=True)
        yield late - SOONEST, None
        from ...source.rewrites.candidates import candidates_of  # few checks try a rule

        contiguous = self.failing.layout == "contiguous"
        for candidate in candidates_of(of.file, of.faults, of.wanted, contiguous=contiguous):
            whole = candidate.on_top_of(self.base)
            if whole is not None:
                yield candidate.cost + late, replace(whole, cost=candidate.cost + late)


Asked = tuple[Ground, Candidate]


class Search:
    def __init__(
        self,
        experiment: Experiment,
        runs: Sequence[LayoutRun],
        folder: Path,
        allowance: Allowance,
    ) -> None:
        self._experiment, self._folder, self._left = experiment, folder, float(allowance.count)
        self._until = time.monotonic() + allowance.seconds
        self._plain = [run for run in runs if run.is_plain and run.measured is not None]
        self.wrong = [run for run in self._plain if not run.matches]
        self.spoilt = set[str]().union(*map(attrgetter("names"), map(result_of, self.wrong)))
        self._found, self._grounds = SearchResult(), list[Ground]()
        self._faults = list[FileFaults]()
        self._queue = list[tuple[float, int, int, Ground, Candidate | None, Source]]()
        """A heap: (cost, the newest ground first, number, ground, candidate, those behind it)."""
        self._numbers, self._modules_of = count(), cache(holding)
        self._laid = [run.layout for run in self._plain]
        self._judge = Judge(experiment, self._all, self.spoilt, self._laid)

    def run(self, faults: Sequence[FileFaults]) -> SearchResult:
        """Tries candidates until one is certain, or as many were tried as may be."""
        self._faults = [*faults]
        self._build_on(Candidate(faults[0].file, (), 0.0), self.wrong[0])
        while self._queue and self._left > 0 and not self._is_over:
            self._try(self._promising())
        for ground in self._grounds:
            ground.close()
        self._found.is_late = time.monotonic() > self._until
        return self._found

    @property
    def _is_over(self) -> bool:
        is_found = any(map(attrgetter("is_certain"), self._found.passed))
        return is_found or time.monotonic() > self._until

    def _promising(self) -> list[Asked]:
        """The likeliest few, but for those that a quick trial shows to make nothing less wrong.

        The first of all, and what is tried again, likely end the search: these are given untried.
        """
        promising, waiting = list[Asked](), list[Asked]()
        is_first = not self._found.tried
        most = _AT_ONCE if is_first else min(_SIFTED, max(1, int(self._left)))
        while self._queue and len(promising) + len(waiting) < most:
            cost, _, _, ground, candidate, behind = heapq.heappop(self._queue)
            if not ground.is_shown and not ground.enlarge():
                continue  # what is wrong shows in none of its cases
            self._put(ground, behind)
            if candidate is None:
                continue
            asked = candidate.file.path, candidate.edits
            if asked in ground.asked and cost != _NOW:
                continue
            ground.asked.add(asked)
            (promising if is_first or cost == _NOW else waiting).append((ground, candidate))
            if promising and (cost == _NOW or candidate.is_wanted):
                break  # nothing is begun beside it
        return [*promising, *self._sifted(waiting)]

    def _sifted(self, waiting: Sequence[Asked]) -> Iterator[Asked]:
        answers, files = [], {each.file for each in self._faults}
        for ground, candidate in waiting:
            if ground.quick is None:
                from .quick_trials import QuickTrials  # most searches end with the first edit

                base, faults = self._edited(ground.base), self._found.faults
                ground.quick = QuickTrials(base, ground.trial, [*files], faults)
            answers.append(ground.quick.ask(candidate.file, candidate.edits, self._until))
        for asked, answer in zip(waiting, answers, strict=True):
            is_better, cost = answer() or (True, 0.0)
            self._left -= cost
            self._found.tried += not is_better
            if is_better:
                yield asked

    def _try(self, candidates: Sequence[Asked]) -> None:
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for ground, candidate in candidates:
                run = partial(self._edited(candidate).run, ground.trial)
                forks.add((ground, ground.trial, candidate), run)
            for (ground, trial, candidate), result in self._answers(forks):
                self._found.tried += 1
                self._left -= _weight(trial)
                if result is not None and ground.trial is not trial:
                    if result.matches:  # in what was too small meanwhile
                        self._put(ground, iter([(_NOW, candidate)]))
                elif result is not None and (result.matches or self._is_closer(result, ground)):
                    self._confirm(ground, candidate, result)
                if self._is_over:
                    break

    def _is_closer(self, result: EditResult, ground: Ground) -> bool:
        closest = self._found.closest
        is_best = closest is None or result.is_better_than(closest[1])
        return is_best and result.is_better_than(ground.before)

    def _put(self, ground: Ground, source: Source) -> None:
        for cost, candidate in islice(source, 1):
            order = cost, -ground.number, next(self._numbers)
            heapq.heappush(self._queue, (*order, ground, candidate, source))

    def _build_on(self, base: Candidate, failing: LayoutRun, late: float = 0.0) -> None:
        ground = Ground(len(self._grounds), base, failing, self._showing(base, failing))
        self._grounds.append(ground)
        for each in self._faults if ground.number <= _MOST else ():
            self._put(ground, ground.candidates(each, late + each.late))

    def _confirm(self, ground: Ground, candidate: Candidate, result: EditResult) -> None:
        """Puts an edit to the whole check and the judge; seeks more where it is right in part."""
        trial, failing = ground.trial, ground.failing
        is_asked = result.matches or trial.case != self._experiment.case
        wrong, other = self._first_wrong(candidate) if is_asked else (failing, result)
        if wrong is None:
            if not result.matches:
                ground.enlarge()
            titles, doubts = self._titles(candidate)
            judged = self._judge.judged(candidate, titles) if titles else None
            if judged is not None:
                judged.doubts += doubts
                self._found.passed.append(judged)
                self._left = min(self._left, _AFTER_PART * _weight(trial))
        elif not result.matches:
            self._found.closest = candidate, result, ground.before
            self._build_on(candidate, failing, _BESIDE)
        elif other is not None and wrong.layout == failing.layout:
            if ground.enlarge():  # the case was too small
                self._put(ground, iter([(_NOW, candidate)]))
        elif (
            other is not None and not wrong.matches and other.is_no_worse_than(result_of(wrong))
        ):
            self._found.closest = candidate, result, result_of(failing)
            self._build_on(candidate, wrong, _ELSEWHERE)

    def _showing(
        self, base: Candidate, failing: LayoutRun
    ) -> Iterator[tuple[Trial, EditResult]]:
        due = result_of(failing)
        for case in quicker(self._experiment.case):
            trial = Trial(case, failing.assigned)
            (result,) = self._all(base, [trial])
            if result is not None and not result.matches and result.is_no_worse_than(due):
                yield trial, result

    def _first_wrong(self, candidate: Candidate) -> tuple[LayoutRun | None, EditResult | None]:
        runs = sorted(self._plain, key=attrgetter("matches"))
        trials = [Trial(self._experiment.case, run.assigned) for run in runs]
        for run, result in zip(runs, self._all(candidate, trials), strict=True):
            if result is None or not result.matches:
                return run, result
        return None, None

    def _titles(self, candidate: Candidate) -> tuple[list[str], list[str]]:
        """The layouts and the fresh draw with which all matches as well, none where one is wrong; and doubts.

        Where a length that ends inside a tile is wrong, twice the own one is to match, unless that is not taken.
        """
        doubts = list[str]()
        for number, case in enumerate(fresh(self._experiment.case)):
            trial, rows = Trial(case, self.wrong[0].assigned), f"{case.seqlen_q} rows"
            (result,) = self._all(candidate, [trial])
            if result is None:
                break
            if result.matches:
                return [*self._laid, f"a fresh draw (seed {case.seed}, {rows})"], doubts
            if number and self._judge.is_untaken(candidate, trial, result):
                doubts.append(rows)
            elif number and result.names:
                break
        return [], doubts

    def _all(self, candidate: Candidate, trials: Sequence[Trial]) -> list[EditResult | None]:
        edited, found = self._edited(candidate), list[EditResult | None]()
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for trial in trials:
                forks.add(trial, partial(edited.run, trial))
            for _, result in self._answers(forks):
                found.append(result)
                if result is None or not result.matches:
                    break
        return found + [None] * (len(trials) - len(found))

    def _answers(self, forks: Forks) -> Iterator[tuple[Any, EditResult | None]]:
        for key, result in forks.answers(self._until):
            if result is not None and result.fault:
                self._found.faults[result.fault] = None
            yield key, result

    def _edited(self, candidate: Candidate) -> EditedTarget:
        file = candidate.file
        copy = self._folder / str(next(self._numbers)) / file.path.name
        copy.parent.mkdir()
        copy.write_bytes(candidate.text.encode())
        return EditedTarget(self._experiment, candidate, copy, self._modules_of(file.file))


def _weight(trial: Trial) -> int:
    return max(1, trial.case.scores // _OF_ONE)
