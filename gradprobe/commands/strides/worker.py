"""The workers of a process of its own: one makes a trial for each number it is sent, one finds what is to blame."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import replace

from ...inputs.options import flags
from ...model.failures import TargetFailure
from ...numerics.evidence import Probed, Run
from ...numerics.range import refuse_out_of_range
from ...pipeline.fit import WRONG_THROUGHOUT, Fit, fit, share_wrong
from ...pipeline.reported import report_of
from ...pipeline.resolve import Problem, resolve_problem
from ...probing.experiment import dots_of, experiment_of
from ...probing.receipt import environment, notes_of, provenance
from ...probing.runs import Record
from .bench import FIRST, Bench
from .culprits import Culprit, culprits
from .trials import Plan, Result, Setup, Trial, programs_of, trials_of


class Trials:
    """Called with 0 it gives the Plan; with n the n-th trial's Result, None where there are fewer.

    Called with a Result that ended another process, it weighs that.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self._benches = setup, Benches(setup)

    def __call__(self, number: int | Result) -> Plan | Result | None:
        if isinstance(number, Result):
            return self._benches.bench.weighed(number)
        if number == 0:
            return self._plan()
        trials = self._benches.trials
        return self._benches.bench.tried(trials[number - 1]) if number <= len(trials) else None

    def _plan(self) -> Plan:
        bench, found = self._benches.bench, self._benches.found
        measured, more = bench.contiguous(), shlex.join(flags(found.options))
        experiment, run = bench.experiment, Run(FIRST.title, (), measured, None)
        records = [Record(run, tuple(bench.executions))]
        probed = Probed(
            case=replace(experiment.case, dots=dots_of(experiment)),
            provenance=provenance(experiment, records),
            environment=environment(experiment.case.device),
            runs=(run,),
            notes=(*found.sentences, *notes_of(experiment, records)),
            reproduce=f"{self._setup.repro_command} {more}".rstrip(),
            seconds=experiment.stopwatch.seconds,
        )
        return Plan(self._benches.trials, report_of(probed), measured.comparison.precision.name, more)


class Named:
    """Called with the title of a trial it gives the Result: as `Trials`, for another size of the same case."""

    def __init__(self, setup: Setup) -> None:
        self._benches = Benches(setup)

    def __call__(self, title: str) -> Result | None:
        trial = self._benches.titled.get(title)
        return self._benches.bench.tried(trial) if trial is not None else None


class Blame:
    """Called with the titles of trials that fail, and of those that pass as they are, it gives what is to blame."""

    def __init__(self, setup: Setup) -> None:
        self._benches = Benches(setup)

    def __call__(self, came: tuple[Sequence[str], Sequence[str]]) -> tuple[Culprit, ...]:
        titled = self._benches.titled
        failing, right = ([titled[title] for title in titles if title in titled] for titles in came)
        return culprits(self._benches.bench, failing, right)


class Benches:
    """The bench of a setup, on what the target takes in place of what nobody fixed; made where it is first used."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._problem = replace(resolve_problem(setup.request), fixed=setup.given)

    @functools.cached_property
    def _found(self) -> tuple[Bench, Fit]:
        bench = bench_of(self._problem)
        try:
            wrong = share_wrong(Run(FIRST.title, (), bench.contiguous(), None))
            found = fit(self._problem, None, wrong) if wrong > WRONG_THROUGHOUT else None
        except TargetFailure as failure:
            found = fit(self._problem, failure)
        return (bench, Fit(self._problem)) if found is None else (bench_of(found.problem), found)

    @property
    def bench(self) -> Bench:
        return self._found[0]

    @property
    def found(self) -> Fit:
        """What was found out of what the target takes."""
        return self._found[1]

    @functools.cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The contiguous one, then the others."""
        shapes, fast = self.bench.shapes(), self._setup.fast
        return (FIRST, *trials_of(shapes, programs_of(shapes, fast=fast), fast=fast))

    @functools.cached_property
    def titled(self) -> dict[str, Trial]:
        """The same by their titles."""
        return {trial.title: trial for trial in self.trials}


def bench_of(problem: Problem) -> Bench:
    """A bench for a problem as it is."""
    experiment = experiment_of(problem.case, problem.target, problem.reference)
    refuse_out_of_range(experiment.case, experiment.values)
    return Bench(experiment)
