"""`gradprobe.check`: a request -> a ShownReport, made by a process of its own or, of a function, in this one."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..commands.suite.battery import battery_plan, refuse_set_by_it, refuse_unknown_battery
from ..commands.suite.checking import Setting, check_each
from ..commands.suite.other_check import report_beside
from ..commands.suite.plan import Counterpart, PlannedCheck
from ..commands.suite.runner import Runner
from ..inputs.history import CheckRequest
from ..inputs.options import parse, refuse_unknown_family
from ..inputs.versions import refuse_untested
from ..model.documents import AUTO, Reports
from ..model.failures import Failure, UsageFailure
from ..model.report import Report, failed_report
from ..processes.child import fresh_caches
from ..processes.resource_limits import bounded
from ..targets.definitions import refuse_mistyped
from .arguments import Subject, word_of_subject
from .shown_report import ShownReport, ShownReports, shown


@dataclass(frozen=True)
class Manner:
    isolate: bool | None
    timeout: float | None
    fix_budget: int
    max_memory: str | None
    against: Subject | Report | None
    fresh: bool
    battery: str | bool | None
    shrink_budget: int


@contextlib.contextmanager
def _way_out_as_note() -> Iterator[None]:
    """Has a traceback end with what to do about a failure, where Python (3.11) prints notes."""
    try:
        yield
    except Failure as failure:
        if failure.way_out and hasattr(failure, "add_note"):
            failure.add_note(failure.way_out)
        raise


@_way_out_as_note()
def checked(
    target: Subject, reference: Subject | None, request: CheckRequest, manner: Manner
) -> ShownReport | ShownReports:
    """The report of a check, or those of a battery; `request` has "" for a function without a word.

    Raises:
        UsageFailure: a word or an option is wrong; whatever else keeps a check from being made stands in its report.
    """
    parse(request.options)
    refuse_unknown_family(request.family)
    for word in filter(None, (request.target, request.reference)):
        refuse_mistyped(word)
    apart = _is_apart(target, reference, request, manner)
    battery = AUTO if manner.battery is True else manner.battery or None
    setting = Setting(
        isolate=apart,
        timeout=manner.timeout,
        # Of several checks it would be the time of each that fails, as on the command line.
        fix_budget=0 if battery else manner.fix_budget,
        shrink_budget=manner.shrink_budget,
        beyond=not battery,
    )
    try:
        if not request.options.get("untested"):
            refuse_untested()
    except Failure as failure:
        return shown(failed_report(failure, "", request.target))
    with bounded(manner.max_memory), fresh_caches() if manner.fresh else contextlib.nullcontext():
        if battery is not None:
            return ShownReports.of(_battery(battery, request, setting))
        functions = (None, None) if apart else (_function(target), _function(reference))
        planned = PlannedCheck("", request, fresh=manner.fresh, functions=functions)
        return shown(report_of_plan(planned, setting, manner.against))


def _is_apart(
    target: Subject, reference: Subject | None, request: CheckRequest, manner: Manner
) -> bool:
    """Whether the check is made by another process. Raises UsageFailure where it cannot be made as it was asked for."""
    is_called = any(map(callable, (target, reference, manner.against)))
    apart = not is_called if manner.isolate is None else manner.isolate
    if apart and not (request.target and request.reference != "" and manner.against != ""):
        words = "isolate=True, and another process finds no function of a notebook's cell or of another function"
        raise UsageFailure(f"check: {words}", "write it into a file, or leave out isolate=True")
    if manner.timeout is not None and not apart:
        words = "check: timeout stops a process, and this one makes the check"
        raise UsageFailure(words, "add isolate=True")
    if manner.battery and manner.against:
        raise UsageFailure("check: battery takes no against", "make two checks")
    if manner.battery and not apart:
        words = "check: a battery runs in processes of its own"
        raise UsageFailure(words, "name the target by its word")
    return apart


def _battery(word: str, request: CheckRequest, setting: Setting) -> Reports:
    refuse_unknown_battery(word)
    refuse_set_by_it(request.options)
    runner = Runner(*battery_plan(word, request, setting))
    for _ in runner.outcomes():
        pass
    runner.finish()
    return runner.so_far


def _function(subject: Subject | None) -> Callable[..., Any] | None:
    return subject if callable(subject) else None


def report_of_plan(
    planned: PlannedCheck, setting: Setting, other: Subject | Report | None
) -> Report:
    """The report of one check, beside another target or report where one is given. Raises its UsageFailure."""
    surroundings = contextlib.nullcontext if setting.isolate else _ordinary_torch
    with tempfile.TemporaryDirectory(prefix="gradprobe-") as folder:
        if isinstance(other, Report):
            planned = replace(planned, against=Counterpart(other.name, other, ""))
        elif other is not None:
            kept, function = os.path.join(folder, "given.pt"), _function(other)
            word = word_of_subject(other) or getattr(function, "__name__", "")
            with surroundings():
                own = None if setting.isolate else function
                report = report_beside(planned, word, kept, setting, own)
            file = kept if os.path.exists(kept) else ""
            planned = replace(planned, against=Counterpart(word, report, file))
        with surroundings():
            (made,) = check_each([planned], setting, echo=sys.stderr.write)
    error = made.report.error
    if error is not None and error.kind == UsageFailure.__name__:
        raise UsageFailure(error.message, error.way_out)
    return made.report


def _ordinary_torch() -> contextlib.AbstractContextManager[None]:
    from ..targets.surroundings import ordinary_torch

    return ordinary_torch()
