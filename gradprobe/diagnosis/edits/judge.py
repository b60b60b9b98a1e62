"""An edit is run on other cases until all that it may change was reached."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...frontends.python.traces import reached_goals
from ...model.case import Case
from ...model.failures import Failure, Refusal, fault_words
from ...model.memory_finding import ERROR
from ...numerics.evidence import LayoutRun
from ...probing.compilation import compiles
from ...probing.experiment import Experiment, experiment_of, silent
from ...probing.runs import records_of
from ...processes.startup.sitecustomize import load_from_copy
from ...runtime.target_memory import AllocationSpread
from ...source.kernel_file import KernelFile
from ...source.reach import SEVERAL, TURNS, Goal, Reach, reach_of
from ...source.rewrites.candidate import Candidate
from ...source.syntax import lines_of
from ...targets.find import find_target
from ...targets.naming import forget
from ..cases import TAILS, WHOLE, Trial, further, others

# No budget holds it: kernels say it in several ways. An edit of something else leaves it as it is.
_DEAD_ROWS = "the LSE of rows that see no key"
# Other cases of an edit that is not certain any more; those that run at once; and the length of a short one.
_FEW, _AT_ONCE, _SHORT = 5, 2, 64


@dataclass(frozen=True)
class EditResult:
    # How many elements of each result are; `errors`: the largest of each.
    wrong: Mapping[str, int] = field(default_factory=dict)
    harm: int = 0  # findings about memory that count
    failure: str = ""
    matches: bool = False
    errors: Mapping[str, float] = field(default_factory=dict)
    reached: frozenset[Goal] = frozenset()
    of_dead_rows: tuple[float, ...] = ()  # what LSE is in rows of O that are 0: these see no key
    fault: str = ""

    @property
    def names(self) -> set[str]:
        return {name for name, count in self.wrong.items() if count}

    def is_better_than(self, other: EditResult) -> bool:
        """A result, or most of its elements, has come right and nothing wrong."""
        here, there, is_less = Counter(self.wrong), Counter(other.wrong), self.harm < other.harm
        if other.names and (self.harm or not is_less):
            is_less = here <= there and 2 * here.total() <= there.total()
        return self.mends_of(other) or (self.is_no_worse_than(other) and is_less)

    def mends_of(self, other: EditResult) -> bool:
        return self.is_no_worse_than(other) and self.names < other.names

    def is_no_worse_than(self, other: EditResult) -> bool:
        return not self.failure and self.harm <= other.harm and self.names <= other.names


@dataclass(frozen=True)
class EditedTarget:
    """A target one of whose files is loaded from a copy with an edit."""

    experiment: Experiment
    candidate: Candidate
    copy: Path
    modules: Sequence[str]  # what `holding` says of the file

    def run(self, trial: Trial) -> EditResult:
        """In this process, which takes the copy for the file from now on."""
        try:
            experiment = self.begun(trial)
            with reached_goals(str(self.copy), trial.traced) as reached:
                record = next(records_of(experiment))
            if record.run.measured is None:
                return EditResult(failure=record.run.skipped or "it was refused")
            if trial.is_lowered and not compiles(record):
                return EditResult(failure="it runs in the interpreter alone")
            return replace(result_of(record.run), reached=frozenset(reached))
        except Failure as failure:
            return EditResult(failure=str(failure) or type(failure).__name__)
        except Exception as error:
            return EditResult(failure="gradprobe failed", fault=fault_words(error))

    def begun(self, trial: Trial) -> Experiment:
        """Its target imported anew; Refusal where nothing can be laid apart."""
        load_from_copy(self.candidate.file.file, str(self.copy), os.devnull)
        forget(self.modules)
        of = self.experiment
        target = find_target(of.target.name, of.target.family)
        alone = replace(trial.case, layouts=trial.assigned, runs=(), repeat=1)
        saved = of.saved if trial.case.inputs is not None else None
        experiment = experiment_of(alone, target, of.reference, saved, tick=silent)
        if not trial.is_spread:
            return experiment
        spread = AllocationSpread()
        experiment = replace(experiment, spread=spread)
        next(records_of(experiment))
        if not spread.lay():
            raise Refusal("it asks for no strides of what it allocates")
        return experiment


def result_of(run: LayoutRun) -> EditResult:
    harm = sum(finding.severity == ERROR for finding in run.memory)
    if run.measured is None:
        return EditResult(harm=harm)
    values, findings = run.measured.trace.values, run.measured.comparison.findings
    wrong = {name: finding.mismatched for name, finding in findings.items()}
    errors = {name: finding.max_abs_err for name, finding in findings.items()}
    o, lse, dead = values.get("O"), values.get("LSE"), list[float]()
    if o is not None and lse is not None and lse.shape == o.shape[:-1]:
        dead = lse[(o == 0).all(-1)].nan_to_num(nan=1e9).unique().tolist()
    return EditResult(wrong, harm, matches=run.matches, errors=errors, of_dead_rows=(*dead,))


# What comes of an edit in each trial, in order; None of those after one that does not match.
Run = Callable[[Candidate, Sequence[Trial]], list[EditResult | None]]


@dataclass
class JudgedEdit:
    """What came of an edit in other cases, as in TriedEdit."""

    candidate: Candidate
    titles: Sequence[str] = ()
    right: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    reaches: tuple[Reach, ...] = ()
    reached: set[Goal] = field(default_factory=set)
    is_broken: bool = False

    @property
    def is_certain(self) -> bool:
        return not (self.doubts or self.not_run)

    @property
    def unreached(self) -> dict[Goal, Reach]:
        unreached = dict[Goal, Reach]()
        for reach in self.reaches:
            unreached |= dict.fromkeys(reach.unreached(self.reached), reach)
        return unreached


class Judge:
    """The file as it is shows which cases the target takes."""

    def __init__(
        self, experiment: Experiment, run: Run, spoilt: Collection[str], laid: Sequence[str]
    ) -> None:
        """`spoilt`, `laid`: the check's wrong results, and its layouts."""
        self._case, self._target, self._run = experiment.case, experiment.target, run
        self._spoilt, self._laid = {*spoilt}, laid
        self._before: dict[Trial, EditResult | None] = {}
        self._never: set[Goal] = set()  # that no case came to: none is drawn for these again

    def judged(self, candidate: Candidate, titles: Sequence[str] = ()) -> JudgedEdit | None:
        """None where an edit breaks what is right, or runs, without it."""
        case, target = self._case, self._target
        judged = JudgedEdit(candidate, titles, reaches=tuple(edited_functions(candidate)))
        for lengths in (TAILS, WHOLE, (case.seqlen_q, 2 * case.seqlen_q)):
            cases = list(others(case, target, lengths, self._laid, is_again=bool(judged.right)))
            if not judged.right:  # where it compiles once it does in the others
                self._put_to(judged, [replace(each, is_lowered=True) for each in cases[:1]])
            if judged.right:
                rest = [each for each in cases[1:] if each.title not in judged.right]
                self._put_to(judged, rest[:_FEW] if judged.doubts else rest)
            if judged.is_broken or (judged.right and (judged.doubts or lengths is not TAILS)):
                break
        drawn = list(further(case, target.takes, judged.right))
        for first in range(0, len(drawn), _AT_ONCE):
            left = list[Goal]()
            for goal, of in judged.unreached.items():
                if not judged.doubts and (goal not in self._never or goal.line in of.edited):
                    left.append(goal)
            trials = drawn[first : first + _AT_ONCE]
            self._put_to(judged, [each for each in trials if _may_reach(each.case, left)])
        for goal, of in judged.unreached.items():
            if not drawn or of.tells(goal):  # where none was drawn, one might come to it
                judged.not_run.append(goal.in_words)
            elif not judged.doubts:
                judged.beyond.append(goal.in_words)
        if drawn and not (judged.is_broken or judged.doubts):
            self._never |= judged.unreached.keys()
        if not judged.right:
            judged.not_run.append("any other case")
        return None if judged.is_broken else judged

    def _put_to(self, judged: JudgedEdit, cases: Sequence[Trial]) -> None:
        waiting = [replace(each, traced=judged.reaches) for each in cases]
        while waiting and not judged.is_broken:
            for result in self._run(judged.candidate, list(waiting)):
                trial = replace(waiting.pop(0), traced=())
                if result is None or not result.matches:
                    judged.is_broken = not self._is_kept(judged, trial, result)
                    break
                judged.right.append(trial.title)
                judged.reached |= result.reached
                before = self.unedited(judged.candidate, trial) if result.of_dead_rows else None
                if before is not None and before.of_dead_rows != result.of_dead_rows:
                    judged.doubts.append(_DEAD_ROWS)

    def _is_kept(self, judged: JudgedEdit, trial: Trial, result: EditResult | None) -> bool:
        before = self.unedited(judged.candidate, trial)
        if before is None:  # it came to no end, or crashed: nothing is known of the case
            judged.not_run.append(trial.title)
            return result is None
        if result is None or result.failure:
            return bool(before.failure)
        # Where memory suffers anyhow, how often says nothing.
        is_worse = result.harm > before.harm == 0 or not result.names <= before.names
        if is_worse and not before.failure:
            return False
        if not self.is_untaken(judged.candidate, trial, result):
            judged.doubts.append(trial.title)
        return True

    def is_untaken(self, candidate: Candidate, trial: Trial, result: EditResult) -> bool:
        """Whether what is right in the check is as wrong in a case with an edit as without."""
        before = self.unedited(candidate, trial) or EditResult()
        # Where nothing is finite nothing says so.
        was, now, names = before.errors, result.errors, before.names - self._spoilt
        return any(0 < was.get(name, 0.0) == now.get(name) for name in names)

    def unedited(self, candidate: Candidate, trial: Trial) -> EditResult | None:
        if trial not in self._before:
            (self._before[trial],) = self._run(candidate.undone, [trial])
        return self._before[trial]


def _may_reach(case: Case, left: Sequence[Goal]) -> bool:
    """What makes no turn of a loop, or one, does so in a short case."""
    is_short = min(case.seqlen_q, case.seqlen_k) <= _SHORT
    return any(is_short or goal.kind != TURNS or goal.value == SEVERAL for goal in left)


def edited_functions(candidate: Candidate) -> list[Reach]:
    """Those that an edit changes, or whose launch; of other host code what it launches."""
    file = KernelFile(candidate.file.file, candidate.text, candidate.file.function)
    lines, shift = set[int](), 0
    for edit in sorted(candidate.edits):
        first = candidate.text.count("\n", 0, edit.start + shift) + 1
        lines.update(range(first, first + edit.text.count("\n") + 1))
        shift += len(edit.text) - (edit.end - edit.start)
    kernels = {each.name for each in file.kernels}
    inside = {each.name for each in file.functions if not lines.isdisjoint(lines_of(each))}
    launched, of_hosts = set[str](), set[str]()
    for kernel in kernels:
        for call, host in file.callers_of(kernel):
            is_edited = not lines.isdisjoint(lines_of(file.statement(call)))
            launched |= {kernel} if is_edited else set()
            of_hosts |= {kernel} if host.name in inside - kernels else set()
    return reach_of(file, (inside & kernels) | (launched or of_hosts) or kernels, kernels, lines)
