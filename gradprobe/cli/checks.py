"""Checks on the command line: shown and written as they come, with one exit code."""

import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace

from ..commands.suite.check_table import CheckTable, closing, simplest
from ..commands.suite.checking import Setting, check_each
from ..commands.suite.outcome import CheckOutcome, code_of
from ..commands.suite.plan import Counterpart, PlannedCheck
from ..commands.suite.runner import Runner, report_beside
from ..inputs import history as last
from ..model.documents import Reports
from ..model.failures import INTERRUPTED, Failure
from ..model.layout_run import FAILED
from ..model.report import Report
from ..render.terminal import (
    Progress,
    interrupted,
    print_failure,
    show,
    terminal,
    write_stderr,
    write_stdout,
)
from .report_forms import Forms

SHOW = "gradprobe show"


def check_one(planned: PlannedCheck, forms: Forms, setting: Setting) -> int:
    made: list[CheckOutcome] = []
    try:
        with Progress(patience=0.0) as tick:
            stages = by_layout(planned, tick)
            # What came before Ctrl-C stays.
            made.extend(check_each([planned], setting, echo=sys.stderr.write, tick=stages))
    except KeyboardInterrupt:
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
    rest = SHOW if is_kept else ""
    return tell_report(checked.report, checked.code, forms, setting.tracebacks, rest)


def check_against(planned: PlannedCheck, word: str, forms: Forms, setting: Setting) -> int:
    """Checks another target, then this one beside it. Raises UsageFailure."""
    with tempfile.TemporaryDirectory(prefix="gradprobe-") as folder:
        kept = os.path.join(folder, "given.pt")
        with Progress() as tick:
            tick(f"checking {word}", None)
            report = report_beside(planned, word, kept, setting)
        say(report, setting.tracebacks)
        beside = Counterpart(word, report, kept if os.path.exists(kept) else "")
        return check_one(replace(planned, against=beside), forms, setting)


def tell_report(
    report: Report, code: int, forms: Forms, tracebacks: bool, rest: str = ""
) -> int:
    said = say(report, tracebacks)
    forms.show(report, rest)
    return forms.write(Reports(reports=(report,), origin=report.origin), code, said=said)


def tell_interrupted(
    tick: Progress, done: int, of: int, things: str, shown: Callable[[], object] | None
) -> None:
    """`shown` is None where stdout is a document's."""
    if done and shown:
        head = f"INTERRUPTED  {done} of {of} {things} were tried; of these:\n"
        tick.over(lambda: write_stdout(head))
        tick.over(shown)
    print_failure(interrupted(done, of, things))


def by_layout(planned: PlannedCheck, tick: Progress) -> Callable[[str, float, str], None]:
    begun, total = dict[str, None](), len(planned.layouts)

    def take(stage: str, fraction: float, layout: str) -> None:
        if layout:
            begun[layout.partition(", ")[0]] = None
        if 0 < len(begun) <= total != 1:
            tick(f"layout {len(begun)} of {total}: {stage}", (len(begun) - 1) / total)
        else:  # its length is not known
            tick(stage, fraction or None)

    return take


def say(report: Report, tracebacks: bool) -> str:
    error = report.error
    if error is None:
        return ""
    write_stderr("".join(f"{line}\n" for line in error.trace(tracebacks)))
    print_failure(Failure(error.message, error.way_out, error.details))
    return error.message


_BETWEEN = 1.0  # seconds


def check_several(runner: Runner, forms: Forms) -> int:
    """Shows a table of checks and the simplest failing one in full.

    Files are written before the first check, which is not made where they cannot be, and meanwhile.
    """
    start, written, stopped = time.perf_counter(), 0.0, None
    if runner.plan.checks and (code := forms.write_so_far(runner.so_far)):
        return code
    look, plan = replace(terminal(), details=forms.details), runner.plan
    titles = [check.title for check in plan.checks] + [case.title for case in plan.untaken]
    table, is_shown = CheckTable([*plan.titles, *titles], look), not forms.on_stdout
    try:
        with Progress() as tick:
            for outcome in runner.outcomes(tick):
                if time.monotonic() - written > _BETWEEN:
                    forms.write_so_far(runner.so_far)
                    written = time.monotonic()
                if is_shown:
                    tick.over(functools.partial(show, table.line_of(outcome.report)))
            runner.finish(tick)
    except KeyboardInterrupt:
        runner.fold()
        warned = len(runner.warned)
        stopped = interrupted(len(runner.checks) + warned, runner.expected + warned, "checks")
    except BaseException:
        forms.write_so_far(runner.so_far)
        raise
    several, is_kept = runner.so_far, False
    if compared := [outcome for outcome in runner.checks if outcome.verdict != FAILED]:
        repeated = simplest(compared) or compared[0]
        is_kept = last.save(repeated.request, repeated.report)
    if not stopped:
        say_nothing_compared(several)
    if is_shown:
        look = replace(look, rest=SHOW if is_kept else "")
        show(closing(several, look, time.perf_counter() - start, runner.setting.tracebacks))
    if stopped:
        print_failure(stopped)
        forms.write_so_far(several)
        return INTERRUPTED
    codes = [outcome.code for outcome in runner.checks]
    # Nothing compared is no match.
    code = code_of(codes) if codes or runner.expected else Failure.exit_code
    return forms.write(several, code)


def say_nothing_compared(several: Reports) -> None:
    if not several.counted and not several.planned:
        print_failure(Failure("nothing was compared: the target takes none of the cases"))
