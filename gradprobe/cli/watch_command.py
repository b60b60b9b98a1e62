"""`gradprobe watch`: the check once more at each save."""

import contextlib
import linecache
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from ..commands.suite.checking import Setting, check_each
from ..commands.suite.outcome import CheckOutcome
from ..commands.suite.plan import PlannedCheck
from ..inputs import history as last
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.layout_run import FAILED
from ..model.report import Report
from ..processes.each import AbandonedWork, abandoned_when
from ..processes.process import begin_child, begun_early
from ..render.comparison import changes_since, sentences_of
from ..render.terminal import Progress, note, show, terminal, write_as_is
from ..targets.builtin import BUILTINS, FILES
from ..targets.find import parts_of
from . import IMPORTED_EARLY
from .checks import by_layout, say
from .command import Call, Command
from .report_forms import Forms

# What a kernel is written in, and may include.
_SOURCES = {".py", ".cu", ".cuh", ".h", ".hpp"}
# Seconds that no file may change before it is taken to be saved; for which one that an editor is about to put in its
# place may be missing; and between two looks.
_STILL, _MISSING, _LOOK = 0.03, 1.0, 0.05
Stamps = dict[str, int]  # 0 of a missing file


@Command("target family reference timeout fix_budget")
def watch(call: Call) -> int:
    """Check a kernel again each time that its file, or one that it imports, is saved, and say what changed.

    How the first layout stands is told before the rest. Ctrl-C ends it.
    """
    settings = call.settings()
    planned = PlannedCheck("", settings.over(call.request), chosen=call.chosen)
    watched = _Watch(planned, call.setting(settings, beyond=True), call.forms)
    # Python takes bytecode for that of a text of the same length, saved in the same second.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with begun_early(IMPORTED_EARLY):
        watched.go_on()
    return 0


class _Watch:
    def __init__(self, planned: PlannedCheck, setting: Setting, forms: Forms) -> None:
        self._planned, self._setting, self._forms = planned, setting, forms
        self._imported = set[str]()
        self._before: Report | None = None

    def go_on(self) -> None:
        note(f"{self._planned.case_line}; Ctrl-C ends it")
        while True:
            begun, before = time.time(), self._stamps()
            try:
                with abandoned_when(lambda: self._stamps() != before):  # noqa: B023
                    checked = self._checked()
            except AbandonedWork:
                pass
            else:
                self._show(checked, time.time() - begun)
                begin_child(IMPORTED_EARLY)
                self._imported = imported(self._planned, checked)
                for file, saved in self._stamps().items():
                    # One that was not known when the check began counts by its time.
                    before.setdefault(file, 0 if saved > begun * 1e9 else saved)
                note(f"waiting for {listed_files([*self._stamps()])} to be saved")
            saved_files = self._saved(before)
            if (rows := terminal().rows) is not None:
                write_as_is("\n" * rows + "\x1b[H\x1b[J")
            note(f"{time.strftime('%H:%M:%S')} {listed_files(saved_files)} saved")

    def _stamps(self) -> Stamps:
        return {file: saved_at(file) for file in sorted(self._imported or beside(self._planned))}

    def _saved(self, before: Stamps) -> list[str]:
        """Once nobody writes any more: an editor may save in several steps."""
        while not (changed := changed_since(before, now := self._stamps())):
            time.sleep(_LOOK)
        until, last_look = time.monotonic() + _MISSING, Stamps()
        while now != last_look or (0 in now.values() and time.monotonic() < until):
            time.sleep(_STILL)
            last_look, now = now, self._stamps()
        return changed_since(before, now) or changed

    def _checked(self) -> CheckOutcome:
        linecache.clearcache()  # of earlier texts
        start, first = time.monotonic(), list[str]()

        def tell_first(so_far: Report) -> None:
            if so_far.runs and not first:
                run, seconds = so_far.runs[0], time.monotonic() - start
                first.append(f"{run.layout}: {run.verdict} ({seconds:.1f} s), the rest follows")
                tick.over(lambda: note(first[0]))

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


def changed_since(before: Stamps, now: Stamps) -> list[str]:
    return [file for file, saved in now.items() if before.get(file) != saved]


def saved_at(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_mtime_ns
    return 0


def beside(planned: PlannedCheck) -> set[str]:
    words = (planned.request.target, planned.request.reference or "")
    places = [place for place in map(_file, words) if place]
    found = set[str]()
    for folder in {Path(place).absolute().parent for place in places} or {Path.cwd()}:
        with contextlib.suppress(OSError):
            found |= {str(each) for each in folder.iterdir() if each.suffix in _SOURCES}
    return found


def _file(word: str) -> str:
    with contextlib.suppress(UsageFailure):
        place, _ = parts_of(word)
        return place if word not in BUILTINS and place.endswith(FILES) else ""
    return ""


def imported(planned: PlannedCheck, checked: CheckOutcome) -> set[str]:
    report = checked.report
    if report.error is not None or not report.runs:
        return set()
    # The target's own may be a link.
    own = os.path.abspath(_file(planned.request.target) or report.target.file)
    return {*report.sources, own} - {""}


def listed_files(paths: Sequence[str]) -> str:
    first, *more = map(os.path.relpath, paths)
    return f"{first} and {len(more)} more" if more else first
