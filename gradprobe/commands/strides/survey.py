"""Survey: a target in every layout, as a plan of the suite's runner, and its report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from msgspec import structs

from ...inputs.history import CheckRequest
from ...inputs.options import flags
from ...model.assignment import run_name
from ...model.layout_run import (
    ALONE,
    FAILED,
    MATCH,
    MISMATCH,
    PROGRAM,
    SKIPPED,
    TOGETHER,
    Run,
    add_counts,
)  # fmt: skip
from ...model.memory_finding import WARNING
from ...model.report import Report, SurveySummary
from ..suite.checking import FACTORY, Setting, check_each
from ..suite.outcome import CheckOutcome
from ..suite.plan import Plan, PlannedCheck, Steps
from ..suite.runner import Runner
from ..suite.tries import TRIES, PlannedTry, TryOutcome
from .trials import LayoutTrial, is_failing, planned, trials_of, warnings_of, weighed

_SECOND = ", without its hazard"


@dataclass
class Survey:
    """What came so far."""

    fast: bool
    start: float
    first: CheckOutcome | None = None
    trials: tuple[LayoutTrial, ...] = ()
    came: dict[str, CheckOutcome] = field(default_factory=dict)
    """By title: of the trials, in their order, and of those without a hazard."""

    def steps(self, first: PlannedTry) -> Steps:
        """The contiguous case, to which what the target takes is found by trying; every layout; of those that fail
        with a hazard the same without it."""
        self.first = outcome = yield [first]
        report = outcome.report
        if report.case is None or not report.runs:
            return
        shapes = {laid.name: laid.sizes for laid in report.runs[0].laid}
        strict = bool(outcome.request.options.get("strict"))
        self.trials = trials_of(shapes, fast=self.fast, strict=strict)
        yield from self._made([planned(outcome, trial) for trial in self.trials])
        yield from self._made([*self.again(self.trials)])

    def again(self, trials: Iterable[LayoutTrial]) -> Iterator[PlannedTry]:
        """Those of the trials that fail with a hazard, without it."""
        assert self.first is not None
        for trial in trials:
            if trial.hazard and is_failing(self.run(trial)):
                other = replace(trial.without_hazard(), thorough=trial.thorough)
                yield replace(planned(self.first, other), title=trial.title + _SECOND)

    def _made(self, checks: list[PlannedTry]) -> Steps:
        for at in range(len(checks)):
            outcome = yield () if at else checks
            self.came[outcome.title] = outcome

    def run(self, trial: LayoutTrial) -> Run:
        """What a trial came to. What the target raises where it may not, or how it ended its process, is an error."""
        outcome, again = self.came[trial.title], self.came.get(trial.title + _SECOND)
        error, is_right = outcome.report.error, again is not None and again.verdict == MATCH
        if isinstance(outcome, TryOutcome):
            taken = self.first.taken if isinstance(self.first, TryOutcome) else frozenset()
            copied = tuple(sorted(taken - outcome.taken))
            run = structs.replace(outcome.report.runs[0], copied=copied)
            return weighed(run, trial, is_right)
        assert error is not None
        words = error.words or error.message.replace(f" ({run_name(trial.assigned)})", "")
        if outcome.is_refused:
            return weighed(Run(layout="", verdict=SKIPPED, skipped=words), trial, is_right)
        for finding in error.memory[:1]:  # which is told by itself
            words = words.removesuffix(f"; small in the interpreter {finding.sentence}")
        run = Run(layout="", verdict=FAILED, error=words, memory=error.memory)
        return weighed(run, trial, is_right)

    @property
    def runs(self) -> list[Run]:
        return [self.run(trial) for trial in self.trials if trial.title in self.came]

    def report(self, repro_command: str) -> Report:
        """A run for each layout, and under "strides" what is a survey's own."""
        assert self.first is not None
        if not self.trials:  # it cannot be run as it is
            more = {"title": "", "strides": SurveySummary(), "reproduce": repro_command}
            return structs.replace(self.first.report, **more)
        runs = self.runs
        counted = [run for run in runs if run.severity != WARNING]
        firsts = [run.first_mismatch for run in counted if run.first_mismatch]
        return structs.replace(
            self.first.report,
            title="",
            verdict=_verdict(counted),
            runs=tuple(runs),
            first_mismatch=firsts[0] if firsts else None,
            compared=add_counts(run.compared for run in runs),
            warnings=tuple(warnings_of(runs)),
            reproduce=repro_command,
            seconds={"total": round(time.perf_counter() - self.start, 4)},
            strides=SurveySummary(layouts=len(self.trials)),
            diagnoses=(),
            known=(),
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
    trying = replace(setting, checker=TRIES, fix_budget=0)
    options = {"recover": False, **request.options, "layout": ["all=contiguous"]}
    asked = replace(request, options=options)
    found = Survey(fast, time.perf_counter())
    steps = found.steps(PlannedTry("", asked, fixed=given))
    for outcome in Runner(Plan(list(next(steps)), steps), trying).outcomes():
        if outcome is not found.first or not found.trials:
            yield found.report(repro_command)
            continue
        taken = outcome.request.options.items()
        added = {name: word for name, word in taken if options.get(name) != word}
        if added:
            repro_command = shlex.join([*shlex.split(repro_command), *flags(added)])
    if found.trials and any(map(is_failing, found.runs)):
        yield _explained(found, found.report(repro_command), setting, given)


def _explained(found: Survey, report: Report, setting: Setting, given: frozenset[str]) -> Report:
    """With why the simplest layout with wrong numbers has them."""
    pairs, order = zip(found.trials, report.runs, strict=True), (ALONE, TOGETHER, PROGRAM)
    wrong = [trial for trial, run in pairs if run.has_wrong_elements]
    if not wrong or found.first is None:
        return report
    trial = min(wrong, key=lambda trial: order.index(trial.tried.kind))
    limit = None if setting.timeout is None else setting.timeout * len(report.runs)
    how = replace(setting, checker=FACTORY, timeout=limit)
    request = planned(found.first, trial).request
    options = dict(request.options)
    if "recover" not in given:
        del options["recover"]
    (outcome,) = check_each([PlannedCheck(trial.title, replace(request, options=options))], how)
    return structs.replace(report, diagnoses=outcome.report.diagnoses, known=outcome.report.known)
