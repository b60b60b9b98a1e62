"""Sweep: its cases in the order in which they are made, those of them that a journal holds, and those that are left."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ...inputs.history import CheckRequest
from ...model.failures import UsageFailure
from ...model.report import Report
from .battery import Item, hinted, weighed
from .checked import INTERRUPTED, CheckOutcome, PlannedCheck, code_of_report
from .drawing import BATCH, beyond, case_of, cost, drawn_in_order, title_of, worth_first
from .journal import Journal, SweepRequest
from .matrix import Takes, combinations, suiting, titles

T = TypeVar("T")
Make = Callable[[Sequence[PlannedCheck]], Iterator[CheckOutcome]]
# Of what is no target's own: a case of either family is about as expensive.
_ANY = tuple(Takes(family, frozenset(), frozenset()) for family in ("softmax", "lazy"))


@dataclass
class Sweep:
    """The cases of a sweep."""

    planned: list[PlannedCheck] = field(default_factory=list)
    """In the order in which they are made; of a sweep that lasts so many minutes more are added while it does."""
    numbers: list[int] = field(default_factory=list)
    """The place of each in the table."""
    costs: list[float] = field(default_factory=list)
    """Of each, as `drawing.cost` has it."""
    beyond: dict[int, str] = field(default_factory=dict)
    """By number, what a drawn case asks for that no parameter of the target says that it takes."""
    more: Iterator[PlannedCheck] = field(default_factory=lambda: iter(()))
    """What is added, without end."""
    titles: list[str] = field(default_factory=list)
    """Of those of a sample that is added first."""
    seconds: float = 0.0
    """How long that goes on."""

    def add(self, planned: PlannedCheck, number: int, cost: float) -> None:
        """Plans one more."""
        self.planned.append(planned)
        self.numbers.append(number)
        self.costs.append(cost)

    def results(
        self, journal: Journal, make: Make, ahead: int, tell: Callable[[str, float], object]
    ) -> Iterator[CheckOutcome]:
        """Each check in the order of the plan, also those that the journal holds; the others into it as they come.

        Args:
            make: makes those that are left, in any order; their plan may grow.
            ahead: how many are planned before they are made, of a sweep that lasts so many minutes.
            tell: told how many are made, and the share of all.

        Raises:
            UsageFailure: the journal holds other cases.
            KeyboardInterrupt: Ctrl-C, after all that came.
        """
        return _in_order(self._arriving(journal, make, ahead, tell))

    def _arriving(
        self, journal: Journal, make: Make, ahead: int, tell: Callable[[str, float], object]
    ) -> Iterator[tuple[int, CheckOutcome]]:
        until = time.monotonic() + self.seconds - spent(journal.reports, ahead // 2)
        kept = {report.number: report for report in journal.reports}
        for planned in itertools.islice(self.more, max(kept, default=-1) + 1 + ahead):
            self.add(planned, len(self.planned), 1.0)
        done, left = list[int](), list[int]()
        for at, (planned, number) in enumerate(zip(self.planned, self.numbers, strict=True)):
            if number not in kept:
                left.append(at)
                continue
            done.append(at)
            yield at, _from_journal(planned, kept[number])
        plan = [self.planned[at] for at in left]
        for made in make(plan):
            at = left[made.report.number]
            checked = made.numbered(self.numbers[at])
            if not is_partial(checked):
                journal.add(checked.report)
            done.append(at)
            goal = "" if self.seconds else f" of {len(self.planned)}"
            tell(f"{len(done)}{goal} made", self._share(done, until))
            yield at, checked
            for planned in itertools.islice(self.more, int(time.monotonic() < until)):
                left.append(len(self.planned))
                plan.append(planned)
                self.add(planned, len(self.planned), 1.0)

    def _share(self, done: Sequence[int], until: float) -> float:
        """How much is done, by what cases cost, or of the time that there is."""
        if self.seconds:
            return min(1.0, 1.0 - (until - time.monotonic()) / self.seconds)
        return sum(self.costs[at] for at in done) / sum(self.costs)

    def weigh(self, checked: CheckOutcome) -> CheckOutcome:
        """The check; a drawn one that fails by accident, where nothing says that the target takes it, as a warning."""
        asked = self.beyond.get(checked.report.number, "")
        if not asked or checked.request.options.get("strict"):
            return checked
        item = Item(checked.report.number, checked.title, {}, "", asked)
        return hinted(weighed(checked, item, lambda options: checked), item)


def spent(reports: Sequence[Report], workers: int) -> float:
    """About how many seconds a sweep has lasted that came to these."""
    return sum(report.seconds.get("total", 0.0) for report in reports) / max(1, workers)


def is_partial(checked: CheckOutcome) -> bool:
    """Whether Ctrl-C ended it."""
    error = checked.report.error
    return error is not None and error.kind == INTERRUPTED


def _from_journal(planned: PlannedCheck, report: Report) -> CheckOutcome:
    if report.title != planned.title:
        raise UsageFailure(
            "--resume: the file holds other cases than this command draws", "sweep again, from the beginning"
        )
    return CheckOutcome(planned.request, report, code_of_report(report))


def _in_order(arriving: Iterator[tuple[int, T]]) -> Iterator[T]:
    """Each with the place behind that of the one before it, as soon as that came; those behind a gap at the end."""
    waiting, due = dict[int, T](), 0
    try:
        for at, item in arriving:
            waiting[at] = item
            while due in waiting:
                yield waiting.pop(due)
                due += 1
    except KeyboardInterrupt:
        yield from (waiting[at] for at in sorted(waiting))
        raise
    yield from (waiting[at] for at in sorted(waiting))


def sweep_of(asked: SweepRequest, takes: Sequence[Takes | None]) -> Sweep:
    """The cases that were asked for; those first that show most for what they cost.

    Args:
        takes: what each target takes; None of one that cannot be imported, which is asked once, and says why.

    Raises:
        UsageFailure: there are too many of them, or none.
    """
    sweep, several = Sweep(), len(asked.requests) > 1
    for request, taken in zip(asked.requests, takes, strict=True):
        if asked.is_drawn and taken is not None:
            _draw(sweep, asked, request, taken, several=several)
            continue
        matrix = combinations(asked.varied) if asked.varied and not asked.is_drawn else _suiting(taken, request)
        names = titles(matrix)
        cases = [_case({**request.options, **case}, request) for case in matrix]
        first = len(sweep.planned)
        for at in worth_first(cases):
            title = f"{request.target} {names[at]}".rstrip() if several or not names[at] else names[at]
            planned = PlannedCheck(title, replace(request, options={**request.options, **matrix[at]}))
            sweep.add(planned, first + at, cost(cases[at]))
    return sweep


def _suiting(taken: Takes | None, request: CheckRequest) -> list[dict[str, Any]]:
    return suiting(taken, request.options) if taken else [{}]


def _case(options: Mapping[str, Any], request: CheckRequest) -> Any:
    if "inputs" in options:
        return None
    families = [one for one in _ANY if request.family in (None, one.family)]
    return next((case for one in families if (case := case_of(options, one)) is not None), None)


def _draw(sweep: Sweep, asked: SweepRequest, request: CheckRequest, taken: Takes, *, several: bool) -> None:
    """Adds cases that are drawn for a target, black boxes not looked into: at the end the simplest that fails is."""
    fixed = {name: [word] for name, word in request.options.items() if name != "seed"}
    given = {"recover": [False], **fixed, **asked.varied}
    seed = request.options.get("seed", 0)

    def planned() -> Iterator[PlannedCheck]:
        for number, options in enumerate(drawn_in_order(taken, given, seed), len(sweep.planned)):
            title = title_of(options, [*fixed, "recover"])
            sweep.beyond[number] = beyond(options, taken)
            yield PlannedCheck(f"{request.target} {title}" if several else title, replace(request, options=options))

    if asked.minutes is not None:
        stream = planned()
        sample = list(itertools.islice(stream, BATCH))
        sweep.titles = [one.title for one in sample]
        sweep.more, sweep.seconds = itertools.chain(sample, stream), 60.0 * asked.minutes
    else:
        for one in itertools.islice(planned(), asked.draw):
            sweep.add(one, len(sweep.planned), cost(case_of(one.request.options, taken)))
