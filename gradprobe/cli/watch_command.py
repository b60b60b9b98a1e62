"""`gradprobe watch`: the check once more at each save, in a process that has torch and Triton already."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.text import Text

from ..commands.configuration.effective import effective_settings
from ..commands.suite.checking import Setting, check_each
from ..commands.suite.outcome import CheckOutcome
from ..commands.suite.plan import PlannedCheck
from ..commands.warm_check import (
    Sources,
    at_first,
    failing_layout,
    imported,
    in_layout,
    of_settings,
    refuse_without_watchfiles,
    told_change,
    told_files,
    warm,
)
from ..inputs import history as last
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.layout_run import FAILED
from ..model.report import Report
from ..processes.each import AbandonedWork, abandoned_when
from ..render.comparison import changes_since, sentences_of
from ..render.terminal import Progress, note, print_failure, rendered, show, terminal, write_as_is
from . import shared_options as shared
from .checks import say
from .error_output import failures_told, print_settings
from .report_forms import Forms


@shared.with_case_options
def watch(
    target: shared.Target = None,
    family: shared.Family = None,
    reference: shared.Reference = None,
    json_file: shared.JsonFile = None,
    timeout: shared.Timeout = None,
    fix_budget: shared.FixBudget = None,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Check a kernel again each time that its file, or one that it imports, is saved, and say what changed.

    Torch and Triton stay loaded, and kernels that no save has changed are not run again. The layout that failed last is
    tried first. Ctrl-C ends it.
    """
    request = shared.request_of(target, family, options, reference)
    with failures_told(json_file, request.command("watch"), show_traceback, request.target):
        refuse_without_watchfiles()
        shared.refuse_wrong_words(request)
        fix = shared.FIX_BUDGET if fix_budget is None else fix_budget

        def plan() -> tuple[PlannedCheck, Setting]:
            effective = effective_settings(Path.cwd())
            if target is None:
                effective.refuse_misspelt()
            print_settings(effective.line(request.options, timeout))
            seconds = effective.timeout(timeout)
            how = Setting(show_traceback, timeout=seconds, fix_budget=fix, beyond=True)
            chosen = shared.BUILT_IN if target is None else ""
            return PlannedCheck("", effective.over(request), chosen=chosen), how

        loop = _Loop(plan, Forms.json(json_file))
        with warm(loop.planned.request.options):
            loop.go_on()


class _Loop:
    """One check after another, until Ctrl-C."""

    def __init__(self, plan: Callable[[], tuple[PlannedCheck, Setting]], forms: Forms) -> None:
        """Raises UsageFailure, from the plan."""
        self._plan, self._forms = plan, forms
        self.planned, self._setting = plan()
        self._sources = Sources.of(at_first(self.planned) | of_settings(self.planned))
        self._before: Report | None = None
        """The last that compared something."""

    def go_on(self) -> None:
        note(f"{self.planned.case_line}; Ctrl-C ends it")
        while True:
            begun = time.time()
            try:
                with abandoned_when(lambda: bool(self._sources.changed)):
                    checked = self._checked()
            except AbandonedWork:
                saved = self._sources.settled()
            else:
                self._show(checked, time.time() - begun)
                saved = self._wait(checked, begun)
            self._sources = Sources.of(self._sources.digests)
            _clear()
            note(f"{time.strftime('%H:%M:%S')} {told_change(saved)}")
            if not of_settings(self.planned).isdisjoint(saved):
                self._plan_anew()

    def _plan_anew(self) -> None:
        """By the settings that were saved, once they are valid."""
        while True:
            try:
                self.planned, self._setting = self._plan()
                return
            except UsageFailure as failure:
                print_failure(failure)
                note("waiting for it to be saved")
                self._sources.wait()
                self._sources = Sources.of(self._sources.digests)

    def _checked(self) -> CheckOutcome:
        """Makes the check; the layout that failed last is measured first, and how it stands now is told at once."""
        linecache.clearcache()  # of earlier texts, from which a crash's line would be told
        with Progress() as tick:
            tick("importing the target", None)
            answer = _Answer(self._before, tick)
            layout = failing_layout(self._before) if self._before else ""
            if (alone := in_layout(self.planned, layout)) is not None:
                quick = replace(self._setting, fix_budget=0, beyond=False)
                with contextlib.suppress(AbandonedWork), abandoned_when(lambda: answer.is_given):
                    # To its end: Ctrl-C is raised after the check that it ended.
                    list(check_each([alone], quick, tick=answer.tick, told=answer.give))
            (checked,) = check_each(
                [self.planned],
                self._setting,
                echo=sys.stderr.write,
                tick=answer.tick,
                told=answer.give,
            )
            return checked

    def _show(self, checked: CheckOutcome, seconds: float) -> None:
        """The report, what it changed, and the files that were asked for."""
        report = checked.report
        if report.verdict == FAILED:
            say(report, self._setting.tracebacks)
        else:
            last.save(checked.request, report)
            was = (
                f", was {self._before.verdict}"
                if self._before and self._before.verdict != report.verdict
                else ""
            )
            changes = sentences_of(changes_since(self._before, report))
            lines = [*changes, f"now: {report.verdict}{was} ({seconds:.1f} s)"]
            if not self._forms.on_stdout:
                show([*rendered(report), Text(), *(Text(line, "bold") for line in lines)])
            self._before = report
        self._forms.write(Reports(reports=(report,), origin=report.origin), checked.code)

    def _wait(self, checked: CheckOutcome, begun: float) -> list[str]:
        """The files that are saved next, or were meanwhile."""
        known = self._sources.digests
        files = imported(self.planned, checked) or {
            *known,
            *at_first(self.planned),
            *checked.report.sources,
        }
        files |= of_settings(self.planned)
        self._sources = Sources(
            {
                **Sources.of(files).digests,
                **{file: known[file] for file in files if file in known},
            }
        )
        late = [file for file in files if file not in known and _saved_at(file) > begun]
        note(f"waiting for {told_files(sorted(files, key=self._is_not_the_target))} to be saved")
        return late or self._sources.wait()

    def _is_not_the_target(self, file: str) -> bool:
        return os.path.relpath(file) != os.path.relpath(
            self.planned.request.target.rpartition(":")[0] or "."
        )


class _Answer:
    """Tells how the layout that is measured first stands."""

    def __init__(self, before: Report | None, tick: Progress) -> None:
        self._before, self._tick, self._start, self.is_given = (
            before,
            tick,
            time.monotonic(),
            False,
        )

    def tick(self, stage: str, _: float, layout: str) -> None:
        self._tick(f"{layout}: {stage}" if layout else stage, None)

    def give(self, so_far: Report) -> None:
        if self.is_given or not so_far.runs:
            return
        self.is_given = True
        run, seconds = so_far.runs[0], time.monotonic() - self._start
        changes = [one for one in changes_since(self._before, so_far) if one.what != "verdict"]
        lines = [
            *sentences_of(changes),
            f"{run.layout}: {run.verdict} ({seconds:.1f} s), the rest follows",
        ]
        self._tick.over(lambda: note("\ngradprobe: ".join(lines)))


def _saved_at(file: str) -> float:
    """In seconds since 1970; 0 of one that is not there."""
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0


def _clear() -> None:
    """A terminal begins anew; what stood there can be scrolled to."""
    if (rows := terminal().rows) is not None:
        write_as_is("\n" * rows + "\x1b[H\x1b[J")
