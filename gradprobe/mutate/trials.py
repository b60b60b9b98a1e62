"""Programs run several at a time, each on a copy of its own and stopped when it is late."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..failures import UsageFailure
from .gate import Gate
from .shadow import Shadow

_LOOK = 0.02  # seconds between two looks at what runs
_TAIL = 1 << 16


@dataclass(frozen=True)
class Ran:
    """A gate's program that is over."""

    number: int
    """Its place among those that were to run."""
    code: int | None
    """As Popen gives it; None where it was stopped because it was late."""
    seconds: float
    output: str
    """The end of what it wrote, on either stream."""


@dataclass(eq=False)
class _Program:
    number: int
    shadow: Shadow
    process: subprocess.Popen[bytes]
    since: float

    def stop(self) -> None:
        """Kills it, with all that it started in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run_all(gate: Gate, shadows: Sequence[Shadow], *, timeout: float | None, workers: int) -> Iterator[Ran]:
    """Each program's end, as it comes. When the iterator is over or closed, none lives on.

    Raises:
        UsageFailure: the command cannot be started.
    """
    left, running = deque(enumerate(shadows)), list[_Program]()
    try:
        while left or running:
            while left and len(running) < workers:
                running.append(_started(gate, *left.popleft()))
            over = [(program, ran) for program in running if (ran := _over(program, timeout)) is not None]
            for program, _ in over:
                running.remove(program)
            yield from (ran for _, ran in over)
            if not over:
                time.sleep(_LOOK)
    finally:
        for program in running:
            program.stop()


def _started(gate: Gate, number: int, shadow: Shadow) -> _Program:
    with shadow.output.open("wb") as output:
        try:
            process = subprocess.Popen(
                gate.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=shadow.environment({**os.environ, "COLUMNS": "120"}), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise UsageFailure(f"{gate.words}: cannot be started, {error.strerror}") from error
    return _Program(number, shadow, process, time.monotonic())


def _over(program: _Program, timeout: float | None) -> Ran | None:
    """How a program ended; None while it runs and has time left."""
    code, seconds = program.process.poll(), time.monotonic() - program.since
    if code is None and (timeout is None or seconds < timeout):
        return None
    program.stop()  # what it started may live on
    with program.shadow.output.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL))
        output = stream.read().decode(errors="replace")
    return Ran(program.number, code, seconds, output)
