"""Several checks on the command line: shown and written as they come, and one exit code for all."""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from dataclasses import replace

from rich.text import Text

from ..commands.suite.check_table import LISTED, CheckTable, closing, counts, simplest
from ..commands.suite.outcome import code_of
from ..commands.suite.runner import Runner
from ..inputs import history as last
from ..model.documents import Reports
from ..model.failures import INTERRUPTED, Failure
from ..model.layout_run import FAILED, MATCH
from ..model.report import Report
from ..render.terminal import Progress, interrupted, note, print_failure, show, terminal
from .checks import SHOW
from .report_forms import Forms

# Of checks whose matches are not listed: how many lie between two words on stderr of how far it is.
_BETWEEN = 20
# Lines of a live table at most, and of the terminal what is left to all else.
_LIVE, _LEFT = 12, 6
# Of the time that passes between two versions of the files, how much writing one may take.
_SHARE = 0.05


class _Lines:
    """The table as it is shown: on a terminal that of a sweep is live, and stands there whole once it is over."""

    def __init__(self, runner: Runner, *, is_shown: bool, details: bool) -> None:
        self.on, self._runner, self._is_shown = replace(terminal(), details=details), runner, is_shown
        plan = runner.plan
        titles = [check.title for check in plan.checks] + [case.title for case in plan.untaken]
        self._table = CheckTable([*plan.titles, *titles], self.on)
        self._is_live = plan.is_sweep and is_shown and self.on.rows is not None and sys.stderr.isatty()
        self._rows = self._table.head()
        most = max(2, min(_LIVE, (self.on.rows or 0) - _LEFT)) // 2
        self._fail, self._match = deque[Text](maxlen=most), deque[Text](maxlen=most)
        self.progress = Progress(self._live)
        if is_shown and not self._is_live:
            show(self._rows)

    def add(self, report: Report) -> None:
        lines = self._table.line_of(report)
        if self._is_live:
            self._rows += lines
            (self._match if report.verdict == MATCH else self._fail).append(self._table.line(report))
        elif self._is_shown:
            self.progress.over(functools.partial(show, lines))
        made, expected = len(self._runner.checks), self._runner.expected
        if not sys.stderr.isatty() and expected > LISTED and made % _BETWEEN == 0:
            note(f"{made} of {expected} checked")

    def _live(self) -> list[Text]:
        """The latest that fail, the latest that match, and how many there are of each."""
        if not self._is_live:
            return []
        return [*self._table.head(), *self._fail, *self._match, counts(self._runner.so_far)]

    def over(self) -> None:
        if self._is_live:
            show(self._rows)


def check_several(runner: Runner, forms: Forms) -> int:
    """Makes every check, shows a table of them and the simplest failing one in full; the exit code of all.

    Every file that was asked for is written before the first check, which is not made where it cannot be, and after
    each, as long as that takes no time that is felt.
    """
    start, due, stopped = time.perf_counter(), 0.0, None
    if runner.plan.checks and (code := forms.write_so_far(runner.so_far)):
        return code
    lines = _Lines(runner, is_shown=not forms.on_stdout, details=forms.details)
    try:
        with lines.progress as tick:
            tick("importing torch and the target", None)
            for outcome in runner.outcomes(tick):
                if (now := time.monotonic()) >= due:
                    forms.write_so_far(runner.so_far)
                    over = time.monotonic()
                    due = over + (over - now) / _SHARE
                lines.add(outcome.report)
            runner.finish(tick)
    except KeyboardInterrupt:
        runner.fold()
        warned = len(runner.warned)
        stopped = interrupted(len(runner.checks) + warned, runner.expected + warned, "checks")
    except BaseException:
        forms.write_so_far(runner.so_far)
        raise
    finally:
        lines.over()
    several = runner.so_far
    compared, is_kept = [outcome for outcome in runner.checks if outcome.verdict != FAILED], False
    if compared:  # `diff` repeats the simplest failing check, else the first
        repeated = simplest(compared) or compared[0]
        is_kept = last.save(repeated.request, repeated.report)
    if not stopped:
        say_nothing_compared(several)
    if not forms.on_stdout:
        look = replace(lines.on, rest=SHOW if is_kept else "")
        show(closing(several, look, time.perf_counter() - start, runner.setting.tracebacks))
    if stopped:
        print_failure(stopped)
        forms.write_so_far(several)
        return INTERRUPTED
    # Nothing compared is no match.
    codes = [outcome.code for outcome in runner.checks]
    return forms.write(several, code_of(codes) if codes or runner.expected else Failure.exit_code)


def say_nothing_compared(several: Reports) -> None:
    """Says on stderr where a target took none of the cases: that is no match."""
    if not several.counted and not several.planned:
        print_failure(Failure("nothing was compared: the target takes none of the cases"))
