"""`gradprobe.check`: a request -> a ShownReport, made by a process of its own or, of a function, in this one."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..commands.suite.battery import battery_plan, refuse_battery
from ..commands.suite.checking import Setting, check_each
from ..commands.suite.plan import Counterpart, PlannedCheck
from ..commands.suite.runner import Runner, report_beside
from ..inputs.history import CheckRequest
from ..inputs.options import parse, refuse_unknown_family
from ..inputs.versions import refuse_untested
from ..model.documents import AUTO, Reports
from ..model.failures import Failure, UsageFailure
from ..model.report import Report, failed_report
from ..processes.child import fresh_caches
from ..processes.resource_limits import bounded
from ..targets.definitions import refuse_mistyped
from ..targets.surroundings import ordinary_torch
from .arguments import Subject, requested, word_of_subject
from .case_options import Options
from .shown_report import ShownReport, ShownReports, shown


class CheckOptions(Options, total=False):
    """The options of `gradprobe.check`."""

    reference: Subject | None
    """A reference of your own, given as a target is. It is audited first."""
    family: str | None
    """"softmax" or "lazy"; by default lazy where the target takes tau."""
    isolate: bool | None
    """Whether it runs in a process of its own; by default where target and reference are words."""
    timeout: float | None
    """Seconds after which a process of its own is stopped."""
    fix_budget: int
    """How many edits of a wrong kernel are tried, by default 40; 0 tries none."""
    max_memory: str | None
    """Such as "3G"; by default half of what is free."""
    against: Subject | Report | None
    """Another target, given as one is, a report, the file of one, or "interpreted" or "compiled" for the same target:
    it is judged too, and the report's `against` says where they differ."""
    fresh: bool
    """Whether every cache of compiled kernels is to be empty."""
    shrink_budget: int
    """How many cases a battery tries, by default 60, to make the simplest failing one of each cause smaller."""


# By name, the default of each option that is none of the case.
OWN: dict[str, Any] = {
    "reference": None, "family": None, "isolate": None, "timeout": None, "fix_budget": 40, "max_memory": None,
    "against": None, "fresh": False, "shrink_budget": 60,
}  # fmt: skip


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
    target: Subject, battery: str | bool | None, options: dict[str, Any]
) -> ShownReport | ShownReports:
    """The report of a check, or those of a battery.

    Raises:
        TypeError: as `gradprobe.check`.
        UsageFailure: a word or an option is wrong; whatever else keeps a check from being made stands in its report.
    """
    given = {name: options.pop(name, None) for name in OWN}
    own = {name: OWN[name] if word is None else word for name, word in given.items()}
    reference, other, timeout = own["reference"], own["against"], own["timeout"]
    request = requested(target, reference, own["family"], options, ("battery", *OWN))
    parse(request.options)
    refuse_unknown_family(request.family)
    for word in filter(None, (request.target, request.reference)):
        refuse_mistyped(word)
    apart = own["isolate"]
    if apart is None:
        apart = not any(map(callable, (target, reference, other)))
    _refuse_contradictions(request, other, timeout, battery, apart=apart)
    # Of several checks edits would take the time of each that fails, as on the command line.
    edits = 0 if battery else own["fix_budget"]
    setting = Setting(isolate=apart, timeout=timeout, fix_budget=edits, beyond=not battery)
    try:
        if not request.options.get("untested"):
            refuse_untested()
    except Failure as failure:
        return shown(failed_report(failure, "", request.target))
    caches = fresh_caches() if own["fresh"] else contextlib.nullcontext()
    with bounded(own["max_memory"]), caches:
        if battery:
            word = AUTO if battery is True else battery
            setting = replace(setting, shrink_budget=own["shrink_budget"])
            return ShownReports.of(_battery(word, request, setting))
        functions = (None, None) if apart else (_function(target), _function(reference))
        planned = PlannedCheck("", request, fresh=own["fresh"], functions=functions)
        return shown(report_of_plan(planned, setting, other))


def _refuse_contradictions(
    request: CheckRequest, other: Any, timeout: float | None, battery: Any, *, apart: bool
) -> None:
    """Raises UsageFailure where the check cannot be made as it was asked for."""
    why, way_out = "", ""
    if apart and not (request.target and request.reference != "" and other != ""):
        why = "isolate=True, and another process finds no function of a notebook's cell or of another function"
        way_out = "write it into a file, or leave out isolate=True"
    elif timeout is not None and not apart:
        why, way_out = "timeout stops a process, and this one makes the check", "add isolate=True"
    elif battery and other:
        why, way_out = "battery takes no against", "make two checks"
    elif battery and not apart:
        why, way_out = "a battery runs in processes of its own", "name the target by its word"
    if why:
        raise UsageFailure(f"check: {why}", way_out)


def _battery(word: str, request: CheckRequest, setting: Setting) -> Reports:
    refuse_battery(word, request.options)
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
    surroundings = contextlib.nullcontext if setting.isolate else ordinary_torch
    with tempfile.TemporaryDirectory(prefix="gradprobe-") as folder, surroundings():
        if isinstance(other, Report):
            planned = replace(planned, against=Counterpart(other.name, other, ""))
        elif other is not None:
            kept, function = os.path.join(folder, "given.pt"), _function(other)
            word = word_of_subject(other) or getattr(function, "__name__", "")
            own = None if setting.isolate else function
            report = report_beside(planned, word, kept, setting, own)
            file = kept if os.path.exists(kept) else ""
            planned = replace(planned, against=Counterpart(word, report, file))
        (made,) = check_each([planned], setting, echo=sys.stderr.write)
    error = made.report.error
    if error is not None and error.kind == UsageFailure.__name__:
        raise UsageFailure(error.message, error.way_out)
    return made.report
