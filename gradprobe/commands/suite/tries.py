"""Tries: cases that are run without second runs, a look inside or a search for causes; the target is imported once."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from ...inputs.guard_bands import NAN, ORDINARY
from ...inputs.history import CheckRequest
from ...model.allowance import Client
from ...model.case import Case
from ...model.failures import Refusal
from .checking import Checker
from .outcome import CheckOutcome
from .plan import PlannedCheck

if TYPE_CHECKING:
    from ...model.report import Report
    from ...pipeline.resolve import Problem
    from ...probing.experiment import Experiment
    from ...probing.runs import RunRecord

    _Begun = tuple[CheckRequest, Experiment, list[RunRecord], tuple[str, ...]]

TRIES = f"{__name__}:TryChecker"


@dataclass(frozen=True)
class PlannedTry(PlannedCheck):
    case: Case | None = None
    """None for that of the words, or for a whole check."""
    fixed: frozenset[str] | None = None
    """Of a case of words the options that a user gave: the others may be replaced by what the target takes."""


@dataclass(frozen=True)
class TryOutcome(CheckOutcome):
    taken: frozenset[str]
    """The tensors that kernels were given where they lay."""


class TryChecker(Checker):
    """Makes tries, and whole checks; where the case is poisoned, tensors lie in guard bands of NaN."""

    _problem: Problem | None = None
    _drawn: Experiment | None = None
    """The last case without its layouts, since many differ in these alone: its values are drawn once."""

    def _sources(self, planned: PlannedCheck, report: Report) -> dict[str, str]:
        return {}  # to find them takes as long as some tries

    def _check(self, planned: PlannedCheck, client: Client) -> CheckOutcome:
        if not isinstance(planned, PlannedTry) or (planned.case, planned.fixed) == (None, None):
            return super()._check(planned, client)
        with contextlib.redirect_stdout(sys.stderr):
            case = planned.case
            begun = self._tried(planned, case) if case else self._fitted(planned)
        from ...pipeline.probe import measured_so_far
        from ...pipeline.reported import report_of

        request, experiment, records, notes = begun
        report = report_of(replace(measured_so_far(experiment, records), notes=notes))
        taken = records[0].executions[0].outcome.taken
        return TryOutcome(request, structs.replace(report, title=planned.title), taken)

    def _fitted(self, planned: PlannedTry) -> _Begun:
        from ...pipeline.probe import fitted
        from ...pipeline.resolve import resolve_problem
        from ...probing.runs import notes_of

        fixed = planned.fixed or frozenset()
        problem = replace(resolve_problem(planned.request), fixed=fixed)
        self._problem, sentences, begun = fitted(problem, planned.repro_command, Client())
        experiment, records, _ = begun
        notes = (*sentences, *notes_of(experiment, records))
        return self._problem.request, experiment, records, notes

    def _tried(self, planned: PlannedTry, case: Case) -> _Begun:
        from ...pipeline.resolve import resolve_problem
        from ...probing.experiment import Stopwatch, experiment_of
        from ...probing.runs import records_of
        from ...runtime.backend import choose_threads, make_interpreter_right

        self._problem = self._problem or resolve_problem(planned.request)
        make_interpreter_right(case)
        choose_threads(case)
        drawn = replace(case, layouts=(), runs=(), poison=False, repeat=1)
        if self._drawn is None or self._drawn.case != drawn:
            self._drawn = experiment_of(drawn, self._problem.target, self._problem.reference)
        fill, own = NAN if case.poison else ORDINARY, replace(self._drawn, stopwatch=Stopwatch())
        experiment = replace(own, case=case, fill=fill, command=planned.repro_command)
        records = list(records_of(experiment))
        if not any(record.run.measured or record.run.memory for record in records):
            raise Refusal("; ".join(record.run.skipped or "" for record in records))
        return planned.request, experiment, records, ()
