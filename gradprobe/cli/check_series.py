"""Several checks on the command line: shown and written as they come, and one exit code for all."""

from __future__ import annotations

import functools
import sys
import time
from dataclasses import replace

from ..commands.suite.check_table import LISTED, CheckTable, closing, simplest
from ..commands.suite.outcome import code_of
from ..commands.suite.runner import Runner
from ..inputs import history as last
from ..model.documents import Reports
from ..model.failures import INTERRUPTED, Failure
from ..model.layout_run import FAILED
from ..render.terminal import Progress, interrupted, note, print_failure, show, terminal
from .checks import SHOW
from .report_forms import Forms

# Of checks whose matches are not listed: how many lie between two words on stderr of how far it is.
_BETWEEN = 20
# Of the time that passes between two versions of the files, how much writing one may take.
_SHARE = 0.05


def check_several(runner: Runner, forms: Forms) -> int:
    """Makes every check, shows a table of them and the simplest failing one in full; the exit code of all.

    Every file that was asked for is written before the first check, which is not made where it cannot be, and after
    each, as long as that takes no time that is felt.
    """
    start, due, stopped = time.perf_counter(), 0.0, None
    if runner.plan.checks and (code := forms.write_so_far(runner.so_far)):
        return code
    look, plan = replace(terminal(), details=forms.details), runner.plan
    titles = [check.title for check in plan.checks] + [case.title for case in plan.untaken]
    table, is_shown = CheckTable([*plan.titles, *titles], look), not forms.on_stdout
    show(table.head() if is_shown else [])
    try:
        with Progress() as tick:
            tick("importing torch and the target", None)
            for outcome in runner.outcomes(tick):
                if (now := time.monotonic()) >= due:
                    forms.write_so_far(runner.so_far)
                    over = time.monotonic()
                    due = over + (over - now) / _SHARE
                if is_shown:
                    tick.over(functools.partial(show, table.line_of(outcome.report)))
                _say_how_far(runner)
            runner.finish(tick)
    except KeyboardInterrupt:
        runner.fold()
        warned = len(runner.warned)
        stopped = interrupted(len(runner.checks) + warned, runner.expected + warned, "checks")
    except BaseException:
        forms.write_so_far(runner.so_far)
        raise
    several = runner.so_far
    compared, is_kept = [outcome for outcome in runner.checks if outcome.verdict != FAILED], False
    if compared:  # `diff` repeats the simplest failing check, else the first
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
    # Nothing compared is no match.
    codes = [outcome.code for outcome in runner.checks]
    return forms.write(several, code_of(codes) if codes or runner.expected else Failure.exit_code)


def _say_how_far(runner: Runner) -> None:
    """Says on stderr of many checks, whose matches are not listed, how many are made, where no bar does."""
    made, expected = len(runner.checks), runner.expected
    if not sys.stderr.isatty() and expected > LISTED and made % _BETWEEN == 0:
        note(f"{made} of {expected} checked")


def say_nothing_compared(several: Reports) -> None:
    """Says on stderr where a target took none of the cases: that is no match."""
    if not several.counted and not several.planned:
        print_failure(Failure("nothing was compared: the target takes none of the cases"))
