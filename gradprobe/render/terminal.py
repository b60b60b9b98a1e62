"""What a person and a pipe see: lines on stdout as wide as the terminal, documents, failures and progress on stderr."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..model.failures import Failure, UsageFailure
from ..model.writing import IN_JSON, inert, replace_file, safe, visible

if TYPE_CHECKING:
    from rich.text import Text


def print_failure(failure: Failure) -> None:
    """A failure and its way out, on stderr; on a terminal folded between words."""
    more = (f"  {line}" for line in (*failure.details, failure.way_out) if line)
    text = visible("\n".join((f"gradprobe: {failure}", *more)))
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns - 1
        fold = textwrap.TextWrapper(
            columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        ).fill
        text = "\n".join(map(fold, text.split("\n")))
    write_stderr(f"{text}\n")


def dump(json_file: str | None, document: dict[str, Any]) -> None:
    """A JSON document in a file, on stdout for -, nowhere for None. A file that was there is never half written.

    Raises:
        UsageFailure: the file cannot be written.
    """
    if json_file is None:
        return
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    try:
        write_stdout(inert(text, IN_JSON)) if json_file == "-" else replace_file(json_file, text)
    except OSError as error:
        raise UsageFailure(f"--json {json_file}: cannot be written, {error.strerror}") from error


@dataclass(frozen=True)
class Terminal:
    """What stdout can show, in so many rows: None where it is no terminal."""

    columns: int
    rows: int | None
    utf8: bool
    details: bool = False
    rest: str = ""
    """The command that shows all of a report, where that is not the same one with --details."""
    is_said: bool = False
    """Whether what ended a check stands there already."""


def terminal() -> Terminal:
    rows = shutil.get_terminal_size().lines if sys.stdout.isatty() else None
    return Terminal(width(), rows, utf8())


def takes_stderr() -> bool:
    """Whether stderr goes to the same terminal, file or pipe as stdout."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # closed, or no file at all
        return False


def width() -> int:
    """Columns of the terminal, or what COLUMNS says."""
    return shutil.get_terminal_size((100, 24)).columns


def utf8() -> bool:
    """Whether stdout takes signs beyond ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def show(lines: list[Text]) -> None:
    """Prints lines as they are: never folded again, in colour only on a terminal that wants it."""
    write_as_is(painted(lines, terminal()))


def plain(lines: list[Text]) -> str:
    """Lines as a string that is shown, without colours."""
    return safe("\n".join(line.plain for line in lines))


def painted(lines: list[Text], on: Terminal) -> str:
    """Lines as they are written, in colour where that terminal wants it and the line is safe to show as it is."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(),  # stdout may be closed, where a target did so
        soft_wrap=True,
        highlight=False,
        force_terminal=None if "FORCE_COLOR" in os.environ else on.rows is not None,
        # rich takes NO_COLOR to leave bold and dim as they are
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
    for line in lines:
        console.print(_safe(line))
    return cast(io.StringIO, console.file).getvalue()


def _safe(line: Text) -> Text:
    from rich.text import Text

    return line if (shown := safe(line.plain)) == line.plain else Text(shown)


def write_stderr(text: str) -> None:
    sys.stderr.write(safe(text))
    sys.stderr.flush()


def note(words: str) -> None:
    write_stderr(f"gradprobe: {words}\n")


def write_stdout(text: str) -> None:
    write_as_is(safe(text))


def write_as_is(text: str) -> None:
    """Writes what is safe already to stdout; a reader that leaves early (`| head -1`) changes no exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


PATIENCE = 2.0  # seconds
KEPT = "the results so far are above, and in the files that were asked for, marked as incomplete"


class Progress:
    """`with Progress() as tick: tick("layout 7 of 24", 6 / 24)`: what is done now, and the share that is done, or None.

    The time that is left is told as though what is left took as long as what is done, since the share was known.

    Args:
        above: lines that stand above the bar, anew at each look; they are gone with it.
        patience: seconds before the bar is shown.
    """

    def __init__(
        self, above: Callable[[], list[Text]] = list, patience: float = PATIENCE
    ) -> None:
        self._above, self._stage = above, "importing torch and the target"
        self._fraction: float | None = None
        self._begun = self._at = time.monotonic()
        self._since = 0.0, 0.0
        self._lock = threading.RLock()
        self._live: Any = None
        self._over = False
        self._timer = threading.Timer(patience, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __call__(self, stage: str, fraction: float | None, layout: str = "") -> None:
        with self._lock:
            self._at = time.monotonic()
            if fraction is not None and (self._fraction is None or fraction < self._fraction):
                self._since = (self._at, fraction)
            self._stage, self._fraction = stage, fraction

    def over(self, write: Callable[[], object]) -> None:
        """Calls what writes to the terminal; the bar is gone meanwhile."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
            write()
            if self._live is not None:
                self._live.start()

    @property
    def time_left(self) -> str:
        """Such as `about 2:05 left`; "" where that cannot be known."""
        since, before = self._since
        if self._fraction is None or not before < self._fraction < 1.0:
            return ""
        for_all = (self._at - since) / (self._fraction - before)
        seconds = for_all * (1.0 - self._fraction) - (time.monotonic() - self._at)
        return "about {}:{:02} left".format(*divmod(max(0, round(seconds)), 60))

    def _show(self) -> None:
        from rich.console import Console
        from rich.live import Live

        with self._lock:
            if self._over:
                return
            self._live = Live(
                console=Console(stderr=True), get_renderable=self._rendered, transient=True, redirect_stdout=False
            )  # fmt: skip
            self._live.start()

    def _rendered(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        total = None if self._fraction is None else 1.0  # the bar of None only moves to and fro
        bar = ProgressBar(total=total, completed=self._fraction or 0.0, width=16)
        took = "{}:{:02}".format(*divmod(int(time.monotonic() - self._begun), 60))
        # Of a narrow terminal the name of what is done now is cut, and never the time; `^C` is written behind it.
        room = max(8, width() - 48)
        line = Table.grid(padding=(0, 1))
        line.add_column(no_wrap=True, overflow="ellipsis", max_width=room)
        line.add_row(safe(self._stage), bar, took, self.time_left)
        return Group(*map(_safe, self._above()), line)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._live is not None:
                self._live.stop()


def interrupted(done: int, total: int, things: str, kept: str = KEPT) -> Failure:
    """What Ctrl-C ended, in words, and what it left."""
    if not done:
        return Failure("interrupted", "nothing was done yet")
    return Failure(f"interrupted after {done:,} of {total:,} {things}", kept)
