"""`gradprobe watch`: the check once more at each save, in a process that has imported torch meanwhile."""

from __future__ import annotations

import linecache
import os
import sys
import time

from rich.text import Text

from ..commands.suite.checking import Setting, check_each
from ..commands.suite.outcome import CheckOutcome
from ..commands.suite.plan import PlannedCheck
from ..commands.watched_files import (
    Sources,
    at_first,
    digest,
    imported,
    listed_files,
    refuse_without_watchfiles,
)
from ..inputs import history as last
from ..model.documents import Reports
from ..model.layout_run import FAILED
from ..model.report import Report
from ..processes.each import AbandonedWork, abandoned_when
from ..processes.process import begin_child, begun_early
from ..render.comparison import changes_since, sentences_of
from ..render.terminal import Progress, note, show, terminal, write_as_is
from . import IMPORTED_EARLY
from .checks import by_layout, say
from .command import Call, Command
from .report_forms import Forms


@Command("target family reference timeout fix_budget")
def watch(call: Call) -> int:
    """Check a kernel again each time that its file, or one that it imports, is saved, and say what changed.

    Torch is imported between saves. How the first layout stands is told before the rest. Ctrl-C ends it.
    """
    refuse_without_watchfiles()
    settings = call.settings()
    planned = PlannedCheck("", settings.over(call.request), chosen=call.chosen)
    watched = _Watch(planned, call.setting(settings, beyond=True), call.forms)
    # Python takes bytecode for that of a text of the same length, saved in the same second.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with begun_early(IMPORTED_EARLY):
        watched.go_on()
    return 0


class _Watch:
    """One check after another, until Ctrl-C."""

    def __init__(self, planned: PlannedCheck, setting: Setting, forms: Forms) -> None:
        self._planned, self._setting, self._forms = planned, setting, forms
        self._sources = Sources.of(at_first(planned))
        self._before: Report | None = None
        """The last that compared something."""

    def go_on(self) -> None:
        note(f"{self._planned.case_line}; Ctrl-C ends it")
        while True:
            begun = time.time()
            try:
                with abandoned_when(lambda: bool(self._sources.changed)):
                    checked = self._checked()
            except AbandonedWork:
                saved = self._sources.settled()
            else:
                self._show(checked, time.time() - begun)
                begin_child(IMPORTED_EARLY)
                saved = self._wait(checked, begun)
            self._sources = Sources.of(self._sources.digests)
            if (rows := terminal().rows) is not None:  # what stood there can be scrolled to
                write_as_is("\n" * rows + "\x1b[H\x1b[J")
            words = f"{listed_files(saved)} saved" if saved else "the same again saved"
            note(f"{time.strftime('%H:%M:%S')} {words}")

    def _checked(self) -> CheckOutcome:
        linecache.clearcache()  # of earlier texts, from which a crash's line would be told
        start, is_first = time.monotonic(), True

        def tell_first(so_far: Report) -> None:
            nonlocal is_first
            if not is_first or not so_far.runs:
                return
            is_first, run, seconds = False, so_far.runs[0], time.monotonic() - start
            changes = changes_since(self._before, so_far)
            lines = [*sentences_of([one for one in changes if one.what != "verdict"])]
            lines.append(f"{run.layout}: {run.verdict} ({seconds:.1f} s), the rest follows")
            tick.over(lambda: note("\ngradprobe: ".join(lines)))

        with Progress() as tick:
            stages, echo = by_layout(self._planned, tick), sys.stderr.write
            plan = [self._planned]
            (checked,) = check_each(plan, self._setting, told=tell_first, echo=echo, tick=stages)
            return checked

    def _show(self, checked: CheckOutcome, seconds: float) -> None:
        from ..render.screen import rendered

        report, before = checked.report, self._before
        if report.verdict == FAILED:
            say(report, self._setting.tracebacks)
        else:
            last.save(checked.request, report)
            is_new = before is not None and before.verdict != report.verdict
            was = f", was {before.verdict}" if before is not None and is_new else ""
            changes = sentences_of(changes_since(before, report))
            lines = [*changes, f"now: {report.verdict}{was} ({seconds:.1f} s)"]
            if not self._forms.on_stdout:
                show([*rendered(report), Text(), *(Text(line, "bold") for line in lines)])
            self._before = report
        self._forms.write(Reports(reports=(report,), origin=report.origin), checked.code)

    def _wait(self, checked: CheckOutcome, begun: float) -> list[str]:
        """The files that are saved next, or were since the check began."""
        before = self._sources.digests
        files = imported(self._planned, checked)
        files = files or {*before, *at_first(self._planned), *checked.report.sources}
        # One that was not known when the check began counts by its time.
        digests = {
            file: "" if _saved_at(file) > begun else digest(file)
            for file in files - before.keys()
        }
        known = {file: before[file] for file in files & before.keys()}
        self._sources = Sources(digests | known)
        own = os.path.abspath(self._planned.request.target.rpartition(":")[0] or ".")
        waited = sorted(files, key=lambda file: (os.path.abspath(file) != own, file))
        note(f"waiting for {listed_files(waited)} to be saved")
        return self._sources.wait()


def _saved_at(file: str) -> float:
    """In seconds since 1970; 0 of one that is not there."""
    return os.stat(file).st_mtime if os.path.exists(file) else 0.0
