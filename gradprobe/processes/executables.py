"""Executables: programs that are run by their command, several at a time, and ended with all that they started."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from ..model.failures import UsageFailure

_POLL = 0.02  # seconds between two looks at what runs
_TAIL = 1 << 20
# Not -m: a file in the current folder with the name of a standard module would be imported in its place.
_START_PROGRAM = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); from gradprobe.cli import main; "
    "sys.argv[0] = 'gradprobe'; main()"
)


def gradprobe_command(*words: str) -> tuple[str, ...]:
    """The command that runs this gradprobe in this Python, with the same search path."""
    path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
    return (sys.executable, "-c", _START_PROGRAM, path, *words)


@dataclass(frozen=True)
class Program:
    """A command and its environment."""

    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class EndedProgram:
    """A program that has ended."""

    number: int
    """Its index among the programs."""
    code: int | None
    """Its exit code as Popen gives it; None where it was late and was stopped."""
    seconds: float
    output: str
    """The end of what it wrote to stdout and stderr."""


def run_programs(
    programs: Sequence[Program],
    *,
    timeout: float | None = None,
    workers: int = 1,
    grouped: bool = True,
) -> Iterator[EndedProgram]:
    """Yields each program's end as it comes. When the iterator is closed, no program is left running.

    Args:
        timeout: seconds for one program; None for no limit.
        grouped: whether each program gets a process group, which is killed with it. A worker of `run_each` says no:
            its programs must die with the worker's own group.

    Raises:
        UsageFailure: a command cannot be started.
    """
    left, running = deque(enumerate(programs)), list[_ChildProgram]()
    try:
        while left or running:
            while left and len(running) < workers:
                running.append(_started(*left.popleft(), grouped))
            over = [(one, ran) for one in running if (ran := one.ran(timeout)) is not None]
            for child, _ in over:
                running.remove(child)
            yield from (ran for _, ran in over)
            if not over:
                time.sleep(_POLL)
    finally:
        for child in running:
            with child.output:
                child.stop()


@dataclass(eq=False)
class _ChildProgram:
    number: int
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    since: float
    grouped: bool

    def ran(self, timeout: float | None) -> EndedProgram | None:
        """How the program ended; None while it runs and has time left."""
        code, seconds = self.process.poll(), time.monotonic() - self.since
        if code is None and (timeout is None or seconds < timeout):
            return None
        with self.output:
            self.stop()
            self.output.seek(max(0, self.output.seek(0, os.SEEK_END) - _TAIL))
            return EndedProgram(
                self.number, code, seconds, self.output.read().decode(errors="replace")
            )

    def stop(self) -> None:
        """Kills the program and, where it has a group, what it started, which may outlive the program itself."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.grouped:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()


def _started(number: int, program: Program, grouped: bool) -> _ChildProgram:
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it has been read
    command, environment = list(program.command), dict(program.environment)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=grouped,
        )
    except OSError as error:
        output.close()
        raise UsageFailure(
            f"{shlex.join(command)}: cannot be started, {error.strerror}"
        ) from error
    return _ChildProgram(number, process, output, time.monotonic(), grouped)


def run_in_foreground(
    command: Sequence[str], environment: Mapping[str, str], *, quiet: bool
) -> int:
    """Runs a user's command on this terminal, and returns its exit code as Popen gives it.

    The first Ctrl-C belongs to the command: it is waited for until it ends.

    Args:
        quiet: its stdout goes to stderr.
    """
    process = subprocess.Popen(list(command), env=dict(environment), stdout=2 if quiet else None)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return process.wait()
