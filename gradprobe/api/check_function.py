"""`gradprobe.check`: a request -> a ShownReport, by a process of its own or, of a function, in this one."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..commands.suite.checking import Setting, check_each
from ..commands.suite.plan import Counterpart, PlannedCheck
from ..commands.suite.runner import report_beside
from ..inputs.options import parse, refuse_unknown_family
from ..inputs.versions import refuse_untested
from ..model.failures import Failure, UsageFailure
from ..model.report import Report, failed_report
from ..processes.child import fresh_caches
from ..processes.resource_limits import bounded
from ..targets.definitions import refuse_mistyped
from ..targets.surroundings import ordinary_torch
from .arguments import Subject, requested, word_of_subject
from .shown_report import ShownReport, shown

# By name, the default of each option that is none of the case.
OWN: dict[str, Any] = {
    "reference": None, "family": None, "isolate": None, "timeout": None, "fix_budget": 40, "max_memory": None,
    "against": None, "fresh": False,
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
def checked(target: Subject, options: dict[str, Any]) -> ShownReport:
    """The report of a check.

    Raises:
        TypeError: as `gradprobe.check`.
        UsageFailure: a word or an option is wrong; whatever else keeps a check from being made stands in its report.
    """
    given = {name: options.pop(name, None) for name in OWN}
    own = {name: OWN[name] if word is None else word for name, word in given.items()}
    reference, other, timeout = own["reference"], own["against"], own["timeout"]
    request = requested(target, reference, own["family"], options, tuple(OWN))
    parse(request.options)
    refuse_unknown_family(request.family)
    for word in filter(None, (request.target, request.reference)):
        refuse_mistyped(word)
    apart = own["isolate"]
    if apart is None:
        apart = not any(map(callable, (target, reference, other)))
    if apart and not (request.target and request.reference != "" and other != ""):
        why = "isolate=True, and another process finds no function of a notebook's cell or of another function"
        raise UsageFailure(f"check: {why}", "write it into a file, or leave out isolate=True")
    if timeout is not None and not apart:
        why = "timeout stops a process, and this one makes the check"
        raise UsageFailure(f"check: {why}", "add isolate=True")
    setting = Setting(isolate=apart, timeout=timeout, fix_budget=own["fix_budget"], beyond=True)
    try:
        if not request.options.get("untested"):
            refuse_untested()
    except Failure as failure:
        return shown(failed_report(failure, "", request.target))
    with (
        bounded(own["max_memory"]),
        fresh_caches() if own["fresh"] else contextlib.nullcontext(),
    ):
        functions = (None, None) if apart else (_function(target), _function(reference))
        planned = PlannedCheck("", request, fresh=own["fresh"], functions=functions)
        return shown(_checked(planned, setting, other))


def _function(subject: Subject | Report | None) -> Callable[..., Any] | None:
    return subject if callable(subject) else None


def _checked(planned: PlannedCheck, setting: Setting, other: Subject | Report | None) -> Report:
    """The report of one check, beside another where one is given. Raises its UsageFailure."""
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
