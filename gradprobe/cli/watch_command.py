"""`gradprobe watch`: the check once more at each save, in a process that has imported torch meanwhile."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import time
from collections.abc import Iterable, Sequence
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
# Seconds that a file must stay as it is before it is taken to be saved; for which one that an editor is about to put in
# its place may be missing; and between two looks at what changes with each save.
_STILL, _MISSING, _LOOK = 0.03, 1.0, 0.05


@Command("target family reference timeout fix_budget")
def watch(call: Call) -> int:
    """Check a kernel again each time that its file, or one that it imports, is saved, and say what changed.

    Torch is imported between saves. How the first layout stands is told before the rest. Ctrl-C ends it.
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
    """One check after another, until Ctrl-C."""

    def __init__(self, planned: PlannedCheck, setting: Setting, forms: Forms) -> None:
        self._planned, self._setting, self._forms = planned, setting, forms
        self._files = at_first(planned)
        self._before: Report | None = None
        """The last that compared something."""

    def go_on(self) -> None:
        note(f"{self._planned.case_line}; Ctrl-C ends it")
        while True:
            begun, sources = time.time(), Sources(self._files)
            try:
                with abandoned_when(lambda: bool(sources.changed)):  # noqa: B023
                    checked = self._checked()
            except AbandonedWork:
                saved = sources.settled()
            else:
                self._show(checked, time.time() - begun)
                begin_child(IMPORTED_EARLY)
                saved = self._wait(sources, checked, begun)
            if (rows := terminal().rows) is not None:  # what stood there can be scrolled to
                write_as_is("\n" * rows + "\x1b[H\x1b[J")
            words = f"{listed_files(saved)} saved" if saved else "the same again saved"
            note(f"{time.strftime('%H:%M:%S')} {words}")

    def _checked(self) -> CheckOutcome:
        linecache.clearcache()  # of earlier texts, from which a crash's line would be told
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

    def _wait(self, before: Sources, checked: CheckOutcome, begun: float) -> list[str]:
        """The files that are saved next, or were since the check began."""
        files = imported(self._planned, checked)
        files = files or {*self._files, *at_first(self._planned), *checked.report.sources}
        self._files, waiting = files, Sources(files)
        for file in files:
            # One that was not known when the check began counts by its time.
            unknown = "" if saved_at(file) > begun * 1e9 else waiting.digests[file]
            waiting.digests[file] = before.digests.get(file, unknown)
        own = os.path.abspath(self._planned.request.target.rpartition(":")[0] or ".")
        waited = sorted(files, key=lambda file: (os.path.abspath(file) != own, file))
        note(f"waiting for {listed_files(waited)} to be saved")
        return waiting.wait()


class Sources:
    """Files and folders, and what stands in them now; "" in one that is missing."""

    def __init__(self, files: Iterable[str]) -> None:
        self.digests = {file: digest(file) for file in sorted(files)}

    @property
    def changed(self) -> list[str]:
        """Those that hold something else by now."""
        return [file for file, before in self.digests.items() if digest(file) != before]

    def settled(self) -> list[str]:
        """The same, once nobody writes any more: an editor may save in several steps, with no file there in between."""
        until, before = time.monotonic() + _MISSING, dict[str, str]()
        while (now := Sources(self.digests).digests) != before or (
            any(self.digests[file] and not found for file, found in now.items())
            and time.monotonic() < until
        ):
            before = now
            time.sleep(_STILL)
        return self.changed

    def wait(self) -> list[str]:
        """Those that were saved, as soon as one holds something else. None is read as long as no time is another."""
        before, now = list[int](), list(map(saved_at, self.digests))
        while before == now or not self.changed:
            time.sleep(_LOOK)
            before, now = now, list(map(saved_at, self.digests))
        return self.settled()


def saved_at(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_mtime_ns
    return 0


def digest(path: str) -> str:
    """Of a file what stands in it, of a folder which sources are there."""
    return "\n".join(sorted(_beside(path))) if os.path.isdir(path) else last.digest_of(path)


def at_first(planned: PlannedCheck) -> set[str]:
    """Files of which one is the target's, as far as its words say, and their folders: where nothing was imported."""
    words = (planned.request.target, planned.request.reference or "")
    files = {os.path.abspath(place) for word in words if (place := _file(word))}
    folders = set(map(os.path.dirname, files)) or {os.getcwd()}
    return files.union(folders, *map(_beside, folders))


def _file(word: str) -> str:
    with contextlib.suppress(UsageFailure):
        place, _ = parts_of(word)
        return place if word not in BUILTINS and place.endswith(FILES) else ""
    return ""


def _beside(folder: str) -> set[str]:
    with contextlib.suppress(OSError):
        return {each.path for each in os.scandir(folder) if Path(each.name).suffix in _SOURCES}
    return set()


def imported(planned: PlannedCheck, checked: CheckOutcome) -> set[str]:
    report = checked.report
    if report.error is not None or not report.runs:
        return set()
    # The target's own may be a link.
    own = os.path.abspath(_file(planned.request.target) or report.target.file)
    return {*report.sources, own} - {""}


def listed_files(paths: Sequence[str]) -> str:
    """`my_lazy.py and 2 more`; `a file in kernels` where one has come."""
    files = [os.path.relpath(path) for path in paths if not os.path.isdir(path)]
    first = files[0] if files else f"a file in {os.path.relpath(paths[0])}"
    return f"{first} and {len(files) - 1} more" if len(files) > 1 else first
