"""Survey: a target in every layout, as a plan of the suite's runner; what fails has in common; its report."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from ...inputs.history import CheckRequest
from ...inputs.options import flags
from ...model.layout_run import ALONE, FAILED, MATCH, MISMATCH, PROGRAM, Run, add_counts
from ...model.memory_finding import ERROR, WARNING, MemoryFinding
from ...model.report import Culprit, Diagnosis, Report, SurveySummary
from ...processes import run_each
from ...processes.ended import DEVICE
from ..suite.checking import FACTORY, Checks, Setting, check_each
from ..suite.interpreted import for_the_interpreter
from ..suite.outcome import CheckOutcome
from ..suite.plan import Plan, PlannedCheck, Steps
from ..suite.runner import Runner
from .trials import (
    EXPANDED,
    FIRST,
    FirstOutcome,
    LayoutTrial,
    PlannedTrial,
    hazards,
    is_failing,
    planned,
    trials_of,
    weighed,
)

TRIALS, BLAMER = f"{__package__}.bench:TrialChecker", f"{__package__}.culprits:Blamer"


@dataclass
class _Survey:
    """What came so far."""

    first: FirstOutcome
    trials: tuple[LayoutTrial, ...]
    repro_command: str
    again: Checks
    """What runs a layout without the hazard with which it ended its process."""
    start: float
    runs: list[Run] = field(default_factory=list)
    lost_device: bool = False
    culprits: tuple[Culprit, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    known: tuple[str, ...] = ()

    def add(self, outcome: CheckOutcome) -> None:
        trial, error = self.trials[len(self.runs)], outcome.report.error
        if error is None:
            self.runs.append(outcome.report.runs[0])
            return
        self.lost_device |= error.kind == DEVICE
        words = error.words or error.message
        for finding in error.memory[:1]:  # which is told by itself
            words = words.removesuffix(f"; small in the interpreter {finding.sentence}")
        told: dict[str, Any] = {"layout": trial.title, "tried": trial.as_told}
        run = Run(verdict=FAILED, error=words, memory=error.memory, severity=ERROR, **told)
        is_strict = bool(self.first.request.options.get("strict"))
        self.runs.append(weighed(run, trial, self._is_right, is_strict, self.first.shapes))

    def _is_right(self, trial: LayoutTrial) -> bool:
        if trial == FIRST:
            return self.runs[0].verdict == MATCH
        return self.again.make(planned(self.first.request, trial)).verdict == MATCH

    @property
    def counted(self) -> list[Run]:
        return [run for run in self.runs if run.severity != WARNING]

    @property
    def verdict(self) -> str:
        # One that ended its process is wrong where it is known what its kernels did to memory.
        if any(run.verdict == MISMATCH or (run.severity and run.memory) for run in self.counted):
            return MISMATCH
        return FAILED if any(run.verdict == FAILED for run in self.counted) else MATCH

    @property
    def report(self) -> Report:
        """A run for each layout, and under "strides" what is a survey's own."""
        warned = [each.warned for each in hazards(self.runs) if each.severity == WARNING]
        firsts = [run.first_mismatch for run in self.counted if run.first_mismatch]
        bare, findings = list[Run](), list[MemoryFinding]()
        for run in self.runs:  # what was seen of memory stands in the summary
            bare.append(structs.replace(run, memory=run.memory if run.verdict == FAILED else ()))
            if is_failing(run):
                findings += (replace(finding, layout=run.layout) for finding in run.memory)
        return structs.replace(
            self.first.report,
            title="",
            verdict=self.verdict,
            runs=tuple(bare),
            first_mismatch=firsts[0] if firsts else None,
            compared=add_counts(run.compared for run in bare),
            warnings=tuple(warned),
            reproduce=self.repro_command,
            seconds={"total": round(time.perf_counter() - self.start, 4)},
            strides=SurveySummary(
                layouts=len(self.trials), culprits=self.culprits, findings=tuple(findings)
            ),
            diagnoses=self.diagnoses,
            known=self.known,
        )


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
    with contextlib.closing(Checks(replace(trying, workers=1))) as again:
        for outcome in Runner(Plan(list(next(steps)), steps), trying).outcomes():
            if found is None:
                if not isinstance(outcome, FirstOutcome):
                    report, summary = outcome.report, SurveySummary()
                    more = {"title": "", "strides": summary, "reproduce": repro_command}
                    yield structs.replace(report, **more)
                    return
                taken = outcome.request.options.items()
                more = {name: word for name, word in taken if request.options.get(name) != word}
                command = shlex.join([*shlex.split(repro_command), *flags(more)])
                trials = trials_of(outcome.shapes, fast=fast)
                found = _Survey(outcome, trials, command if more else repro_command, again, start)
            found.add(outcome)
            yield found.report
    if found is not None and any(map(is_failing, found.runs)):
        _explain(found, fast, setting)
        yield found.report


def _steps(first: PlannedTrial, fast: bool) -> Steps:
    outcome = yield [first]
    if isinstance(outcome, FirstOutcome):
        _, *others = trials_of(outcome.shapes, fast=fast)
        yield [planned(outcome.request, trial) for trial in others]


def _explain(found: _Survey, fast: bool, setting: Setting) -> None:
    """What the layouts that fail have in common, and why the simplest with wrong numbers does.

    A crash during the search changes no verdict.
    """
    request, known = found.first.request, hazards(found.runs)
    if found.lost_device:
        request = for_the_interpreter(request)
    limit = None if setting.timeout is None else setting.timeout * len(found.runs)
    failing, right, wrong = list[str](), list[str](), list[tuple[bool, LayoutTrial]]()
    for trial, run in zip(found.trials, found.runs, strict=True):
        if is_failing(run):
            failing += [trial.title] * (not run.tried or not run.tried.hazard)
            if run.has_wrong_elements and trial.kind != PROGRAM:
                wrong.append((trial.kind != ALONE, trial))
        # Copies hide a fault of strides, and so do values that are all equal.
        elif run.verdict == MATCH and not run.copied:
            right += [trial.title] * (EXPANDED not in dict(trial.assigned).values())
    if failing:
        asked = (fast, [run.layout for run in found.runs if is_failing(run)], right)
        (ended,) = run_each(BLAMER, request, [asked], timeout=limit)
        found.culprits = ended.result or ()
    found.culprits += tuple(each.culprit for each in known if each.severity == ERROR)
    for _, trial in sorted(wrong, key=lambda pair: pair[0])[:1]:
        how = replace(setting, checker=FACTORY, timeout=limit)
        alone = PlannedCheck(trial.title, planned(request, trial).request)
        (outcome,) = check_each([alone], how)
        found.diagnoses, found.known = outcome.report.diagnoses, outcome.report.known
