"""Executables: programs that are run by their command, several at a time, and ended with all that they started."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..model.failures import UsageFailure
from .each import run_each
from .process import MARK, search_path

# The folder that goes onto PYTHONPATH for what runs inside programs that gradprobe starts.
STARTUP = Path(__file__).resolve().parent / "startup"
_TAIL = 1 << 20
# Not -m: a file in the current folder with the name of a standard module would be imported in its place.
_START_PROGRAM = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); from gradprobe.cli import main; "
    "sys.argv[0] = 'gradprobe'; main()"
)


def gradprobe_command(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", _START_PROGRAM, json.dumps(search_path()), *words)


@dataclass(frozen=True)
class Program:
    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class EndedProgram:
    number: int
    code: int | None  # as Popen gives it; None where it was late and was stopped
    seconds: float
    output: str  # the end of what it wrote to stdout and stderr; "" where it was stopped


def run_programs(
    programs: Sequence[Program], *, timeout: float | None = None, workers: int = 1
) -> Iterator[EndedProgram]:
    """Yields each program's end as it comes, or raises UsageFailure; closed, it leaves none running."""
    factory = f"{__name__}:ProgramWorker"
    for ended in run_each(factory, None, programs, timeout=timeout, workers=workers):
        if ended.raised is not None:
            raise ended.raised.failure
        late = (None, ended.crash.seconds if ended.crash else 0.0, "")
        yield EndedProgram(ended.index, *(ended.result or late))


class ProgramWorker:
    """Runs a program in a process group of its own, which is killed when it has ended."""

    def __init__(self, setup: None) -> None: ...

    def __call__(self, program: Program) -> tuple[int, float, str]:
        start = time.monotonic()
        # Marked, so that it is ended with this process.
        environment = {**program.environment, MARK: os.environ[MARK]}
        # A file, since what it leaves in the background may hold a pipe open.
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    program.command, env=environment, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                )  # fmt: skip
            except OSError as error:
                words = f"{shlex.join(program.command)}: cannot be started, {error.strerror}"
                raise UsageFailure(words) from error
            code = process.wait()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL))
            written = output.read().decode(errors="replace")
        return code, time.monotonic() - start, written
