"""The worker that tries cases: the facts of a target, a case looked at in full, and quick tries of smaller ones."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...inputs.history import CheckRequest
from ...model.allowance import LAST_RESORT, NOTHING, Allowance
from ...model.case import Case
from ...model.failures import Failure, Refusal, TargetFailure, UsageFailure
from ...model.report import Report
from ...pipeline.fit import fitted
from ...pipeline.reported import report_of
from ...pipeline.resolve import resolve_problem
from ...pipeline.run_check import run_check
from ...probing.experiment import Experiment, experiment_of, inputs_of, layouts_of
from ...probing.runs import runs_of
from ...processes import Crash, run_each
from ...render.console import first_line
from ...runtime.backend import choose_threads, make_interpreter_right
from .ordering import settled
from .program import Script, no_program, program_of
from .repeat import Facts, fewest_words
from .simpler_cases import Simplification
from .symptom import CRASH, Symptom, TriedCase, plain_symptom, symptom_of

if TYPE_CHECKING:
    from ...numerics.evidence import Probed
    from ...pipeline.resolve import Problem

FACTORY = "gradprobe.commands.shrink.case_worker:ShrinkWorker"
FACTS, LOOK, TRY, TRY_IN_FULL, TELL = "facts", "look", "try", "try in full", "tell"


@dataclass(frozen=True)
class Order:
    """What a trial is to do, and with which case options, as words of the command line."""

    what: str
    """FACTS, LOOK, TRY, TRY_IN_FULL or TELL."""
    options: Mapping[str, Any]
    edits: Allowance = NOTHING
    """Of the target, that are tried."""
    scripted: bool = True
    """Whether what shows the fault without gradprobe is made too."""
    fits: bool = True
    """Whether what else the target may take is found out first, which runs the case that was asked for."""


@dataclass(frozen=True)
class CaseCheck:
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
class LastCheck:
    """The last look at the shrunken case."""

    symptom: Symptom | None
    report: Report
    first_line: str
    """The greppable line; "" where it matches."""
    program: Script | None
    """What shows the fault without gradprobe."""
    no_program: str
    """Why there is none."""


class ShrinkWorker:
    """`ShrinkWorker(asked)(order)`: the target is imported once for all quick tries."""

    def __init__(self, request: CheckRequest) -> None:
        import torch  # noqa: F401 - outside the timeout of any order

        self._asked, self._fits = request, True

    def __call__(self, order: Order) -> Facts | CaseCheck | TriedCase | LastCheck:
        self._fits = order.fits
        if order.what == FACTS:
            return self._facts()
        if order.what == LOOK:
            return _looked(self._probed(order))
        return self._tell_step(order) if order.what == TELL else self._tried_case(order)

    @functools.cached_property
    def _problem(self) -> Problem:
        with contextlib.redirect_stdout(sys.stderr):
            problem = resolve_problem(self._asked)
            return fitted(problem).problem if self._fits else problem

    def _facts(self) -> Facts:
        case, target = self._problem.case, self._problem.target
        tensors = tuple(inputs_of(self._experiment(case), ()).tensors)
        return Facts(settled(case), "bias" in target.takes, target.packs, tensors)

    def _experiment(self, case: Case) -> Experiment:
        return experiment_of(case, self._problem.target, self._problem.reference)

    def _case(self, order: Order) -> Case:
        """The case of an order, with what the backend needs for it made ready."""
        target = self._problem.target
        case = Facts(self._problem.case, "bias" in target.takes, target.packs, ()).resolved(order.options)
        make_interpreter_right(case)
        choose_threads(case)
        return case

    def _tried_case(self, order: Order) -> TriedCase:
        try:
            return TriedCase(self._tried(order) if order.what == TRY else symptom_of(self._probed(order)))
        except Failure as failure:
            return TriedCase(None, str(failure), isinstance(failure, UsageFailure))

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

    def _probed(self, order: Order) -> Probed:
        request = replace(self._asked, options=order.options)
        return run_check(request, request.command(), budget=lambda: order.edits)

    def _tell_step(self, order: Order) -> LastCheck:
        probed = self._probed(order)
        report, case, target = report_of(probed), self._case(order), self._problem.target
        why = no_program(probed, case, target) if order.scripted else "none is asked for"
        program = None if why else program_of(probed, case, target, self._experiment(case))
        why = why or ("" if program else "the error is too small for a plain comparison")
        return LastCheck(symptom_of(probed), report, first_line(report), program, why)


def _looked(report: Probed) -> CaseCheck:
    own = [run for run in report.runs if run.layout.partition(", ")[0] == run.layout]
    plain = plain_symptom(own, report.case.heads)
    first = plain[0] if plain else report.failing[0] if report.failing else None
    alone = first is not None and (first in own or first.assigned in layouts_of(report.case))
    run = first.assigned if first and alone else None
    return CaseCheck(symptom_of(report), plain[1] if plain else None, run, report_of(report))


CRASHED = Symptom(CRASH, CRASH)


class TargetCrashed(TargetFailure):
    """The process that ran the target crashed or timed out, where a crash is not a way to fail."""


@dataclass
class Attempts:
    """Tries cases of one target, none of them twice, and no more than were allowed."""

    request: CheckRequest
    alone: bool
    """Whether each order is carried out in a process that may crash."""
    timeout: float | None
    most: int
    """How many tries there may be."""
    echo: Callable[[str], object]
    fix_budget: int = 0
    """How many edits of the target are tried on the last case."""
    scripted: bool = True
    """Whether what shows the fault without gradprobe is made of the last case."""
    fits: bool = True
    """Whether what else the target may take is found out before each order; not where that crashes it."""
    count: int = 0
    known: dict[Case, TriedCase] = field(default_factory=dict)
    _trial: ShrinkWorker | None = None

    @property
    def is_over(self) -> bool:
        """Whether no more cases may be tried."""
        return self.count >= self.most

    def ask(self, what: str, options: Mapping[str, Any]) -> Any:
        """Carries out one order, of any kind.

        Raises:
            Failure: from the trial; where the process that ran it died, TargetCrashed.
        """
        # A third of the time for one case at most is for edits.
        edits = Allowance(self.fix_budget, LAST_RESORT if self.timeout is None else self.timeout / 3)
        order = Order(what, options, edits if what == TELL else NOTHING, self.scripted, self.fits)
        (result,) = self._carried_out([order])
        if isinstance(result, Crash):
            raise TargetCrashed(f"target {self.request.target!r} crashed: {result.words}")
        return result

    def outcomes(
        self, steps: Sequence[Simplification], facts: Facts, kept: Mapping[str, Any], wanted: Symptom, *, in_full: bool
    ) -> Iterator[tuple[Simplification, TriedCase]]:
        """The outcome of each step, in order. A case seen before takes no try; once `is_over` none is made.

        Args:
            kept: words that stand in each case.
            in_full: whether the symptom shows only in a whole check, with second runs and a look inside.
        """
        named = [(step, fewest_words(step.case, facts, kept)) for step in steps]
        left = [(step, words) for step, words in named if words is not None]
        fresh = [(step, words) for step, words in left if step.case not in self.known]
        what = TRY_IN_FULL if in_full else TRY
        results = self._carried_out(
            [Order(what, words, fits=self.fits) for _, words in fresh[: max(0, self.most - self.count)]]
        )
        for step, words in left:
            if step.case not in self.known:
                result = None if self.is_over else next(results, None)
                if result is None:
                    return
                self.count += 1
                self.known[step.case] = self._named(_as_seen(result), words, wanted, in_full=in_full)
            yield step, self.known[step.case]

    def _named(self, seen: TriedCase, words: Mapping[str, Any], wanted: Symptom, *, in_full: bool) -> TriedCase:
        """The outcome; with its cause where all but the cause is as wanted, and a cause is wanted."""
        like = seen.symptom is not None and seen.symptom.is_like(wanted)
        if not like or wanted.fault is None or in_full or seen.symptom is None:
            return seen
        whole = _as_seen(next(self._carried_out([Order(TRY_IN_FULL, words, fits=self.fits)])))
        fault, alike = (whole.symptom.fault, whole.symptom.alike) if whole.symptom else (None, ())
        return TriedCase(replace(seen.symptom, fault=fault, alike=alike))

    def _carried_out(self, orders: Sequence[Order]) -> Iterator[Any]:
        if not self.alone:
            self._trial = self._trial or ShrinkWorker(self.request)
            yield from map(self._trial, orders)
            return
        for ended in run_each(FACTORY, self.request, orders, timeout=self.timeout, echo=self.echo) if orders else ():
            if ended.raised is not None:
                raise ended.raised.failure
            yield ended.crash or ended.result


def _as_seen(result: Any) -> TriedCase:
    if isinstance(result, Crash):
        return TriedCase(CRASHED)
    assert isinstance(result, TriedCase)
    return result
