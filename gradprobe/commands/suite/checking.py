"""PlannedCheck -> CheckOutcome, in processes of their own; what a check ended early left out is run after it."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ...model.allowance import LAST_RESORT, Allowance, Client
from ...model.layout_run import FAILED, MISMATCH, add_counts
from ...model.mechanisms import note
from ...model.memory_finding import MemoryFinding
from ...pipeline.run_check import run_check
from ...processes import TaskResult, run_each, run_here, tell
from ...processes.ended import DEVICE, TIMEOUT
from ...processes.resource_limits import VISIBLE, setting_environment
from .outcome import (
    INTERRUPTED,
    CheckMessages,
    CheckOutcome,
    Stage,
    of_crash,
    of_error,
    of_interrupt,
    of_raised,
    run_ended,
)
from .plan import PlannedCheck
from .source_hashes import sources_of

if TYPE_CHECKING:
    from ...model.layout_run import Difference
    from ...model.report import Report
    from ...numerics.evidence import ProbeResult
    from ...numerics.repeats import SideBySide

# Seconds between two words of how far one stage is: a comparison has hundreds.
_BETWEEN = 0.1
FACTORY = f"{__name__}:Checker"


@dataclass(frozen=True)
class Setting:
    """What the process that shows the results says to those that make them."""

    tracebacks: bool = False
    workers: int = 1
    """How many share the cores."""
    isolate: bool = True
    """Whether they are processes of their own."""
    timeout: float | None = None
    """Seconds for one check, not counting the imports of the tool; None for no limit."""
    fix_budget: int = 0
    """How many edits of a target that is wrong are tried."""
    shrink_budget: int = 0
    """How many cases are tried, of several checks, to make the simplest that fails of each cause smaller."""
    beyond: bool = False
    """Whether a target that matches is run on small second cases of what its own case does not use."""
    checker: str = FACTORY
    """The class that makes the checks of a plan."""

    def allowance_at(self, seconds: float) -> Allowance:
        """The edits that a check which has run so long may go on to try, in a third of the time that it has left."""
        if self.timeout is None:
            return Allowance(self.fix_budget)
        return Allowance(self.fix_budget, max(0.0, self.timeout - seconds) / 3)


class Checker:
    """`Checker(setting)(planned)` makes a check. What takes long to import is imported first, outside any timeout."""

    def __init__(self, setting: Setting) -> None:
        import torch

        from ...pipeline import probe  # noqa: F401

        self._setting, self._before = setting, frozenset(sys.modules)
        if setting.workers > 1:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // setting.workers))

    def __call__(self, planned: PlannedCheck) -> CheckOutcome:
        from ...numerics.repeats import SideBySide
        from ...pipeline.reported import report_of

        start, heard, other = time.perf_counter(), CheckMessages(), planned.against
        beside: SideBySide | None = None

        def say(value: Stage | Report) -> None:
            heard.take(value)
            tell(value)

        def pass_on(so_far: ProbeResult) -> None:
            say(report_of(so_far))
            if beside is not None:
                beside.take(so_far.case, so_far.runs)

        def allowance() -> Allowance:
            return self._setting.allowance_at(time.perf_counter() - start)

        try:
            if other is not None:
                beside = SideBySide(planned.kept, other.kept, other.report.case)
            elif planned.kept:
                beside = SideBySide(planned.kept)
            client = Client(_Ticks(say), pass_on, allowance)
            probed = probed_as(planned, client, beyond=self._setting.beyond)
            outcome = _outcome_of(planned, probed, beside.differences if beside else ())
        except BaseException as error:
            if not (self._setting.isolate or isinstance(error, Exception)):
                raise  # by who sits before this process
            stack = traceback.format_exc() if self._setting.tracebacks else ""
            outcome = of_error(planned, error, heard, time.perf_counter() - start, stack)
        note("check", time.process_time())
        sources = sources_of(outcome.report, planned.request, self._before)
        return replace(outcome, report=structs.replace(outcome.report, sources=sources))


def _outcome_of(
    planned: PlannedCheck, probed: ProbeResult, differences: Sequence[Difference]
) -> CheckOutcome:
    from ...model.report import SecondCheck
    from ...numerics.locate import close_up_of, kept_close_ups
    from ...pipeline.reported import report_of

    more: dict[str, Any] = {"title": planned.title, "chosen": planned.chosen}
    if planned.close_up is not None:
        more["close_up"] = close_up_of(probed, *planned.close_up)
    if (other := planned.against) is not None:
        more["against"] = SecondCheck(
            name=other.name, report=other.report, differences=tuple(differences)
        )
    report = structs.replace(report_of(probed, kept_close_ups(probed)), **more)
    request = replace(planned.request, options={**planned.request.options, **probed.added})
    return CheckOutcome(request, report)


def probed_as(planned: PlannedCheck, client: Client, *, beyond: bool = False) -> ProbeResult:
    """What a check came to."""
    # What is set beside another, or kept whole, is of the case that was asked for.
    is_plain = not (planned.close_up or planned.kept or planned.against)
    target, reference = planned.functions
    return run_check(
        planned.request,
        planned.repro_command,
        target=target,
        reference=reference,
        client=client,
        beyond=beyond and is_plain,
    )


class _Ticks:
    """Says how far a check is: each stage and layout at once, and of each stage no more than is seen."""

    def __init__(self, say: Callable[[Stage], None]) -> None:
        self._say, self._last, self._at = say, ("", ""), 0.0

    def __call__(self, stage: str, fraction: float, layout: str = "") -> None:
        now = time.monotonic()
        if (stage, layout) != self._last or now - self._at > _BETWEEN:
            self._last, self._at = (stage, layout), now
            self._say(Stage(stage, fraction, layout))


def check_each(
    planned: Sequence[PlannedCheck],
    setting: Setting,
    *,
    echo: Callable[[str], object] | None = None,
    tick: Callable[[str, float, str], object] = lambda stage, fraction, layout: None,
    told: Callable[[Report], object] = lambda so_far: None,
) -> Generator[CheckOutcome, None, None]:
    """Each check as it is made; with one worker in the order of the plan. One that crashes or hangs is one too.

    Checks of one target on one device share a process. Others do not: what a module does to torch at its import, and
    whether Triton interprets, holds for a process as a whole.

    Args:
        planned: where all share a process, a list that may grow behind its end whenever a check was yielded.
        echo: told what targets print, as it comes, from another thread.
        tick: told how far a check is.
        told: given the report of the layouts that are measured so far, after each.

    Raises:
        Failure: no process can be started at all.
        KeyboardInterrupt: Ctrl-C, after the checks of which a layout was measured by then.
    """
    groups: list[Sequence[PlannedCheck]] = [list(group) for _, group in groupby(planned, shares)]
    first = 0
    for plans in groups if len(groups) > 1 else [planned]:
        heard, done = defaultdict[int, CheckMessages](CheckMessages), set[int]()

        def take(index: int, value: Any, heard: Any = heard) -> None:
            heard[index].take(value)
            if isinstance(value, Stage):
                tick(value.words, value.fraction, value.layout)
            else:
                told(value)

        try:
            for ended in _ends(plans, setting, take, echo):
                done.add(ended.index)
                outcome = _ended(ended, heard[ended.index], setting)
                outcome = _with_rest(ended.item, outcome, setting, echo)
                yield with_interpreter(ended.item, outcome, setting).numbered(first + ended.index)
        except KeyboardInterrupt:
            for index in sorted(heard.keys() - done):
                if heard[index].so_far is not None:
                    yield of_interrupt(plans[index], heard[index]).numbered(first + index)
            raise
        first += len(plans)


class Checks:
    """Checks that one process makes, one after another as they are asked for."""

    def __init__(self, setting: Setting) -> None:
        self._planned: list[PlannedCheck] = []
        self._ends = check_each(self._planned, setting)

    def make(self, planned: PlannedCheck) -> CheckOutcome:
        self._planned.append(planned)
        outcome = next(self._ends)
        if outcome.error_kind == INTERRUPTED:
            raise KeyboardInterrupt
        return outcome

    def close(self) -> None:
        self._ends.close()


def _ends(
    plans: Sequence[PlannedCheck],
    setting: Setting,
    take: Callable[[int, Any], None],
    echo: Callable[[str], object] | None,
) -> Iterator[TaskResult]:
    """The ends of checks that share a process; `take` is given what is said of each before."""
    if not setting.isolate:
        return run_here(setting.checker, setting, plans, told=take)
    return run_each(
        setting.checker,
        setting,
        plans,
        told=take,
        timeout=setting.timeout,
        workers=setting.workers,
        echo=echo,
    )


def shares(planned: PlannedCheck) -> tuple[object, ...]:
    """What checks that share a process have in common."""
    request = planned.request
    return request.target, request.reference, request.options.get("device")


def _ended(ended: TaskResult, heard: CheckMessages, setting: Setting) -> CheckOutcome:
    planned: PlannedCheck = ended.item
    if ended.crash is not None:
        layout = heard.stage.layout if heard.stage else ""
        memory = _memory_of_small(planned, layout, setting) if ended.crash.kind == DEVICE else ()
        return of_crash(planned, ended.crash, heard, memory)
    if ended.raised is not None:
        stack = ended.raised.traceback if setting.tracebacks else ""
        return of_raised(planned, ended.raised, heard, stack)
    assert isinstance(ended.result, CheckOutcome)
    return ended.result


def _memory_of_small(
    planned: PlannedCheck, layout: str, setting: Setting
) -> tuple[MemoryFinding, ...]:
    """What a small case in the interpreter does to memory; nothing where it cannot be run there, or is right."""
    from .interpreted import small_case

    small = small_case(planned)
    options = dict(small.request.options)
    if layout:
        options.pop("layout", None)
        options["runs"] = [layout]
    again = replace(small, request=replace(small.request, options=options))
    (ended,) = run_each(FACTORY, setting, [again], timeout=setting.timeout)
    runs = ended.result.report.runs if isinstance(ended.result, CheckOutcome) else ()
    return tuple(finding for run in runs for finding in run.memory)


def _with_rest(
    planned: PlannedCheck,
    outcome: CheckOutcome,
    setting: Setting,
    echo: Callable[[str], object] | None,
    before: PlannedCheck | None = None,
) -> CheckOutcome:
    """The check; where a layout ended it, with those that it had not come to, in processes after it."""
    rest, heard = _rest_of(planned, outcome), CheckMessages()
    if not setting.isolate or rest is None or rest == before:
        return outcome
    (ended,) = _ends([rest], setting, lambda _, value: heard.take(value), echo)
    joined = _joined(outcome, _ended(ended, heard, setting), heard)
    return _with_rest(planned, joined, setting, echo, rest)


def with_interpreter(
    planned: PlannedCheck, outcome: CheckOutcome, setting: Setting
) -> CheckOutcome:
    """The check; of kernels that were compiled for a GPU with what a small case in the interpreter shows."""
    report = outcome.report
    if report.verdict != MISMATCH or not (setting.fix_budget and setting.isolate):
        return outcome
    from .interpreted import is_compiled, small_case, with_causes_of

    if not is_compiled(planned, report):
        return outcome
    # A process that a library takes to a GPU could not fork any more.
    with setting_environment({VISIBLE: ""}):
        (ended,) = run_each(
            FACTORY, replace(setting, timeout=None), [small_case(planned)], timeout=LAST_RESORT
        )
    if isinstance(ended.result, CheckOutcome):
        return replace(outcome, report=with_causes_of(report, planned, ended.result.report))
    return outcome


def _rest_of(planned: PlannedCheck, outcome: CheckOutcome) -> PlannedCheck | None:
    """A check of those layouts; None where there are none, where none was measured, or where one took too long."""
    error, options = outcome.report.error, planned.request.options
    if error is None or error.kind == TIMEOUT or planned.close_up or "layout" in options:
        return None
    # "distinct, the reference" is where the user's reference crashed in `distinct`.
    done = [run.layout.partition(", ")[0] for run in outcome.report.runs]
    if not (done and done[-1]):  # nothing was measured, or nobody knows which layout was run
        return None
    left = [name for name in planned.layouts if name not in done]
    request = replace(planned.request, options={**options, "runs": left})
    return replace(planned, request=request, kept="", against=None) if left else None


def _joined(outcome: CheckOutcome, rest: CheckOutcome, heard: CheckMessages) -> CheckOutcome:
    """A check that a layout ended, with those that were checked after it."""
    first, then = outcome.report, rest.report
    runs = then.runs
    if then.error and not runs:
        runs = (run_ended(then.error, heard.stage.layout if heard.stage else ""),)
    runs = (*first.runs, *runs)
    # What is wrong is shown with its reasons.
    own = then if first.verdict != MISMATCH == then.verdict else first
    total = round(first.seconds["total"] + then.seconds["total"], 4)
    report = structs.replace(
        own,
        error=first.error,
        reproduce=first.reproduce,
        runs=runs,
        seconds={**first.seconds, "total": total},
        verdict=MISMATCH if MISMATCH in (first.verdict, then.verdict) else FAILED,
        compared=add_counts(run.compared for run in runs),
    )
    return replace(outcome, report=report)
