"""`gradprobe.check`: a request -> a ShownReport, made by a process of its own or, of a function, in this one."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from ..commands.suite.checked import Planned
from ..commands.suite.checking import Setting, check_each
from ..inputs.history import CheckRequest
from ..inputs.options import parse, refuse_unknown_family
from ..model.failures import Failure, UsageFailure, as_failure
from ..model.report import Report, failed_report
from ..processes.limits import bounded
from ..runtime.versions import refuse_untested
from ..targets.mistyped import refuse_mistyped
from .arguments import Subject
from .shown import ShownReport, shown


@dataclass(frozen=True)
class Manner:
    """How a check is made, by the names of the command line."""

    isolate: bool | None
    timeout: float | None
    fix_budget: float
    coincidence_budget: float
    max_memory: str | None


def checked(target: Subject, reference: Subject | None, request: CheckRequest, manner: Manner) -> ShownReport:
    """The report of a check.

    Args:
        request: with a word for the target and the reference, "" where there is none.

    Raises:
        UsageFailure: a word or an option is wrong; whatever else keeps a check from being made stands in its report.
    """
    parse(request.options)
    refuse_unknown_family(request.family)
    given = [one for one in (target, reference) if one is not None]
    for word in given:
        if isinstance(word, str):
            refuse_mistyped(word)
    apart = all(isinstance(one, str) for one in given) if manner.isolate is None else manner.isolate
    if apart and not (request.target and request.reference != ""):
        raise UsageFailure(
            "check: isolate=True, and another process finds no function of a notebook's cell or of another function",
            "write it into a file, or leave out isolate=True",
        )
    if manner.timeout is not None and not apart:
        raise UsageFailure("check: timeout stops a process, and this one makes the check", "add isolate=True")
    setting = Setting(
        isolate=apart,
        timeout=manner.timeout,
        fix_budget=manner.fix_budget,
        coincidence_budget=manner.coincidence_budget,
    )
    try:
        refuse_untested()
    except Failure as failure:
        return shown(failed_report(failure, "", request.target))
    with bounded(manner.max_memory):
        return shown(_apart(request, setting) if apart else _here(target, reference, request, setting))


def _apart(request: CheckRequest, setting: Setting) -> Report:
    (made,) = check_each([Planned("", request)], setting, echo=sys.stderr.write)
    error = made.report.error
    if error is not None and error.kind == UsageFailure.__name__:
        raise UsageFailure(error.message, error.way_out)
    return made.report


def _here(target: Subject, reference: Subject | None, request: CheckRequest, setting: Setting) -> Report:
    from ..numerics.closeup import kept_close_ups
    from ..pipeline.reported import report_of
    from ..pipeline.run_check import run_check
    from ..runtime.backend import ordinary_torch

    start = time.perf_counter()
    functions = [None if isinstance(one, str) else one for one in (target, reference)]
    # Nothing repeats a check of a function that has no word.
    command = request.command() if request.target and request.reference != "" else ""
    try:
        with ordinary_torch():
            probed = run_check(
                request,
                command,
                target=functions[0],
                reference=functions[1],
                budget=lambda of: setting.budget_at(time.perf_counter() - start, of),
            )
            return report_of(probed, kept_close_ups(probed))
    except UsageFailure:
        raise
    except Exception as error:
        return failed_report(as_failure(error), command, request.target or getattr(target, "__name__", ""))
