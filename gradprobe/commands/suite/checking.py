"""PlannedCheck -> CheckOutcome, in processes of their own."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ...inputs.history import CheckRequest, digest_of
from ...model.allowance import LAST_RESORT, Allowance, Client
from ...model.layout_run import MISMATCH
from ...pipeline.run_check import run_check
from ...processes import TaskResult, run_each, run_here, tell
from ...processes.ended import DEVICE, is_edited
from ...processes.resource_limits import VISIBLE, setting_environment
from ...targets.naming import edited_modules
from .outcome import (
    INTERRUPTED,
    CheckMessages,
    CheckOutcome,
    Stage,
    of_crash,
    of_error,
    of_interrupt,
)
from .plan import PlannedCheck

if TYPE_CHECKING:
    from ...model.layout_run import CloseUp
    from ...model.report import Report
    from ...numerics.evidence import ProbeResult

# Seconds between two words of how far one stage is: a comparison has hundreds.
_BETWEEN = 0.1
FACTORY = f"{__name__}:Checker"
Echo = Callable[[str], object]


@dataclass(frozen=True)
class Setting:
    """What the process that shows the results says to those that make them."""

    tracebacks: bool = False
    workers: int = 1
    isolate: bool = True
    timeout: float | None = None
    """Seconds for one check, not counting the imports of the tool; None for no limit."""
    fix_budget: int = 0
    shrink_budget: int = 0
    """How many cases are tried to make the simplest that fails of each cause smaller."""
    beyond: bool = False
    """Whether a target that matches is run on small second cases too."""
    checker: str = FACTORY

    def allowance_at(self, seconds: float) -> Allowance:
        """The edits that a check which has run so long may go on to try, in a third of the time that it has left."""
        left = {} if self.timeout is None else {"seconds": max(0.0, self.timeout - seconds) / 3}
        return Allowance(self.fix_budget, **left)


class Checker:
    """`Checker(setting)(planned)` makes a check. What takes long to import is imported first, outside any timeout."""

    def __init__(self, setting: Setting) -> None:
        import torch

        from ...pipeline import probe  # noqa: F401

        self._setting, self._before = setting, frozenset(sys.modules)
        if setting.workers > 1:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // setting.workers))

    def __call__(self, planned: PlannedCheck) -> CheckOutcome:
        heard, start = CheckMessages(), time.perf_counter()
        due = start

        def say(value: Stage | Report) -> None:
            heard.take(value)
            tell(value)

        def tick(words: str, fraction: float, layout: str = "") -> None:
            nonlocal due
            now, last = time.perf_counter(), heard.stage
            is_other = last is None or (last.words, last.layout) != (words, layout)
            if is_other or now > due:
                due = now + _BETWEEN
                say(Stage(words, fraction, layout))

        def allowance() -> Allowance:
            return self._setting.allowance_at(time.perf_counter() - start)

        try:
            outcome = self._check(planned, Client(tick, say, allowance))
        except BaseException as error:
            if not (self._setting.isolate or isinstance(error, Exception)):
                raise  # by who sits before this process
            stack = traceback.format_exc() if self._setting.tracebacks else ""
            outcome = of_error(planned, error, heard, time.perf_counter() - start, stack)
        return outcome.with_report(sources=self._sources(planned, outcome.report))

    def _sources(self, planned: PlannedCheck, report: Report) -> dict[str, str]:
        return sources_of(report, planned.request, self._before)

    def _check(self, planned: PlannedCheck, client: Client) -> CheckOutcome:
        from ...model.report import SecondCheck
        from ...numerics.repeats import SideBySide
        from ...pipeline.reported import report_of

        other, (target, reference) = planned.against, planned.functions
        theirs = (other.kept, other.report.case) if other else ()
        beside = SideBySide(planned.kept, *theirs) if other or planned.kept else None

        def pass_on(so_far: ProbeResult) -> None:
            client.told(report_of(so_far))
            if beside is not None:
                beside.take(so_far.case, so_far.runs)

        # What is set beside another, or kept whole, is of the case that was asked for.
        is_plain = not (planned.close_up or planned.kept or other)
        probed = run_check(
            planned.request,
            planned.repro_command,
            target=target,
            reference=reference,
            client=replace(client, told=pass_on),
            beyond=self._setting.beyond and is_plain,
        )
        more: dict[str, Any] = {"title": planned.title, "chosen": planned.chosen}
        shown: Iterable[CloseUp] = ()
        if planned.close_up or probed.failing:
            from ...numerics.locate import close_up_of, kept_close_ups

            shown = kept_close_ups(probed)
            if planned.close_up is not None:
                more["close_up"] = close_up_of(probed, *planned.close_up)
        if other is not None and beside is not None:
            found = tuple(beside.differences)
            more["against"] = SecondCheck(
                name=other.name, report=other.report, differences=found
            )
        report = structs.replace(report_of(probed, shown), **more)
        request = replace(planned.request, options={**planned.request.options, **probed.added})
        return CheckOutcome(request, report)


# What is compiled, and may be included by what is.
_COMPILED = {".cu", ".cuh", ".h", ".hpp", ".c", ".cc", ".cpp", ".hip"}
# Of this process: what a file held when it was first seen is what was imported of it.
_first_seen: dict[str, str] = {}


def sources_of(report: Report, request: CheckRequest, before: Collection[str]) -> dict[str, str]:
    """By file the hash of its bytes: the target, its kernels, the reference and the inputs, and all that they import.

    Modules that are installed, Python's and this tool's are left out: their versions stand in the report's environment.
    Every source that is compiled and stands beside a module counts. Of modules that were here before any target only
    those to which the target leads do.
    """
    # The target's own file is read anew for each check: what ran of it is what was hashed then.
    ran = {report.target.file: report.target.sha256}
    ran |= {kernel.file: kernel.sha256 for kernel in report.target.kernels}
    ran.pop("", None)
    words = [request.target, request.reference or ""]
    words += [str(request.options.get(name, "")) for name in ("shards", "inputs")]
    places = [word if os.path.isfile(word) else word.rpartition(":")[0] for word in words]
    files, leading = set(map(os.path.abspath, filter(os.path.isfile, places))), list[str]()
    roots = files | ran.keys()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name not in before and os.path.isabs(file) and is_edited(file):
            files.add(file)
        if file in roots:
            leading.append(name)
    files |= edited_modules(leading).keys()
    for folder in {Path(file).parent for file in files | ran.keys()}:
        with contextlib.suppress(OSError):
            files |= {str(file) for file in folder.iterdir() if file.suffix in _COMPILED}
    seen = {file: _first_seen.setdefault(file, digest_of(file)) for file in files - {""}}
    return dict(sorted((seen | ran).items()))


def check_each(
    planned: Sequence[PlannedCheck],
    setting: Setting,
    *,
    echo: Echo | None = None,
    tick: Callable[[str, float, str], object] = lambda stage, fraction, layout: None,
    told: Callable[[Report], object] = lambda so_far: None,
) -> Generator[CheckOutcome, None, None]:
    """Each check as it is made, also one that crashes or hangs; with one worker in the order of the plan.

    Checks of one target on one device share a process: what a module does to torch at its import, and whether Triton
    interprets, holds for a process as a whole.

    Args:
        planned: where all share a process, a list that may grow behind its end whenever a check was yielded.
        echo: told what targets print, from another thread.
        told: given the report of the layouts that are measured so far, after each.

    Raises:
        Failure: no process can be started at all.
        KeyboardInterrupt: Ctrl-C, after the checks of which a layout was measured by then.
    """
    by_process = groupby(planned, attrgetter("shared"))
    groups: list[Sequence[PlannedCheck]] = [list(group) for _, group in by_process]
    run: Callable[..., Iterator[TaskResult]] = run_each if setting.isolate else run_here
    apart = {"timeout": setting.timeout, "workers": setting.workers, "echo": echo}
    first, how = 0, apart if setting.isolate else {}
    for plans in groups if len(groups) > 1 else [planned]:
        heard, done = defaultdict[int, CheckMessages](CheckMessages), set[int]()

        def take(index: int, value: Any, heard: Any = heard) -> None:
            heard[index].take(value)
            if isinstance(value, Stage):
                tick(value.words, value.fraction, value.layout)
            else:
                told(value)

        try:
            for ended in run(setting.checker, setting, plans, told=take, **how):
                done.add(ended.index)
                outcome = _outcome_of(ended, heard[ended.index], setting)
                yield outcome.with_report(number=first + ended.index)
        except KeyboardInterrupt:
            for index in sorted(heard.keys() - done):
                if heard[index].so_far is not None:
                    outcome = of_interrupt(plans[index], heard[index])
                    yield outcome.with_report(number=first + index)
            raise
        first += len(plans)


class Checks:
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


def _outcome_of(ended: TaskResult, heard: CheckMessages, setting: Setting) -> CheckOutcome:
    planned: PlannedCheck = ended.item
    if ended.crash is not None:
        small, layout = None, heard.stage.layout if heard.stage else ""
        if ended.crash.kind == DEVICE:
            small = _report_of_small(planned, setting, layout)
        runs = small.runs if small else ()
        memory = [finding for run in runs for finding in run.memory]
        outcome = of_crash(planned, ended.crash, heard, memory)
    elif ended.raised is not None:
        stack = ended.raised.traceback if setting.tracebacks else ""
        outcome = of_error(planned, ended.raised.failure, heard, 0.0, stack)
    else:
        assert isinstance(ended.result, CheckOutcome)
        outcome = ended.result
    return with_interpreter(planned, outcome, setting)


def with_interpreter(
    planned: PlannedCheck, outcome: CheckOutcome, setting: Setting
) -> CheckOutcome:
    """The check; of kernels that were compiled for a GPU with what a small case in the interpreter shows."""
    report, case = outcome.report, outcome.report.case
    is_asked = setting.fix_budget and setting.isolate and planned.close_up is None
    if report.verdict != MISMATCH or not is_asked or report.target.backend != "triton":
        return outcome
    # Whether or not the GPU was lost in a later layout.
    is_other_error = report.error is not None and report.error.kind != DEVICE
    if case is None or case.device != "cuda" or is_other_error:
        return outcome
    from .interpreted import with_causes_of

    small = _report_of_small(planned, setting)
    return replace(outcome, report=with_causes_of(report, planned, small)) if small else outcome


def _report_of_small(planned: PlannedCheck, setting: Setting, layout: str = "") -> Report | None:
    """That of a small case in the interpreter; None where it cannot be run there."""
    from .interpreted import small_case

    how, again = replace(setting, timeout=None), small_case(planned, layout)
    # A process that a library takes to a GPU could not fork any more.
    with setting_environment({VISIBLE: ""}):
        (ended,) = run_each(FACTORY, how, [again], timeout=LAST_RESORT)
    return ended.result.report if isinstance(ended.result, CheckOutcome) else None
