"""Candidates in order, each tried on the smallest case that shows the fault."""

import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

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
# How many more are tried once one passes in some cases alone, which may be all that the kernel takes; and how many are
# tried again in a larger case where nothing helps in a small one.
_OF_ONE, _AFTER_PART, _AGAIN = 1 << 13, 8, 8
# The cost of what is tried at once: what a cause or a name says.
NOW = -math.inf
# (cost, candidate) in turn; None before those behind it are made.
Source = Iterator[tuple[float, Candidate | None]]


@dataclass(frozen=True)
class FileFaults:
    file: KernelFile
    faults: Sequence[Fault]
    wanted: tuple[str, ...] = ()
    late: float = 0.0
    printed: Edits = ()


@dataclass
class SearchResult:
    passed: list[JudgedEdit] = field(default_factory=list)
    # What makes some of it right, and what came with and without it.
    closest: tuple[Candidate, EditResult, EditResult] | None = None
    tried: int = 0
    is_late: bool = False
    faults: dict[str, None] = field(default_factory=dict)


class Search:
    def __init__(
        self,
        experiment: Experiment,
        runs: Sequence[LayoutRun],
        folder: Path,
        allowance: Allowance,
    ) -> None:
        self._experiment, self._folder, self._left = experiment, folder, float(allowance.count)
        self._most = min(_AGAIN, allowance.count)
        self._until = time.monotonic() + allowance.seconds
        self._plain = [run for run in runs if run.is_plain and run.measured is not None]
        self.wrong = [run for run in self._plain if not run.matches]
        self.spoilt = set[str]().union(*map(attrgetter("names"), map(result_of, self.wrong)))
        self._found, self._files = SearchResult(), list[KernelFile]()
        self._queue = list[tuple[float, int, Candidate | None, Source]]()
        self._numbers, self._modules_of = count(), cache(holding)
        self._laid = [run.layout for run in self._plain]
        self._judge = Judge(experiment, self._all, self.spoilt, self._laid)
        self._asked = dict[tuple[Path, Edits], Candidate]()
        # Those in which the target is wrong, from the quickest on, with what comes there.
        self._cases: Iterator[tuple[Trial, EditResult]] = iter(())
        self._quick: QuickTrials | None = None

    def run(self, faults: Sequence[FileFaults]) -> SearchResult:
        self._files = [*dict.fromkeys(each.file for each in faults)]
        self._cases = self._showing(Candidate(self._files[0], (), 0.0))
        for each in faults if self._enlarge() else ():
            self._put(self._candidates(each))
        self._go_on()
        if not (self._found.passed or self._found.closest or self._is_over) and self._enlarge():
            # The smaller case may be wrong in any case: the likeliest again in the next.
            again = list(islice(self._asked.values(), self._most))
            self._queue, self._asked = [], {}
            self._left = float(_weight(self._trial) * len(again))
            self._put(iter([(each.cost, each) for each in again]))
            self._go_on()
        self._close()
        self._found.is_late = time.monotonic() > self._until
        return self._found

    def _go_on(self) -> None:
        while self._queue and self._left > 0 and not self._is_over:
            self._try(self._promising())

    @property
    def _is_over(self) -> bool:
        is_found = any(map(attrgetter("is_certain"), self._found.passed))
        return is_found or time.monotonic() > self._until

    def _enlarge(self) -> bool:
        self._close()
        larger = next(self._cases, None)
        if larger is not None:
            self._trial, self._before = larger
        return larger is not None

    def _close(self) -> None:
        if self._quick is not None:
            self._quick.close()
        self._quick = None

    def _candidates(self, of: FileFaults) -> Source:
        """None: no edit, and those behind it are made."""
        if of.printed:
            yield NOW, Candidate(of.file, of.printed, NOW, is_wanted=True)
        yield of.late - SOONEST, None
        from ...source.rewrites.candidates import candidates_of  # few checks try a rule

        contiguous = self.wrong[0].layout == "contiguous"
        for each in candidates_of(of.file, of.faults, of.wanted, contiguous=contiguous):
            yield each.cost + of.late, replace(each, cost=each.cost + of.late)

    def _put(self, source: Source) -> None:
        for cost, candidate in islice(source, 1):
            heapq.heappush(self._queue, (cost, next(self._numbers), candidate, source))

    def _promising(self) -> list[Candidate]:
        # The first of all, and what is tried again, likely end the search: these are given untried.
        promising, waiting = list[Candidate](), list[Candidate]()
        is_first = not self._found.tried
        most = _AT_ONCE if is_first else min(_SIFTED, max(1, int(self._left)))
        while self._queue and len(promising) + len(waiting) < most:
            cost, _, candidate, behind = heapq.heappop(self._queue)
            self._put(behind)
            if candidate is None:
                continue
            asked = candidate.file.path, candidate.edits
            if asked in self._asked and cost != NOW:
                continue
            self._asked[asked] = candidate
            (promising if is_first or cost == NOW else waiting).append(candidate)
            if promising and (cost == NOW or candidate.is_wanted):
                break  # nothing is begun beside it
        return [*promising, *self._sifted(waiting)]

    def _sifted(self, waiting: Sequence[Candidate]) -> Iterator[Candidate]:
        answers = []
        for candidate in waiting:
            if self._quick is None:
                from .quick_trials import QuickTrials  # most searches end with the first edit

                unedited = self._edited(candidate.undone)
                self._quick = QuickTrials(unedited, self._trial, self._files, self._found.faults)
            answers.append(self._quick.ask(candidate.file, candidate.edits, self._until))
        for candidate, answer in zip(waiting, answers, strict=True):
            is_better, cost = answer() or (True, 0.0)
            self._left -= cost
            self._found.tried += not is_better
            if is_better:
                yield candidate

    def _try(self, candidates: Sequence[Candidate]) -> None:
        for trial, candidate, result in self._ran([(self._trial, each) for each in candidates]):
            self._found.tried += 1
            self._left -= _weight(trial)
            if result is not None and self._trial is not trial:
                if result.matches:  # in what was too small meanwhile
                    self._put(iter([(NOW, candidate)]))
            elif result is not None and (result.matches or self._is_closer(result)):
                self._confirm(candidate, result)
            if self._is_over:
                break

    def _is_closer(self, result: EditResult) -> bool:
        others = [each[1] for each in (self._found.closest,) if each]
        return all(map(result.is_better_than, [self._before, *others]))

    def _confirm(self, candidate: Candidate, result: EditResult) -> None:
        trial, failing = self._trial, self.wrong[0]
        is_asked = result.matches or trial.case != self._experiment.case
        wrong, other = self._first_wrong(candidate) if is_asked else (failing, result)
        if wrong is None:
            if not result.matches:
                self._enlarge()
            titles, doubts = self._titles(candidate)
            judged = self._judge.judged(candidate, titles) if titles else None
            if judged is not None:
                judged.doubts += doubts
                self._found.passed.append(judged)
                self._left = min(self._left, _AFTER_PART * _weight(trial))
        elif not result.matches:
            self._found.closest = candidate, result, self._before
        elif other is not None and wrong.layout == failing.layout:
            if self._enlarge():  # the case was too small
                self._put(iter([(NOW, candidate)]))
        elif other and not wrong.matches and other.is_no_worse_than(result_of(wrong)):
            self._found.closest = candidate, result, result_of(failing)

    def _showing(self, unedited: Candidate) -> Iterator[tuple[Trial, EditResult]]:
        failing, due = self.wrong[0], result_of(self.wrong[0])
        for case in quicker(self._experiment.case):
            trial = Trial(case, failing.assigned)
            (result,) = self._all(unedited, [trial])
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
        """Titles of what matches, none where one is wrong; and doubts."""
        doubts = list[str]()
        for number, case in enumerate(fresh(self._experiment.case)):
            trial, rows = Trial(case, self.wrong[0].assigned), f"{case.seqlen_q} rows"
            (result,) = self._all(candidate, [trial])
            if result is not None and result.matches:
                return [*self._laid, f"a fresh draw (seed {case.seed}, {rows})"], doubts
            # A length that ends inside a tile may not be taken; nor another, where what is wrong is so without it.
            is_doubt = number > 0 and result and self._is_doubt(candidate, trial, result)
            doubts += [rows] if is_doubt else []
            if result is None or (number and result.names and not is_doubt):
                break
        return [], doubts

    def _is_doubt(self, candidate: Candidate, trial: Trial, result: EditResult) -> bool:
        """Not taken, or one result comes right and another does not."""
        before = self._judge.unedited(candidate, trial)
        is_mended = before is not None and result.mends_of(before)
        return is_mended or self._judge.is_untaken(candidate, trial, result)

    def _all(self, candidate: Candidate, trials: Sequence[Trial]) -> list[EditResult | None]:
        found = list[EditResult | None]()
        for _, _, result in self._ran([(trial, candidate) for trial in trials]):
            found.append(result)
            if result is None or not result.matches:
                break
        return found + [None] * (len(trials) - len(found))

    def _ran(
        self, asked: Sequence[tuple[Trial, Candidate]]
    ) -> Iterator[tuple[Trial, Candidate, EditResult | None]]:
        with Forks(_AT_ONCE, computes=_LONGEST_TRIAL) as forks:
            for trial, candidate in asked:
                forks.add((trial, candidate), partial(self._edited(candidate).run, trial))
            for (trial, candidate), result in forks.answers(self._until):
                self._found.faults |= {result.fault: None} if result and result.fault else {}
                yield trial, candidate, result

    def _edited(self, candidate: Candidate) -> EditedTarget:
        file = candidate.file
        copy = self._folder / str(next(self._numbers)) / file.path.name
        copy.parent.mkdir()
        copy.write_bytes(candidate.text.encode())
        return EditedTarget(self._experiment, candidate, copy, self._modules_of(file.file))


def _weight(trial: Trial) -> int:
    return max(1, trial.case.scores // _OF_ONE)
