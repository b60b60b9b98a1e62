"""How far a command is, on a terminal's stderr and only of work that lasts over two seconds; and its end by Ctrl-C."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..model.failures import Failure

PATIENCE = 2.0  # seconds
KEPT = "what is done is above, and in the files that were asked for, marked as incomplete"
NOTHING = "nothing was done yet"


class Progress:
    """`with Progress() as tick: tick("layout 7 of 24", 6 / 24)`: what is done now, and the share that is done.

    None is work of unknown length: the bar only moves to and fro. The time that is left is told as though what is left
    took as long as what is done, since the share was known.
    """

    def __enter__(self) -> Progress:
        self._stage, self._begun = "starting", (0.0, 0.0)
        self._fraction: float | None = None
        self._at = time.monotonic()
        self._lock = threading.RLock()
        self._bar: Any = None
        self._task: Any = None
        self._over = False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __call__(self, stage: str, fraction: float | None, layout: str = "") -> None:
        with self._lock:
            self._at = time.monotonic()
            if fraction is not None and (self._fraction is None or fraction < self._fraction):
                self._begun = (self._at, fraction)
            self._stage, self._fraction = stage, fraction
            self._update()

    def over(self, write: Callable[[], object]) -> None:
        """Calls what writes to the terminal; the bar is gone meanwhile."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            write()
            if self._bar is not None:
                self._bar.start()

    @property
    def left(self) -> str:
        """Such as `about 2:05 left`; "" where that cannot be known."""
        since, before = self._begun
        if self._fraction is None or not before < self._fraction < 1.0:
            return ""
        for_all = (self._at - since) / (self._fraction - before)
        seconds = for_all * (1.0 - self._fraction) - (time.monotonic() - self._at)
        return "about {}:{:02} left".format(*divmod(max(0, round(seconds)), 60))

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column
        from rich.text import Text

        class Left(ProgressColumn):
            """Written anew at each look of rich, and not at each tick alone."""

            def render(this, task: Any) -> Text:  # noqa: N805
                return Text(self.left, no_wrap=True)

        with self._lock:
            if self._over:
                return
            console = Console(stderr=True)
            # The bar, the times and what is between them take 48 columns, and `^C` is written behind them. Of a narrow
            # terminal the name of what is done now is cut, and never the time.
            narrow = Column(no_wrap=True, overflow="ellipsis", max_width=max(8, console.width - 52))
            name = TextColumn("{task.description}", table_column=narrow, markup=False)
            columns = (SpinnerColumn(), name, BarColumn(16), TimeElapsedColumn(), Left())
            self._bar = Progress(*columns, console=console, transient=True, redirect_stdout=False)
            self._task = self._bar.add_task(self._stage, total=1.0)
            self._bar.start()
            self._update()

    def _update(self) -> None:
        if self._bar is not None and self._task is not None:
            total = None if self._fraction is None else 1.0
            self._bar.update(self._task, description=self._stage, completed=self._fraction or 0.0, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar.stop()


def interrupted(done: int, of: int, things: str, kept: str = KEPT) -> Failure:
    """What Ctrl-C ended, in words, and what it left."""
    return Failure(f"interrupted after {done:,} of {of:,} {things}", kept) if done else Failure("interrupted", NOTHING)
