"""`gradprobe watch`: the check once more at each save, in a process that has imported torch meanwhile."""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
        digests = {file: before[file] for file in files & before.keys()}
        for file in (
            files - before.keys()
        ):  # not known when the check began, it counts by its time
            saved_at = os.stat(file).st_mtime if os.path.exists(file) else 0.0
            digests[file] = "" if saved_at > begun else digest(file)
        self._sources = Sources(digests)
        own = os.path.abspath(self._planned.request.target.rpartition(":")[0] or ".")
        waited = sorted(files, key=lambda file: (os.path.abspath(file) != own, file))
        note(f"waiting for {listed_files(waited)} to be saved")
        return self._sources.wait()


@dataclass(frozen=True)
class Sources:
    digests: Mapping[str, str]
    """Of files and folders what stood in them; "" of one that is missing."""

    @classmethod
    def of(cls, files: Iterable[str]) -> Sources:
        return cls({file: digest(file) for file in sorted(files)})

    @property
    def changed(self) -> list[str]:
        """Those that hold something else by now."""
        return [file for file, before in self.digests.items() if digest(file) != before]

    def settled(self) -> list[str]:
        """The same, once nobody writes any more: an editor may save in several steps, with no file there in between."""
        until, last_seen = time.monotonic() + _MISSING, None
        while (now := Sources.of(self.digests)) != last_seen or (
            now._lacks(self) and time.monotonic() < until
        ):
            last_seen = now
            time.sleep(_STILL)
        return self.changed

    def _lacks(self, before: Sources) -> bool:
        return any(before.digests[file] and not found for file, found in self.digests.items())

    def wait(self) -> list[str]:
        """Those that were saved, as soon as one holds something else."""
        before, now = "", self._stamps()
        while before == now or not self.changed:
            time.sleep(_LOOK)
            before, now = now, self._stamps()
        return self.settled()

    def _stamps(self) -> str:
        """What changes with each save, without reading any."""
        found = []
        for path in self.digests:
            with contextlib.suppress(OSError):
                stat = os.stat(path)
                found.append((path, stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return str(found)


def digest(path: str) -> str:
    """Of a file what stands in it, of a folder which sources are there."""
    try:
        is_folder = os.path.isdir(path)
        names = "\n".join(sorted(_beside(path))) if is_folder else ""
        return hashlib.sha256(names.encode() or Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def at_first(planned: PlannedCheck) -> set[str]:
    """Files of which one is the target's, as far as its words say, and their folders: where nothing was imported."""
    words = (planned.request.target, planned.request.reference or "")
    files = {os.path.abspath(place) for word in words if (place := _file(word))}
    folders = {os.path.dirname(file) for file in files} or {os.getcwd()}
    return files.union(folders, *map(_beside, folders))


def _file(word: str) -> str:
    with contextlib.suppress(UsageFailure):
        place, _ = parts_of(word)
        return place if word not in BUILTINS and place.endswith(FILES) else ""
    return ""


def _beside(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if Path(entry.name).suffix in _SOURCES:
                yield entry.path


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
