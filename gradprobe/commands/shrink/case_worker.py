"""The worker that tries cases: the facts of a target, a case looked at in full, and quick tries of smaller ones."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...inputs.history import CheckRequest
from ...model.allowance import LAST_RESORT, NOTHING, Allowance, Client
from ...model.case import Case
from ...model.failures import Failure, Refusal, TargetFailure, UsageFailure
from ...model.report import Report
from ...pipeline.fit import fit, tried
from ...pipeline.reported import report_of
from ...pipeline.resolve import resolve_problem
from ...pipeline.run_check import run_check
from ...probing.experiment import Experiment, experiment_of, inputs_of, layouts_of
from ...probing.runs import records_of
from ...processes import Crash, run_each
from ...runtime.backend import choose_threads, make_interpreter_right
from .program import Script, no_program, program_of
from .repeat import Facts, fewest_words
from .simpler_cases import Simplification, settled
from .symptom import CRASHED, Symptom, TriedCase, plain_symptom, symptom_of

if TYPE_CHECKING:
    from ...numerics.evidence import ProbeResult
    from ...pipeline.resolve import Problem

FACTORY = f"{__name__}:ShrinkWorker"
FACTS, LOOK, TRY, TRY_IN_FULL = "facts", "look", "try", "try in full"


@dataclass(frozen=True)
class Order:
    """What a trial is to do, and with which case options, as words of the command line."""

    what: str
    """FACTS, LOOK, TRY or TRY_IN_FULL."""
    options: Mapping[str, Any]
    fits: bool = True
    """Whether what else the target may take is found out first, which runs the case that was asked for."""
    edits: Allowance = NOTHING
    """Of the target, that are tried."""
    scripted: bool = False
    """Whether what shows the fault without gradprobe is made too."""


@dataclass(frozen=True)
class CaseCheck:
    """A case looked at as `gradprobe check` does."""

    symptom: Symptom | None
    """None where it matches."""
    plain: Symptom | None
    """What a quick try would see of it; None where it takes second runs or a look inside."""
    run: tuple[tuple[str, str], ...] | None = None
    """What the first failing run assigns; None where no run of the case itself fails."""
    report: Report | None = None
    """None where the process that looked ended."""
    program: Script | None = None
    """What shows the fault without gradprobe."""
    no_program: str = ""
    """Why there is none."""


class ShrinkWorker:
    """`ShrinkWorker(asked)(order)`: the target is imported once for all quick tries."""

    def __init__(self, request: CheckRequest) -> None:
        import torch  # noqa: F401 - outside the timeout of any order

        self._asked, self._fits = request, True

    def __call__(self, order: Order) -> Facts | CaseCheck | TriedCase:
        self._fits = order.fits
        if order.what == FACTS:
            case, target = self._problem.case, self._problem.target
            tensors = tuple(inputs_of(self._experiment(case), ()).tensors)
            return Facts(settled(case), "bias" in target.takes, target.packs, tensors)
        if order.what == LOOK:
            return self._looked(order)
        try:
            return TriedCase(
                self._tried(order) if order.what == TRY else symptom_of(self._probed(order))
            )
        except Failure as failure:
            return TriedCase(None, str(failure), isinstance(failure, UsageFailure))

    @functools.cached_property
    def _problem(self) -> Problem:
        with contextlib.redirect_stdout(sys.stderr):
            problem = resolve_problem(self._asked)
            found = fit(tried(problem, {})) if self._fits else None
            return problem if found is None else found.problem

    def _experiment(self, case: Case) -> Experiment:
        return experiment_of(case, self._problem.target, self._problem.reference)

    def _case(self, order: Order) -> Case:
        """The case of an order, with what the backend needs for it made ready."""
        target = self._problem.target
        case = Facts(self._problem.case, "bias" in target.takes, target.packs, ()).resolved(
            order.options
        )
        make_interpreter_right(case)
        choose_threads(case)
        return case

    def _tried(self, order: Order) -> Symptom | None:
        """What the runs of a case show by themselves: no second runs, no look inside.

        Raises:
            Failure: the target does not take the case, or could not be run.
        """
        case = self._case(order)
        with contextlib.redirect_stdout(sys.stderr):
            runs = [record.run for record in records_of(self._experiment(case))]
        if not any(run.measured for run in runs):
            raise Refusal("; ".join(run.skipped or "" for run in runs))
        found = plain_symptom(runs, case.heads)
        return found[1] if found else None

    def _probed(self, order: Order) -> ProbeResult:
        request = replace(self._asked, options=order.options)
        return run_check(request, request.command(), client=Client(budget=lambda: order.edits))

    def _looked(self, order: Order) -> CaseCheck:
        probed = self._probed(order)
        own = [run for run in probed.runs if ", " not in run.layout]
        found = plain_symptom(own, probed.case.heads)
        first = found[0] if found else probed.failing[0] if probed.failing else None
        run = None
        if first is not None and (first in own or first.assigned in layouts_of(probed.case)):
            run = first.assigned
        looked = CaseCheck(
            symptom_of(probed), found[1] if found else None, run, report_of(probed)
        )
        if not order.scripted:
            return looked
        case, target = self._case(order), self._problem.target
        if why := no_program(probed, case, target):
            return replace(looked, no_program=why)
        program = program_of(probed, case, target, self._experiment(case))
        return replace(looked, program=program, no_program="" if program else _TOO_SMALL)


_TOO_SMALL = "the error is too small for a plain comparison"


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
    fits: bool = True
    """Whether what else the target may take is found out before each order; not where that crashes it."""
    count: int = 0
    known: dict[Case, TriedCase] = field(default_factory=dict)
    _trial: ShrinkWorker | None = None

    @property
    def is_over(self) -> bool:
        """Whether no more cases may be tried."""
        return self.count >= self.most

    def facts(self, options: Mapping[str, Any]) -> Facts:
        """What cases of the target are made of. A crash on the case asked for leaves the target as it was named.

        Raises:
            Failure: whatever keeps it from being run.
        """
        facts: Facts
        try:
            facts = self._asked(Order(FACTS, options))
        except TargetCrashed:
            self.fits = False
            facts = self._asked(Order(FACTS, options, fits=False))
        return facts

    def look(
        self, options: Mapping[str, Any], fix_budget: int = 0, *, scripted: bool = False
    ) -> CaseCheck:
        """A case in a whole check.

        Args:
            fix_budget: how many edits of the target are tried, in a third of the time for one case at most.

        Raises:
            Failure: from the trial; where the process that ran it died, TargetCrashed.
        """
        seconds = LAST_RESORT if self.timeout is None else self.timeout / 3
        edits = Allowance(fix_budget, seconds) if fix_budget else NOTHING
        looked: CaseCheck = self._asked(Order(LOOK, options, self.fits, edits, scripted))
        return looked

    def _asked(self, order: Order) -> Any:
        (result,) = self._carried_out([order])
        if isinstance(result, Crash):
            raise TargetCrashed(f"target {self.request.target!r} crashed: {result.words}")
        return result

    def outcomes(
        self,
        steps: Sequence[Simplification],
        facts: Facts,
        kept: Mapping[str, Any],
        wanted: Symptom,
        *,
        in_full: bool,
    ) -> Iterator[tuple[Simplification, TriedCase]]:
        """The outcome of each step, in order. A case seen before takes no try; once `is_over` none is made.

        Args:
            kept: words that stand in each case.
            in_full: whether the symptom shows only in a whole check, with second runs and a look inside.
        """
        words = {step.case: fewest_words(step.case, facts, kept) for step in steps}
        what = TRY_IN_FULL if in_full else TRY
        orders = []
        for case, options in words.items():
            if options is not None and case not in self.known:
                orders.append(Order(what, options, self.fits))
        results = self._carried_out(orders[: max(0, self.most - self.count)])
        for step in steps:
            options = words[step.case]
            if options is None:
                continue
            if step.case not in self.known:
                result = None if self.is_over else next(results, None)
                if result is None:
                    return
                self.count += 1
                self.known[step.case] = self._named(
                    _as_seen(result), options, wanted, in_full=in_full
                )
            yield step, self.known[step.case]

    def _named(
        self, seen: TriedCase, options: Mapping[str, Any], wanted: Symptom, *, in_full: bool
    ) -> TriedCase:
        """The outcome; with its cause where all but the cause is as wanted, and a cause is wanted."""
        symptom = seen.symptom
        if symptom is None or not symptom.is_like(wanted) or wanted.fault is None or in_full:
            return seen
        whole = _as_seen(
            next(self._carried_out([Order(TRY_IN_FULL, options, self.fits)]))
        ).symptom
        fault, alike = (whole.fault, whole.alike) if whole else (None, ())
        return TriedCase(replace(symptom, fault=fault, alike=alike))

    def _carried_out(self, orders: Sequence[Order]) -> Iterator[Any]:
        if not self.alone:
            self._trial = self._trial or ShrinkWorker(self.request)
            yield from map(self._trial, orders)
            return
        for ended in (
            run_each(FACTORY, self.request, orders, timeout=self.timeout, echo=self.echo)
            if orders
            else ()
        ):
            if ended.raised is not None:
                raise ended.raised.failure
            yield ended.crash or ended.result


def _as_seen(result: Any) -> TriedCase:
    if isinstance(result, Crash):
        return TriedCase(CRASHED)
    assert isinstance(result, TriedCase)
    return result
