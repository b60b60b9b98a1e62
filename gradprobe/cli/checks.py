"""Checks on the command line, one or several: shown and written as they come, and one exit code for all."""

from __future__ import annotations

import functools
import sys
import time
from bisect import insort
from collections.abc import Callable, Sequence

import typer

from ..commands.suite.checked import Checked, Planned, code_of
from ..commands.suite.checking import Setting, check_each
from ..commands.suite.folding import folded_by_cause, with_smallest
from ..commands.suite.table import LISTED, CheckTable, closing, simplest, words_of
from ..inputs import history as last
from ..model.documents import Reports, Untaken
from ..model.failures import INTERRUPTED, Failure
from ..model.groups import FailureGroup
from ..model.report import Report
from ..model.run import FAILED
from ..render.terminal import Progress, interrupted, print_failure, rendered, show, terminal
from .forms import Forms


def check_one(planned: Planned, forms: Forms, setting: Setting) -> int:
    """Makes a check, shows it, and writes every form that was asked for; its exit code.

    What kept it from being made, or ended it, is said on stderr; what was measured before stands on stdout.
    """
    made: list[Checked] = []
    try:
        with Progress() as tick:
            tick("importing torch and the target", None)
            for checked in check_each([planned], setting, echo=sys.stderr.write, tick=_by_layout(planned, tick)):
                made.append(checked)
    except KeyboardInterrupt:
        # What was measured is shown; the files hold it too, marked as incomplete.
        for checked in made:
            if not forms.on_stdout:
                show(rendered(checked.report))
            say(checked.report, setting.tracebacks)
            forms.write_so_far(Reports(reports=(checked.report,)))
        if not made:
            print_failure(interrupted(0, 0, ""))
        return INTERRUPTED
    (checked,) = made
    if checked.verdict != FAILED and planned.close_up is None:
        last.save(planned.request, checked.report)
    return tell(checked.report, checked.code, forms, setting.tracebacks)


def tell(report: Report, code: int, forms: Forms, tracebacks: bool) -> int:
    """Shows a check that was made, and writes every form that was asked for; its exit code."""
    said = say(report, tracebacks)
    if not forms.on_stdout:
        show(rendered(report))
    return forms.write(Reports(reports=(report,), origin=report.origin), code, said=said)


def _by_layout(planned: Planned, tick: Progress) -> Callable[[str, float, str], None]:
    """Tells how many of the layouts are done; of a single one, how far its comparison is."""
    begun, of = list[str](), len(planned.layouts)

    def told(stage: str, fraction: float, layout: str) -> None:
        name = layout.partition(", ")[0]
        if name and name not in begun:
            begun.append(name)
        if of == 1 or name not in begun[-1:] or len(begun) > of:  # or a look at what went wrong, of no known length
            tick(stage, fraction or None)
        else:
            tick(f"layout {len(begun)} of {of}: {stage}", (len(begun) - 1) / of)

    return told


def say(report: Report, tracebacks: bool) -> str:
    """Says on stderr what ended a check before its end; the words, "" where nothing did."""
    error = report.error
    if error is None:
        return ""
    sys.stderr.write("".join(f"{line}\n" for line in error.trace(tracebacks)))
    print_failure(Failure(error.message, error.way_out))
    return error.message


# Of checks whose matches are not listed: how many lie between two words on stderr of how far it is.
_BETWEEN = 20


def check_several(
    planned: Sequence[Planned],
    forms: Forms,
    setting: Setting,
    *,
    untaken: Sequence[Untaken] | None = None,
    closer: Callable[[Checked], Checked] = lambda failing: failing,
    weigh: Callable[[Checked], Checked] = lambda checked: checked,
) -> int:
    """Makes every check, shows a table of them and the simplest failing one in full; the exit code of all.

    Every file that was asked for is written before the first check, which is not made where it cannot be, and after
    each.

    Args:
        untaken: what the target does not take by its signature, where that is no error; nor is then what it refuses.
        closer: makes the simplest failing check once more, as it is to be shown.
        weigh: makes a warning of one that does not count.
    """
    start, shown = time.perf_counter(), not forms.on_stdout
    on, checks, warned = terminal(), list[Checked](), list[Checked]()
    table = CheckTable([*(one.title for one in planned), *(one.title for one in untaken or ())], on)
    expected = len(planned)

    groups: tuple[FailureGroup, ...] = ()

    def so_far() -> Reports:
        reports = tuple(checked.report for checked in (*checks, *warned))
        not_taken = None if untaken is None else tuple(untaken)
        return Reports(reports=reports, planned=expected, not_taken=not_taken, groups=groups)

    if expected and (code := forms.write_so_far(so_far())):
        return code
    if shown:
        show(table.head())
    stopped: Failure | None = None
    try:
        with Progress() as tick:
            tick("importing torch and the target", None)
            for number, checked in enumerate(map(weigh, check_each(planned, setting)), 1):
                if checked.is_interrupted:
                    continue
                tick(f"check {number} of {len(planned)} made", number / len(planned))
                if untaken is not None and checked.is_refused:
                    untaken, expected = [*untaken, Untaken(checked.title, words_of(checked.report))], expected - 1
                    continue
                insort(warned if checked.report.is_warning else checks, checked, key=lambda one: one.report.number)
                expected -= checked.report.is_warning
                forms.write_so_far(so_far())
                if shown:
                    tick.over(functools.partial(show, table.line_of(checked.report)))
                if expected > LISTED and len(checks) % _BETWEEN == 0:
                    typer.echo(f"gradprobe: {len(checks)} of {expected} checked", err=True)
            failing = simplest(checks)
            if failing is not None:
                tick("the first that fails, once more and in full", None)
                checks[checks.index(failing)] = failing = closer(failing)
            groups = folded_by_cause([checked.report for checked in checks])
            if groups and setting.shrink_budget:
                tick("a smaller case for each cause", None)
                requests = {checked.report.number: checked.request for checked in checks}
                groups = with_smallest(groups, requests, setting.shrink_budget, setting.workers)
    except KeyboardInterrupt:
        groups = groups or folded_by_cause([checked.report for checked in checks])
        failing, stopped = simplest(checks), interrupted(len(checks) + len(warned), expected + len(warned), "checks")
    except BaseException:
        forms.write_so_far(so_far())
        raise
    compared = [checked for checked in checks if checked.verdict != FAILED]
    if compared:  # `diff` repeats the simplest failing check, else the first
        repeated = simplest(compared) or compared[0]
        last.save(repeated.request, repeated.report)
    if not stopped:
        say_nothing_compared(so_far())
    if shown:
        show(list(closing(so_far(), on, time.perf_counter() - start, setting.tracebacks)))
    if stopped:
        print_failure(stopped)
        forms.write_so_far(so_far())
        return INTERRUPTED
    # Nothing compared is no match.
    code = code_of([checked.code for checked in checks]) if checks or expected else Failure.exit_code
    return forms.write(so_far(), code)


def say_nothing_compared(several: Reports) -> None:
    """Says on stderr where a target took none of the cases: that is no match."""
    if not several.counted and not several.planned:
        print_failure(Failure("nothing was compared: the target takes none of the cases"))
