"""What a person and a pipe see: lines and documents on stdout, failures and progress on stderr."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..model.failures import Failure, UsageFailure
from ..model.writing import IN_JSON, inert, replace_file, safe

if TYPE_CHECKING:
    from rich.text import Text


# The signs of notation.py where stdout takes no others than ASCII's, each one character.
_IN_ASCII = str.maketrans("✗↳×·░▒▓█", "!~x.-+*#")


def print_failure(failure: Failure) -> None:
    more = (f"  {line}" for line in (*failure.details, failure.way_out) if line)
    write_stderr("\n".join((f"gradprobe: {failure}", *more, "")))


def dump(json_file: str | None, document: dict[str, Any]) -> None:
    """A JSON document in a file, on stdout for -, nowhere for None. Raises UsageFailure: it cannot be written."""
    if json_file is None:
        return
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    try:
        write_stdout(inert(text, IN_JSON)) if json_file == "-" else replace_file(json_file, text)
    except OSError as error:
        raise UsageFailure(f"--json {json_file}: cannot be written, {error.strerror}") from error


@dataclass(frozen=True)
class Terminal:
    columns: int
    rows: int | None
    utf8: bool
    details: bool = False
    rest: str = ""
    """The command that shows all, where --details does not."""
    is_said: bool = False


def terminal() -> Terminal:
    rows = shutil.get_terminal_size().lines if sys.stdout.isatty() else None
    return Terminal(width(), rows, utf8())


def takes_stderr() -> bool:
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False


def width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def show(lines: list[Text]) -> None:
    write_as_is(painted(lines, terminal()))


def plain(lines: list[Text]) -> str:
    return safe("\n".join(line.plain for line in lines))


def painted(lines: list[Text], on: Terminal) -> str:
    from rich.console import Console

    console = Console(
        file=io.StringIO(),  # a target may close stdout
        soft_wrap=True,
        highlight=False,
        force_terminal=None if "FORCE_COLOR" in os.environ else on.rows is not None,
        # rich takes NO_COLOR to leave bold and dim as they are
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
    for line in lines:
        console.print(_safe(line, on.utf8))
    return cast(io.StringIO, console.file).getvalue()


def _safe(line: Text, utf8: bool = True) -> Text:
    from rich.text import Text

    shown = safe(line.plain)
    line = line.copy() if shown == line.plain else Text(shown)
    if not utf8:
        line.plain = line.plain.translate(_IN_ASCII)
    return line


def write_stderr(text: str) -> None:
    sys.stderr.write(safe(text))
    sys.stderr.flush()


def note(words: str) -> None:
    write_stderr(f"gradprobe: {words}\n")


def write_stdout(text: str) -> None:
    write_as_is(safe(text))


def write_as_is(text: str) -> None:
    """A reader that leaves early (`| head -1`) changes no exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


PATIENCE = 2.0  # seconds
KEPT = "the results so far are above, and in the files that were asked for, marked as incomplete"


class Progress:
    """`with Progress() as tick: tick("layout 7 of 24", 6 / 24)`, shown after `patience` seconds."""

    def __init__(self, patience: float = PATIENCE) -> None:
        begun = "importing torch and the target"
        self._stage: dict[str, Any] = {"description": begun, "total": None}
        self._lock = threading.RLock()
        self._bar: Any = None
        self._over = False
        self._timer = threading.Timer(patience, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __call__(self, stage: str, fraction: float | None, layout: str = "") -> None:
        # The bar of None only moves to and fro.
        total, done = (None, 0.0) if fraction is None else (1.0, fraction)
        with self._lock:
            self._stage = {"description": safe(stage), "total": total, "completed": done}
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], **self._stage)

    def over(self, write: Callable[[], object]) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            write()
            if self._bar is not None:
                self._bar.start()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        # Of a narrow terminal the name of what is done now is cut, and never the time; `^C` is written behind it.
        name = Column(no_wrap=True, overflow="ellipsis", max_width=max(8, width() - 32))
        stage = TextColumn("{task.description}", markup=False, table_column=name)
        with self._lock:
            if not self._over:
                console = Console(stderr=True)
                self._bar = Bar(stage, BarColumn(16), TimeElapsedColumn(), console=console, transient=True,
                                redirect_stdout=False)  # fmt: skip
                self._bar.add_task(**self._stage)
                self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar.stop()


def interrupted(done: int, total: int, things: str, kept: str = KEPT) -> Failure:
    if not done:
        return Failure("interrupted", "nothing was done yet")
    return Failure(f"interrupted after {done:,} of {total:,} {things}", kept)
