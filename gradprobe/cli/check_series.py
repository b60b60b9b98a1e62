"""Several checks on the command line: shown and written as they come, and one exit code for all."""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..commands.suite.check_table import LISTED, CheckTable, closing, counts, simplest
from ..commands.suite.checked import CheckOutcome, PlannedCheck, code_of
from ..commands.suite.checking import Setting, check_each
from ..commands.suite.several import Further, Several, growing
from ..inputs import history as last
from ..model.documents import RefusedCase, Reports
from ..model.failures import INTERRUPTED, Failure
from ..model.layout_run import FAILED, MATCH
from ..model.report import Report
from ..render.terminal import Progress, interrupted, note, print_failure, show, terminal
from .checks import SHOW
from .report_forms import Forms

if TYPE_CHECKING:
    from rich.text import Text

# Of checks whose matches are not listed: how many lie between two words on stderr of how far it is.
_BETWEEN = 20
# Lines of a live table at most, and of the terminal what is left to all else.
_LIVE, _LEFT = 12, 6
Maker = Callable[[Progress], Iterator[CheckOutcome]]


class _Lines:
    """The table as it is shown: on a terminal that of a sweep is live, and stands there whole once it is over."""

    def __init__(self, several: Several, titles: Sequence[str], *, is_shown: bool, details: bool) -> None:
        self.on, self._several, self._is_shown = replace(terminal(), details=details), several, is_shown
        titles = [*titles, *(one.title for one in several.planned), *(one.title for one in several.untaken or ())]
        self._table = CheckTable(titles, self.on)
        self._is_live = several.is_sweep and is_shown and self.on.rows is not None and sys.stderr.isatty()
        self._rows: list[Text] = self._table.head()
        rows = max(2, min(_LIVE, (self.on.rows or 0) - _LEFT)) // 2
        self._latest: dict[bool, deque[Text]] = {fails: deque(maxlen=rows) for fails in (True, False)}
        self.progress = Progress(self._live)
        if is_shown and not self._is_live:
            show(self._rows)

    def add(self, report: Report) -> None:
        lines = self._table.line_of(report)
        if self._is_live:
            self._rows += lines
            self._latest[report.verdict != MATCH].append(self._table.line(report))
        elif self._is_shown:
            self.progress.over(functools.partial(show, lines))
        made, expected = len(self._several.checks), self._several.expected
        if not sys.stderr.isatty() and expected > LISTED and made % _BETWEEN == 0:
            note(f"{made} of {expected} checked")

    def _live(self) -> list[Text]:
        """The latest that fail, the latest that match, and how many there are of each."""
        if not self._is_live:
            return []
        return [*self._table.head(), *self._latest[True], *self._latest[False], counts(self._several.so_far)]

    def over(self) -> None:
        if self._is_live:
            show(self._rows)


def check_several(
    planned: list[PlannedCheck],
    forms: Forms,
    setting: Setting,
    *,
    untaken: Sequence[RefusedCase] | None = None,
    closer: Callable[[CheckOutcome], CheckOutcome] = lambda failing: failing,
    weigh: Callable[[CheckOutcome], CheckOutcome] = lambda checked: checked,
    sweep: Maker | None = None,
    titles: Sequence[str] = (),
    further: Further = Further(),  # noqa: B008 - it holds nothing
) -> int:
    """Makes every check, shows a table of them and the simplest failing one in full; the exit code of all.

    Every file that was asked for is written before the first check, which is not made where it cannot be, and after
    each, as long as that takes no time that is felt.

    Args:
        untaken: what the target does not take by its signature, where that is no error; nor is then what it refuses.
        closer: makes the simplest failing check once more, as it is to be shown.
        weigh: makes a warning of one that does not count.
        sweep: makes the checks of a sweep, whose plan may grow meanwhile, and tells itself how far it is.
        titles: some that are as long as those of checks that are not planned yet.
        further: plans more of them by what came.
    """
    start, not_taken = time.perf_counter(), None if untaken is None else [*untaken]
    several = Several(planned, not_taken, sweep is not None, further)
    write, make = _Seldom(forms), sweep or functools.partial(_each, planned, setting, further)
    if planned and (code := forms.write_so_far(several.so_far)):
        return code
    lines = _Lines(several, titles, is_shown=not forms.on_stdout, details=forms.details)
    failing, stopped = None, None
    try:
        with lines.progress as tick:
            tick("importing torch and the target", None)
            for checked in growing(planned, map(weigh, make(tick)), further):
                if several.take(checked):
                    write(several)
                    lines.add(checked.report)
            failing = in_full = simplest(several.checks)
            if failing is not None:
                tick("the first that fails, once more and in full", None)
                in_full = closer(failing)
            several.fold(failing, in_full)
            if several.groups and setting.shrink_budget:
                tick("a smaller case for each cause", None)
                several.shrink(setting)
    except KeyboardInterrupt:
        several.fold()
        came = len(several.checks) + len(several.warned)
        failing, stopped = simplest(several.checks), interrupted(came, several.expected + len(several.warned), "checks")
    except BaseException:
        forms.write_so_far(several.so_far)
        raise
    finally:
        lines.over()
    is_kept = False
    compared = [checked for checked in several.checks if checked.verdict != FAILED]
    if compared:  # `diff` repeats the simplest failing check, else the first
        repeated = simplest(compared) or compared[0]
        is_kept = last.save(repeated.request, repeated.report)
    if not stopped:
        say_nothing_compared(several.so_far)
    if not forms.on_stdout:
        look = replace(lines.on, rest=SHOW if is_kept else "")
        show(list(closing(several.so_far, look, time.perf_counter() - start, setting.tracebacks)))
    if stopped:
        print_failure(stopped)
        forms.write_so_far(several.so_far)
        return INTERRUPTED
    # Nothing compared is no match.
    codes = [checked.code for checked in several.checks]
    return forms.write(several.so_far, code_of(codes) if codes or several.expected else Failure.exit_code)


def _each(
    planned: Sequence[PlannedCheck], setting: Setting, further: Further, tick: Progress
) -> Iterator[CheckOutcome]:
    for number, checked in enumerate(check_each(planned, setting, alike=further.alike), 1):
        tick(f"check {number} of {len(planned)} made", number / len(planned))
        yield checked


# Of the time that passes between two versions of the files, how much writing one may take.
_SHARE = 0.05


class _Seldom:
    """Writes what came so far into every file: at each call, or less often where that would take long."""

    def __init__(self, forms: Forms) -> None:
        self._forms, self._next = forms, 0.0

    def __call__(self, several: Several) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._forms.write_so_far(several.so_far)
            over = time.monotonic()
            self._next = over + (over - now) / _SHARE


def say_nothing_compared(several: Reports) -> None:
    """Says on stderr where a target took none of the cases: that is no match."""
    if not several.counted and not several.planned:
        print_failure(Failure("nothing was compared: the target takes none of the cases"))
