"""A progress bar on stderr, only on a terminal and only for work that lasts over two seconds."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

PATIENCE = 2.0  # seconds


class Progress:
    """`with Progress() as tick: tick("comparing", 0.5)`."""

    def __enter__(self) -> Progress:
        self._stage, self._fraction = "starting", 0.0
        self._lock = threading.Lock()
        self._bar: Any = None
        self._task: Any = None
        self._over = False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __call__(self, stage: str, fraction: float, layout: str = "") -> None:
        with self._lock:
            self._stage, self._fraction = stage, fraction
            self._update()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._over:
                return
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._stage, total=1.0)
            self._bar.start()
            self._update()

    def _update(self) -> None:
        if self._bar is not None and self._task is not None:
            # A target's own run has no known length: its bar only moves to and fro.
            total = None if self._fraction == 0.0 else 1.0
            self._bar.update(self._task, description=self._stage, completed=self._fraction, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar.stop()
