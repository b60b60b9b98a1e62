"""One check on the command line: shown and written as it comes, and its exit code."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..commands.suite.checking import Setting, check_each
from ..commands.suite.outcome import CheckOutcome
from ..commands.suite.plan import Counterpart, PlannedCheck
from ..inputs import history as last
from ..model.documents import Reports
from ..model.failures import INTERRUPTED, Failure
from ..model.layout_run import FAILED
from ..model.report import Report
from ..render.terminal import Progress, interrupted, print_failure, write_stderr
from .report_forms import Forms

SHOW = "gradprobe show"
"""What shows the last check of this folder."""

if TYPE_CHECKING:
    from rich.text import Text


def check_one(planned: PlannedCheck, forms: Forms, setting: Setting) -> int:
    """Makes a check, shows it, and writes every form that was asked for; its exit code.

    What kept it from being made, or ended it, is said on stderr; what was measured before stands on stdout.
    """
    made: list[CheckOutcome] = []
    try:
        with Progress(lambda: _case_line(planned), patience=0.0) as tick:
            tick("importing torch and the target", None)
            show = _by_layout(planned, tick)
            checks = check_each([planned], setting, echo=sys.stderr.write, tick=show)
            made.extend(checks)  # what came before Ctrl-C stays
    except KeyboardInterrupt:
        # What was measured is shown; the files hold it too, marked as incomplete.
        for checked in made:
            say(checked.report, setting.tracebacks)
            forms.show(checked.report)
            forms.write_so_far(Reports(reports=(checked.report,)))
        if not made:
            print_failure(interrupted(0, 0, ""))
        return INTERRUPTED
    (checked,) = made
    is_meant = checked.verdict != FAILED and planned.close_up is None
    is_kept = is_meant and last.save(checked.request, checked.report)
    return tell(checked.report, checked.code, forms, setting.tracebacks, SHOW if is_kept else "")


def check_against(planned: PlannedCheck, word: str, forms: Forms, setting: Setting) -> int:
    """Checks another target, then this one, and shows this one with what it differs in; the exit code.

    Raises:
        UsageFailure: as `report_beside` does.
    """
    from ..commands.suite.other_check import report_beside

    with tempfile.TemporaryDirectory(prefix="gradprobe-") as folder:
        kept = os.path.join(folder, "given.pt")
        with Progress() as tick:
            tick(f"checking {word}", None)
            report = report_beside(planned, word, kept, setting)
        say(report, setting.tracebacks)
        beside = Counterpart(word, report, kept if os.path.exists(kept) else "")
        return check_one(replace(planned, against=beside), forms, setting)


def _case_line(planned: PlannedCheck) -> list[Text]:
    from rich.text import Text

    return [Text(planned.case_line, no_wrap=True, overflow="ellipsis")]


def tell(report: Report, code: int, forms: Forms, tracebacks: bool, rest: str = "") -> int:
    """Shows a check that was made, and writes every form that was asked for; its exit code.

    Args:
        rest: the command that shows all of it, where that is not the same one with --details.
    """
    said = say(report, tracebacks)
    forms.show(report, rest)
    return forms.write(Reports(reports=(report,), origin=report.origin), code, said=said)


def _by_layout(planned: PlannedCheck, tick: Progress) -> Callable[[str, float, str], None]:
    """Tells how many of the layouts are done; of a single one, how far its comparison is."""
    begun, total = list[str](), len(planned.layouts)

    def show(stage: str, fraction: float, layout: str) -> None:
        name = layout.partition(", ")[0]
        if name and name not in begun:
            begun.append(name)
        # A look at what went wrong has no known length.
        if total == 1 or name not in begun[-1:] or len(begun) > total:
            tick(stage, fraction or None)
        else:
            tick(f"layout {len(begun)} of {total}: {stage}", (len(begun) - 1) / total)

    return show


def say(report: Report, tracebacks: bool) -> str:
    """Says on stderr what ended a check before its end; the words, "" where nothing did."""
    error = report.error
    if error is None:
        return ""
    write_stderr("".join(f"{line}\n" for line in error.trace(tracebacks)))
    print_failure(Failure(error.message, error.way_out, error.details))
    return error.message
