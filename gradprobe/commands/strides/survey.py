"""Survey: a target in every layout, as a plan of the suite's runner, and its report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from msgspec import structs

from ...inputs.history import CheckRequest
from ...inputs.options import flags
from ...model.layout_run import ALONE, FAILED, MATCH, MISMATCH, PROGRAM, TOGETHER, Run, add_counts
from ...model.memory_finding import WARNING, MemoryFinding
from ...model.report import Diagnosis, Report, SurveySummary
from ..suite.checking import FACTORY, Setting, check_each
from ..suite.outcome import CheckOutcome
from ..suite.plan import Plan, PlannedCheck, Steps
from ..suite.runner import Runner
from .trials import (
    FIRST,
    FirstOutcome,
    LayoutTrial,
    PlannedTrial,
    is_failing,
    planned,
    trials_of,
    warnings_of,
    weighed,
)

TRIALS = f"{__package__}.bench:TrialChecker"


@dataclass
class _Survey:
    """What came so far."""

    first: FirstOutcome
    trials: tuple[LayoutTrial, ...]
    repro_command: str
    setting: Setting
    start: float
    runs: list[Run] = field(default_factory=list)
    diagnoses: tuple[Diagnosis, ...] = ()
    known: tuple[str, ...] = ()

    def add(self, outcome: CheckOutcome) -> None:
        trial, error = self.trials[len(self.runs)], outcome.report.error
        if error is None:
            self.runs.append(outcome.report.runs[0])
            return
        words = error.words or error.message
        for finding in error.memory[:1]:  # which is told by itself
            words = words.removesuffix(f"; small in the interpreter {finding.sentence}")
        run = Run(layout=trial.title, verdict=FAILED, error=words, memory=error.memory)
        self.runs.append(weighed(run, trial, self._is_right))

    def _is_right(self, trial: LayoutTrial) -> bool:
        """Whether a layout without the hazard with which one ended its process is."""
        if trial == FIRST:
            return self.runs[0].verdict == MATCH
        again = replace(self.setting, workers=1)
        (outcome,) = check_each([planned(self.first.request, trial)], again)
        return outcome.verdict == MATCH

    @property
    def report(self) -> Report:
        """A run for each layout, and under "strides" what is a survey's own."""
        counted = [run for run in self.runs if run.severity != WARNING]
        firsts = [run.first_mismatch for run in counted if run.first_mismatch]
        bare, findings = list[Run](), list[MemoryFinding]()
        for run in self.runs:  # what was seen of memory stands in the summary
            bare.append(structs.replace(run, memory=run.memory if run.verdict == FAILED else ()))
            if is_failing(run):
                findings += (replace(finding, layout=run.layout) for finding in run.memory)
        return structs.replace(
            self.first.report,
            title="",
            verdict=_verdict(counted),
            runs=tuple(bare),
            first_mismatch=firsts[0] if firsts else None,
            compared=add_counts(run.compared for run in bare),
            warnings=tuple(warnings_of(self.runs)),
            reproduce=self.repro_command,
            seconds={"total": round(time.perf_counter() - self.start, 4)},
            strides=SurveySummary(layouts=len(self.trials), findings=tuple(findings)),
            diagnoses=self.diagnoses,
            known=self.known,
        )


def _verdict(counted: list[Run]) -> str:
    # One that ended its process is wrong where it is known what its kernels did to memory.
    if any(run.verdict == MISMATCH or (run.severity and run.memory) for run in counted):
        return MISMATCH
    return FAILED if any(run.verdict == FAILED for run in counted) else MATCH


def survey(
    request: CheckRequest,
    repro_command: str,
    *,
    given: frozenset[str],
    fast: bool,
    setting: Setting,
) -> Iterator[Report]:
    """Tries a target in every layout: what is known after each, and at last all of it.

    Args:
        repro_command: the command line that repeats it.
        given: the options that a user gave. The others may be replaced by what the target takes.
        fast: whether to try fewer layouts of single tensors, most of them only with NaN around.
        setting: its timeout is that of one layout; edits are tried on the simplest wrong one.
    """
    start, trying = time.perf_counter(), replace(setting, checker=TRIALS, fix_budget=0)
    steps, found = _steps(PlannedTrial(FIRST.title, request, fixed=given), fast), None
    for outcome in Runner(Plan(list(next(steps)), steps), trying).outcomes():
        if found is None:
            if not isinstance(outcome, FirstOutcome):
                more = {"title": "", "strides": SurveySummary(), "reproduce": repro_command}
                yield structs.replace(outcome.report, **more)
                return
            taken = outcome.request.options.items()
            added = {name: word for name, word in taken if request.options.get(name) != word}
            if added:
                repro_command = shlex.join([*shlex.split(repro_command), *flags(added)])
            found = _Survey(outcome, _trials(outcome, fast), repro_command, trying, start)
        found.add(outcome)
        yield found.report
    if found is not None and any(map(is_failing, found.runs)):
        _explain(found, setting)
        yield found.report


def _trials(first: FirstOutcome, fast: bool) -> tuple[LayoutTrial, ...]:
    strict = bool(first.request.options.get("strict"))
    return trials_of(first.shapes, fast=fast, strict=strict)


def _steps(first: PlannedTrial, fast: bool) -> Steps:
    outcome = yield [first]
    if isinstance(outcome, FirstOutcome):
        _, *others = _trials(outcome, fast)
        yield [planned(outcome.request, trial) for trial in others]


def _explain(found: _Survey, setting: Setting) -> None:
    """Checks the simplest layout with wrong numbers: why it has them."""
    pairs, order = zip(found.trials, found.runs, strict=True), (ALONE, TOGETHER, PROGRAM)
    wrong = [trial for trial, run in pairs if run.has_wrong_elements]
    if not wrong:
        return
    trial = min(wrong, key=lambda trial: order.index(trial.tried.kind))
    limit = None if setting.timeout is None else setting.timeout * len(found.runs)
    how = replace(setting, checker=FACTORY, timeout=limit)
    alone = PlannedCheck(trial.title, planned(found.first.request, trial).request)
    (outcome,) = check_each([alone], how)
    found.diagnoses, found.known = outcome.report.diagnoses, outcome.report.known
