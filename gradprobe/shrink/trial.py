"""The worker that tries cases: the facts of a target, a case looked at in full, and quick tries of smaller ones."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..answer import answer
from ..failures import Failure, Refusal, UsageFailure
from ..fitting.fit import fitted
from ..last import Asked
from ..model.report import Report
from ..options import command_line
from ..probing.experiment import Experiment, experiment_of, inputs_of
from ..probing.runs import layouts_of, runs_of
from ..problem import problem_of
from ..report.console import first_line
from ..report.reported import report_of
from ..running.backend import choose_threads, make_interpreter_right
from .fewest import Facts
from .ordering import settled
from .program import Program, no_program, program_of
from .symptom import Seen, Symptom, plain_symptom, symptom_of

if TYPE_CHECKING:
    from ..cases.case import Case
    from ..problem import Problem
    from ..verdict import Probed

FACTORY = "gradprobe.shrink.trial:Trial"
FACTS, LOOK, TRY, TRY_IN_FULL, TELL = "facts", "look", "try", "try in full", "tell"


@dataclass(frozen=True)
class Order:
    """What a trial is to do, and with which case options, as words of the command line."""

    what: str
    """FACTS, LOOK, TRY, TRY_IN_FULL or TELL."""
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Looked:
    """A case looked at as `gradprobe check` does."""

    symptom: Symptom | None
    """None where it matches."""
    plain: Symptom | None
    """What a quick try would see of it; None where it takes second runs or a look inside."""
    run: tuple[tuple[str, str], ...] | None
    """What the first failing run assigns; None where no run of the case itself fails."""
    report: Report | None
    """None where the process that looked ended."""


@dataclass(frozen=True)
class Told:
    """The last look at the shrunken case."""

    symptom: Symptom | None
    report: Report
    first_line: str
    """The greppable line; "" where it matches."""
    program: Program | None
    """What shows the fault without gradprobe."""
    no_program: str
    """Why there is none."""


class Trial:
    """`Trial(asked)(order)`: the target is imported once for all quick tries."""

    def __init__(self, asked: Asked) -> None:
        import torch  # noqa: F401 - outside the timeout of any order

        self._asked = asked
        self._problem: Problem | None = None

    def __call__(self, order: Order) -> Facts | Looked | Seen | Told:
        if order.what == FACTS:
            return self._facts()
        if order.what == LOOK:
            return _looked(self._report(order))
        if order.what == TELL:
            return self._told(order)
        return self._seen(order)

    def _found(self) -> Problem:
        if self._problem is None:
            with contextlib.redirect_stdout(sys.stderr):
                self._problem = fitted(problem_of(self._asked)).problem
        return self._problem

    def _facts(self) -> Facts:
        problem = self._found()
        target = problem.target
        tensors = tuple(inputs_of(self._experiment(problem.case), ()).tensors)
        return Facts(settled(problem.case), "bias" in target.takes, target.packs, tensors)

    def _experiment(self, case: Case) -> Experiment:
        problem = self._found()
        return experiment_of(case, problem.target, problem.reference)

    def _case(self, order: Order) -> Case:
        """The case of an order, with what the backend needs for it made ready."""
        problem = self._found()
        facts = Facts(problem.case, "bias" in problem.target.takes, problem.target.packs, ())
        case = facts.resolved(order.options)
        make_interpreter_right(case)
        choose_threads(case)
        return case

    def _seen(self, order: Order) -> Seen:
        try:
            return Seen(self._tried(order) if order.what == TRY else symptom_of(self._report(order)))
        except Failure as failure:
            return Seen(None, str(failure), isinstance(failure, UsageFailure))

    def _tried(self, order: Order) -> Symptom | None:
        """What the runs of a case show by themselves: no second runs, no look inside.

        Raises:
            Failure: the target does not take the case, or could not be run.
        """
        case = self._case(order)
        with contextlib.redirect_stdout(sys.stderr):
            runs = runs_of(self._experiment(case))
        if not any(run.measured for run in runs):
            raise Refusal("; ".join(run.skipped or "" for run in runs))
        found = plain_symptom(runs, case.heads)
        return found[1] if found else None

    def _report(self, order: Order) -> Probed:
        asked = replace(self._asked, options=order.options)
        return answer(asked, command_line("check", asked.target, asked.options, _chosen(asked)))

    def _told(self, order: Order) -> Told:
        probed = self._report(order)
        report = report_of(probed)
        case = self._case(order)
        target = self._found().target
        why = no_program(probed, case, target)
        program = None if why else program_of(probed, case, target, self._experiment(case))
        why = why or ("" if program else "the error is too small for a plain comparison")
        return Told(symptom_of(probed), report, first_line(report), program, why)


def _chosen(asked: Asked) -> dict[str, Any]:
    return {"family": asked.family, "reference": asked.reference}


def _looked(report: Probed) -> Looked:
    assigned = {run for run in layouts_of(report.case)}
    own = [run for run in report.runs if run.layout.partition(", ")[0] == run.layout]
    plain = plain_symptom(own, report.case.heads)
    failing = report.failing[0] if report.failing else None
    first = plain[0] if plain else failing
    alone = first is not None and (first in own or first.assigned in assigned)
    return Looked(
        symptom_of(report), plain[1] if plain else None, first.assigned if first and alone else None, report_of(report)
    )
