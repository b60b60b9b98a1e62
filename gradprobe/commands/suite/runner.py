"""Runner: makes the checks of a plan, here or on Ray, keeps each in a journal, and holds what they come to."""

from __future__ import annotations

import sys
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ...model.assignment import SCALED
from ...model.documents import FailureGroup, RefusedCase, Reports, read_reports
from ...model.failures import TargetFailure, UsageFailure, did_you_mean
from ...model.layout_run import FAILED, MATCH, MISMATCH
from ...model.memory_finding import HUGE, UNDECLARED
from ...model.report import Report
from .check_table import simplest, words_of
from .checking import Setting, check_each
from .fold import folded_by_cause, with_smallest
from .journal import Journal
from .outcome import INTERRUPTED, CheckOutcome
from .plan import Plan, PlannedCheck

if TYPE_CHECKING:
    from .on_ray import RayCluster

# The same target, run otherwise: the word for it, and the device that it runs on then.
_RUN_OTHERWISE = {"interpreted": "cpu", "compiled": "cuda"}
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
        self.groups: tuple[FailureGroup, ...] = ()
        self._refused = 0

    @property
    def expected(self) -> int:
        return len(self.plan.checks) - self._refused - len(self.warned)

    @property
    def so_far(self) -> Reports:
        return Reports(
            reports=tuple(map(attrgetter("report"), (*self.checks, *self.warned))),
            planned=self.expected,
            not_taken=tuple(self.plan.untaken) if self.plan.is_own else None,
            groups=self.groups,
            coverage=self.plan.coverage,
        )

    def outcomes(self, tick: Tick = lambda words, share: None) -> Iterator[CheckOutcome]:
        """Each check that is shown, in the order of the plan, also those that the journal holds. UsageFailure: it holds
        other cases; KeyboardInterrupt: after all that came."""
        waiting, due, interrupt = dict[int, CheckOutcome](), 0, None
        try:
            for at, outcome in self._arriving(tick):
                waiting[at] = outcome
                while due in waiting:
                    yield from self._counted(waiting.pop(due))
                    due += 1
        except KeyboardInterrupt as error:
            interrupt = error
        for at in sorted(waiting):
            yield from self._counted(waiting[at])
        if interrupt:
            raise interrupt

    def _counted(self, outcome: CheckOutcome) -> Iterator[CheckOutcome]:
        if outcome.error_kind == INTERRUPTED and outcome.verdict == FAILED:
            return
        if self.plan.is_own and outcome.is_refused:
            self.plan.untaken.append(RefusedCase(outcome.title, words_of(outcome.report)))
            self._refused += 1
            return
        those = self.warned if outcome.report.is_warning else self.checks
        insort(those, outcome, key=lambda other: other.report.number)
        yield outcome

    def _arriving(self, tick: Tick) -> Iterator[tuple[int, CheckOutcome]]:
        plan, journal, done = self.plan, self._journal, list[PlannedCheck]()
        todo, places = list[PlannedCheck](), list[int]()
        for at, planned in enumerate(plan.checks):
            if journal is not None and (kept := journal.outcome_of(planned, at)) is not None:
                done.append(planned)
                yield at, self._weighed(planned, kept)
            else:
                todo.append(planned)
                places.append(at)
        for made in self._check_each(todo):
            at = places[made.report.number]
            planned = plan.checks[at]
            outcome = made.with_report(number=planned.number_at(at))
            if journal is not None and outcome.error_kind != INTERRUPTED:
                journal.add(outcome.report)
            outcome = self._weighed(planned, outcome)
            todo += (added := plan.add(outcome))
            places += range(len(plan.checks) - len(added), len(plan.checks))
            done.append(planned)
            tick(*plan.progress(done))
            yield at, outcome

    def _check_each(self, todo: list[PlannedCheck]) -> Iterator[CheckOutcome]:
        if self._cluster is None:
            return check_each(todo, self.setting)
        from .on_ray import check_each_on_ray

        return check_each_on_ray(todo, self.setting, self._cluster)

    def _weighed(self, planned: PlannedCheck, outcome: CheckOutcome) -> CheckOutcome:
        """The check; where nobody asked for it by name, what does not count as a warning, or with the way out."""
        if not self.plan.is_own or outcome.verdict == MATCH:
            return outcome
        options, report, why = outcome.request.options, outcome.report, words_of(outcome.report)
        if outcome.verdict == MISMATCH and planned.beyond:
            way = f"not meant to take {planned.beyond}? let it raise a ValueError: a refused case does not count"
            outcome = outcome.with_report(hints=(*report.hints, way))
        if options.get("strict"):
            return outcome
        if options.get("layout") == [f"all={HUGE}"]:
            again = self._again(outcome, {**options, "layout": [f"all={SCALED}"]})
            words = f"right in the same strides when they are small, so an index is held in 32 bits: {why}"
            is_right = again.verdict == MATCH
            return outcome.as_warning(HUGE, words, (HUGE,)) if is_right else outcome
        is_accident = outcome.error_kind == TargetFailure.__name__
        if planned.beyond and is_accident and outcome.verdict == FAILED:
            words = f"given {planned.beyond}, which none of its parameters says: {why}"
            return outcome.as_warning(UNDECLARED, words)
        return outcome

    def _again(self, outcome: CheckOutcome, options: dict[str, Any]) -> CheckOutcome:
        request = replace(outcome.request, options=options)
        (again,) = check_each([PlannedCheck(outcome.title, request)], self.setting)
        return again

    def finish(self, tick: Tick = lambda words, share: None) -> None:
        """Looks closer at the simplest that fails, folds what fails by its cause, and makes a case of each smaller."""
        failing = closer = simplest(self.checks)
        if failing is not None and self.plan.looks_closer:
            tick("the first that fails, once more and in full", None)
            closer = self._looked_into(failing)
        self.fold(closer)
        if failing is not None and closer is not None:
            self.checks[self.checks.index(failing)] = closer
        if self.groups and self.setting.shrink_budget:
            tick("a smaller case for each cause", None)
            requests = {outcome.report.number: outcome.request for outcome in self.checks}
            budget, workers = self.setting.shrink_budget, self.setting.workers
            self.groups = with_smallest(self.groups, requests, budget, workers)

    def fold(self, closer: CheckOutcome | None = None) -> None:
        """Folds what fails, once; `closer` is what a closer look at one of them came to."""
        if not self.groups:
            reports = list(map(attrgetter("report"), self.checks))
            self.groups = folded_by_cause(reports, closer.report if closer else None)

    def _looked_into(self, failing: CheckOutcome) -> CheckOutcome:
        """The check once more with the inside of a black box; as it was where that is no mismatch."""
        is_black_box = any({"P", "dS"} & set(run.absent) for run in failing.report.runs)
        if failing.verdict != MISMATCH or not is_black_box:
            return failing
        options = dict(failing.request.options)
        options.pop("recover", None)
        again = self._again(failing, options)
        hints = tuple(dict.fromkeys((*again.report.hints, *failing.report.hints)))
        again = again.with_report(number=failing.report.number, hints=hints)
        return again if again.verdict == MISMATCH else failing


def report_beside(
    planned: PlannedCheck,
    word: str,
    kept: str,
    setting: Setting,
    function: Callable[..., Any] | None = None,
) -> Report:
    """The report of another target in the case of a check, or of the same one run otherwise. UsageFailure.

    Args:
        word: another target; "interpreted" or "compiled", for the same one in Triton's interpreter or on a GPU; or the
            file of a report.
        kept: the file that what it gives is written into.
        function: what stands in the place of another target.
    """
    from ...targets.builtin import BUILTINS

    if function is None and word.endswith(".json"):
        several = read_reports(word).reports
        if len(several) != 1:
            words = f"expected the report of one check, got {len(several)}"
            raise UsageFailure(f"--against {word}: {words}")
        return several[0]
    request, (own, reference) = planned.request, planned.functions
    if function is None and word in _RUN_OTHERWISE:
        if not setting.isolate:
            words = f"--against {word}: one process cannot do both"
            raise UsageFailure(words, "drop --no-isolate")
        other = replace(request, options={**request.options, "device": _RUN_OTHERWISE[word]})
    else:
        known = [*_RUN_OTHERWISE, *BUILTINS]
        if function is None and ":" not in word and word not in known:
            words = f"--against {word}: there is no such target"
            raise UsageFailure(words, did_you_mean(word, known))
        other, own = replace(request, target=word), function
    if (other, (own, reference)) == (request, planned.functions):
        raise UsageFailure(f"--against {word}: this is the target itself, run in the same way")
    beside = PlannedCheck("", other, kept=kept, functions=(own, reference))
    plain = replace(setting, fix_budget=0, beyond=False)
    (outcome,) = check_each([beside], plain, echo=sys.stderr.write)
    error = outcome.report.error
    if outcome.code == UsageFailure.exit_code and error is not None:
        raise UsageFailure(f"--against {word}: {error.message}", error.way_out)
    return outcome.report
