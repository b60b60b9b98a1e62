"""The `gradprobe` command for tests: in this process, in a process of its own, and on a terminal."""

import inspect
import json
import os
import pty
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from gradprobe.cli import app

ROOT = Path(__file__).resolve().parents[2]
# Before click 8.2 the two streams are one unless told otherwise.
_APART = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
SMALL = "--batch 1 --heads 2 --seqlen 20 --head-dim 8"


@dataclass(frozen=True)
class EndedProgram:
    code: int
    out: str
    err: str

    @property
    def first_mismatches(self) -> list[str]:
        return [line for line in self.out.splitlines() if line.startswith("FIRST MISMATCH ")]


def run(words: str, **environment: str) -> EndedProgram:
    """The command in this process, as on a pipe, and its target too: tests of processes use `run_process`."""
    words = words if isinstance(words, list) else words.split()
    environment = {"COLUMNS": "100", "GRADPROBE_ISOLATE": "0", **environment}
    result = CliRunner(**_APART).invoke(app, words, prog_name="gradprobe", env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return EndedProgram(result.exit_code, result.stdout, result.stderr)


def checked(words: str) -> tuple[int, Any]:
    """The exit code of a check in this process, and its report."""
    ran = run(f"check {words} --json -")
    return ran.code, json.loads(ran.out)


def _environment(changes: dict[str, str]) -> dict[str, str]:
    screen = ("COLUMNS", "NO_COLOR", "FORCE_COLOR")
    inherited = {name: value for name, value in os.environ.items() if name not in screen}
    others = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join(dict.fromkeys([str(ROOT), *others]))
    own = {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
    return {**inherited, **own, **changes}


def start(words: str, stderr: int = subprocess.PIPE, **changes: str) -> subprocess.Popen[bytes]:
    """The command in a process of its own, its streams in pipes; with STDOUT for stderr in one."""
    return subprocess.Popen(
        [sys.executable, "-m", "gradprobe", *words.split()], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=stderr, env=_environment(changes),
    )  # fmt: skip


def run_process(words: str, **changes: str) -> EndedProgram:
    """The command in a process of its own; bytes that are not UTF-8 are an error."""
    with start(words, **changes) as process:
        out, err = process.communicate(timeout=120)
    return EndedProgram(process.returncode, out.decode(), err.decode())


def run_on_terminal(
    words: str, columns: int = 80, *, bar: bool = True, **changes: str
) -> EndedProgram:
    """The command on a terminal of `columns` columns, to which both streams go; without `bar` only stdout."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "gradprobe", *words.split()], stdin=theirs, stdout=theirs,
        stderr=theirs if bar else subprocess.DEVNULL,
        env={"TERM": "xterm-256color", **_environment(changes)},
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = _read_all(ours)
    return EndedProgram(process.returncode, seen.decode().replace("\r\n", "\n"), "")


def _read_all(descriptor: int) -> bytes:
    """Everything until the other end closes, which a terminal tells by an error."""
    seen, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(descriptor)
    return seen
