"""The worker of a process of its own: it makes the trials that it is asked for, and finds what is to blame."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...inputs.options import flags
from ...model.allowance import Allowance
from ...model.assignment import Assigned
from ...model.failures import TargetFailure
from ...model.report import Diagnosis
from ...numerics.evidence import LayoutRun
from ...numerics.range import refuse_out_of_range
from ...pipeline.fit import Fit, fit
from ...pipeline.probe import measured_so_far
from ...pipeline.reported import report_of
from ...pipeline.resolve import Problem, resolve_problem
from ...probing.experiment import Experiment, experiment_of
from ...probing.runs import RunRecord, notes_of, outcomes_of, records_of
from .bench import FIRST, Bench
from .culprits import culprits
from .trials import (
    BenchSetup,
    FailedTrial,
    LayoutTrial,
    SurveyPlan,
    TrialResult,
    programs_of,
    trials_of,
)


class Trials:
    """The bench of a setup, on what the target takes in place of what nobody fixed.

    Called with 0 it gives the SurveyPlan; with a number from 1 or a title the TrialResult of that trial, None where
    there is none. Called with a TrialResult that ended another process, it weighs that. Called with the titles of
    trials that fail, and of those that pass as they are, it gives the Culprits; with a Sought, the diagnoses of that
    trial and what is known.
    """

    def __init__(self, setup: BenchSetup) -> None:
        self._setup = setup
        self._problem = replace(resolve_problem(setup.request), fixed=setup.given)

    def __call__(
        self, order: int | str | TrialResult | FailedTrial | tuple[Sequence[str], Sequence[str]]
    ) -> Any:
        bench, _ = self._found
        if isinstance(order, TrialResult):
            return bench.weighed(order)
        if order == 0:
            return self._plan()
        known: dict[int | str, LayoutTrial] = {trial.title: trial for trial in self._trials}
        if isinstance(order, tuple):
            failing, right = (
                [known[title] for title in titles if title in known] for titles in order
            )
            return culprits(bench, failing, right)
        if isinstance(order, FailedTrial):
            return _reasons(bench.experiment, known[order.title].assigned, order.edits)
        trial = (known | dict(enumerate(self._trials, 1))).get(order)
        return bench.tried(trial) if trial is not None else None

    @functools.cached_property
    def _trials(self) -> tuple[LayoutTrial, ...]:
        """The contiguous one, then the others."""
        shapes, fast = self._found[0].shapes(), self._setup.fast
        return (FIRST, *trials_of(shapes, programs_of(shapes, fast=fast), fast=fast))

    @functools.cached_property
    def _found(self) -> tuple[Bench, Fit]:
        """The bench, and what was found out of what the target takes; made where it is first used."""
        bench = bench_of(self._problem)
        try:
            trial = Fit(
                self._problem,
                record=RunRecord(LayoutRun(FIRST.title, (), bench.contiguous(), None)),
            )
        except TargetFailure as failure:
            trial = Fit(self._problem, failure=failure)
        found = fit(trial)
        return (bench, Fit(self._problem)) if found is None else (bench_of(found.problem), found)

    def _plan(self) -> SurveyPlan:
        bench, found = self._found
        measured, more = bench.contiguous(), shlex.join(flags(found.options))
        experiment, run = bench.experiment, LayoutRun(FIRST.title, (), measured, None)
        records = [RunRecord(run, tuple(bench.executions))]
        probed = replace(
            measured_so_far(experiment, records),
            runs=(run,),
            notes=(*found.sentences, *notes_of(experiment, records)),
            reproduce=f"{self._setup.repro_command} {more}".rstrip(),
        )
        return SurveyPlan(self._trials, report_of(probed), more)


def _reasons(
    experiment: Experiment, assigned: Assigned, edits: Allowance
) -> tuple[tuple[Diagnosis, ...], tuple[str, ...]]:
    """Why a layout is wrong, and what is known where no cause is."""
    case = replace(experiment.case, layouts=(), runs=(assigned,))
    experiment = replace(experiment, case=case, first=None)
    records = list(records_of(experiment))
    experiment, runs = experiment.after(outcomes_of(records)), [record.run for record in records]
    # What explains is imported where something is wrong alone.
    from ...diagnosis.why import FailedCheck, reasons_of
    from ...pipeline.probe import reasons_with_edits

    found = reasons_of(FailedCheck(experiment, runs))
    found = reasons_with_edits(experiment, runs, found, edits) if edits.count else found
    return found.diagnoses, found.known


def bench_of(problem: Problem) -> Bench:
    """A bench for a problem as it is."""
    experiment = experiment_of(problem.case, problem.target, problem.reference)
    refuse_out_of_range(experiment.case, experiment.values)
    return Bench(experiment)
