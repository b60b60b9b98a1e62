"""Runner: makes the checks of a plan, here or on Ray, keeps each in a journal, and holds what they come to."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from ...model.assignment import SCALED
from ...model.documents import FailureGroup, RefusedCase, Reports
from ...model.failures import TargetFailure
from ...model.layout_run import FAILED, MATCH, MISMATCH
from ...model.memory_finding import HUGE, UNDECLARED, WarningNote
from .check_table import simplest, words_of
from .checking import Setting, check_each
from .fold import folded_by_cause, with_smallest
from .journal import Journal
from .outcome import INTERRUPTED, CheckOutcome
from .plan import Plan, PlannedCheck

if TYPE_CHECKING:
    from .on_ray import RayCluster

Tick = Callable[[str, float | None], object]
"""Told what is done now, and the share of all that is; None where that is not known."""


class Runner:
    """The checks of a plan: `outcomes` makes them, `finish` says what they come to."""

    def __init__(
        self,
        plan: Plan,
        setting: Setting,
        journal: Journal | None = None,
        cluster: RayCluster | None = None,
    ) -> None:
        self.plan, self.setting, self._journal, self._cluster = plan, setting, journal, cluster
        self.checks: list[CheckOutcome] = []
        """Those that count, in the order of their numbers, as the warned."""
        self.warned: list[CheckOutcome] = []
        self._refused = 0
        self._is_over = False
        self.groups: tuple[FailureGroup, ...] = ()

    @property
    def expected(self) -> int:
        """How many there are to be that count."""
        return len(self.plan.checks) - self._refused - len(self.warned)

    @property
    def so_far(self) -> Reports:
        return Reports(
            reports=tuple(outcome.report for outcome in (*self.checks, *self.warned)),
            planned=self.expected,
            not_taken=tuple(self.plan.untaken) if self.plan.is_own else None,
            groups=self.groups,
            coverage=self.plan.coverage,
        )

    def outcomes(self, tick: Tick = lambda words, share: None) -> Iterator[CheckOutcome]:
        """Each check that is shown, in the order of the plan, also those that the journal holds.

        Raises:
            UsageFailure: the journal holds other cases.
            KeyboardInterrupt: Ctrl-C, after all that came.
        """
        for outcome in _in_order(self._arriving(tick)):
            if outcome.verdict == FAILED and outcome.error_kind == INTERRUPTED:
                continue
            if self.plan.is_own and outcome.is_refused:
                self.plan.untaken.append(RefusedCase(outcome.title, words_of(outcome.report)))
                self._refused += 1
                continue
            insort(
                self.warned if outcome.report.is_warning else self.checks, outcome, key=_number
            )
            yield outcome

    def _arriving(self, tick: Tick) -> Iterator[tuple[int, CheckOutcome]]:
        """Each check with its place in the plan, in whatever order they come."""
        plan, kept = self.plan, {}
        if self._journal is not None:
            kept = {report.number: report for report in self._journal.reports}
            plan.begin(self._journal.reports, self.setting.workers)
        done, made = list[PlannedCheck](), list[CheckOutcome]()
        places, todo = list[int](), list[PlannedCheck]()
        for at, planned in enumerate(plan.checks):
            if (report := kept.get(_place(planned, at))) is None:
                places.append(at)
                todo.append(planned)
                continue
            assert self._journal is not None
            outcome = self._journal.outcome_of(planned, report)
            done.append(planned)
            made.append(outcome)
            yield at, self._weighed(planned, outcome)
        for came in self._check_each(todo):
            at, planned = places[came.report.number], todo[came.report.number]
            outcome = came.numbered(_place(planned, at))
            if self._journal is not None and outcome.error_kind != INTERRUPTED:
                self._journal.add(outcome.report)
            outcome = self._weighed(planned, outcome)
            done.append(planned)
            made.append(outcome)
            for another in plan.more(made):
                places.append(len(plan.checks))
                todo.append(another)
                plan.checks.append(another)
            tick(*plan.progress(done))
            yield at, outcome

    def _check_each(self, todo: list[PlannedCheck]) -> Iterator[CheckOutcome]:
        if self._cluster is None:
            return check_each(todo, self.setting, alike=self.plan.alike)
        from .on_ray import check_each_on_ray

        return check_each_on_ray(todo, self.setting, self._cluster)

    def _weighed(self, planned: PlannedCheck, outcome: CheckOutcome) -> CheckOutcome:
        """The check; where nobody asked for it by name, one that does not count as a warning, and of wrong numbers in
        what the target may not be meant to take, with the way out."""
        if not self.plan.is_own or outcome.verdict == MATCH:
            return outcome
        options, report = outcome.request.options, outcome.report
        if outcome.verdict == MISMATCH and planned.beyond:
            way = f"not meant to take {planned.beyond}? let it raise a ValueError: a refused case does not count"
            outcome = replace(outcome, report=structs.replace(report, hints=(*report.hints, way)))
        if options.get("strict"):
            return outcome
        if options.get("layout") == [f"all={HUGE}"]:
            request = replace(outcome.request, options={**options, "layout": [f"all={SCALED}"]})
            (again,) = check_each([PlannedCheck("", request)], self.setting)
            if again.verdict != MATCH:
                return outcome
            words = (
                "right in the same strides when they are small, so an index is held in 32 bits"
            )
            return outcome.as_warning(
                WarningNote(HUGE, outcome.title, f"{words}: {words_of(report)}", (HUGE,))
            )
        if (
            planned.beyond
            and outcome.error_kind == TargetFailure.__name__
            and outcome.verdict == FAILED
        ):
            words = (
                f"given {planned.beyond}, which none of its parameters says: {words_of(report)}"
            )
            return outcome.as_warning(WarningNote(UNDECLARED, outcome.title, words, ()))
        return outcome

    def finish(self, tick: Tick = lambda words, share: None) -> None:
        """Looks closer at the simplest that fails, folds what fails by its cause, and makes a case of each smaller."""
        failing = closer = simplest(self.checks)
        if failing is not None and self.plan.looks_closer:
            tick("the first that fails, once more and in full", None)
            closer = _looked_into(failing, self.setting)
        self.fold(closer)
        if failing is not None and closer is not None:
            self.checks[self.checks.index(failing)] = closer
        if self.groups and self.setting.shrink_budget:
            tick("a smaller case for each cause", None)
            requests = {outcome.report.number: outcome.request for outcome in self.checks}
            self.groups = with_smallest(
                self.groups, requests, self.setting.shrink_budget, self.setting.workers
            )

    def fold(self, closer: CheckOutcome | None = None) -> None:
        """Folds what fails, once.

        Args:
            closer: of the simplest that fails, what a closer look came to.
        """
        if not self._is_over:
            self._is_over = True
            reports = [outcome.report for outcome in self.checks]
            self.groups = folded_by_cause(reports, closer.report if closer else None)


def _place(planned: PlannedCheck, at: int) -> int:
    """The number of a check in the table."""
    return at if planned.number is None else planned.number


def _number(outcome: CheckOutcome) -> int:
    return outcome.report.number


def _in_order(arriving: Iterator[tuple[int, CheckOutcome]]) -> Iterator[CheckOutcome]:
    """Each with the place behind that of the one before it, as soon as that came; those behind a gap at the end."""
    waiting, due = dict[int, CheckOutcome](), 0
    try:
        for at, outcome in arriving:
            waiting[at] = outcome
            while due in waiting:
                yield waiting.pop(due)
                due += 1
    except KeyboardInterrupt:
        yield from (waiting[at] for at in sorted(waiting))
        raise
    yield from (waiting[at] for at in sorted(waiting))


def _looked_into(failing: CheckOutcome, setting: Setting) -> CheckOutcome:
    """The check once more with the inside of a black box; as it was where there is none, or nothing is wrong now."""
    is_black_box = any({"P", "dS"} & set(run.absent) for run in failing.report.runs)
    options = dict(failing.request.options)
    options.pop("recover", None)
    if failing.verdict != MISMATCH or not is_black_box:
        return failing
    planned = PlannedCheck(failing.title, replace(failing.request, options=options))
    (again,) = check_each([planned], setting)
    if again.verdict != MISMATCH:
        return failing
    hints = dict.fromkeys((*again.report.hints, *failing.report.hints))
    report = structs.replace(again.report, number=failing.report.number, hints=tuple(hints))
    return replace(again, report=report)
