"""`torchrun -m gradprobe check`: rank 0 checks and reports, all ranks work for it, and all end with its code."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import typer

from ..model.failures import Failure, UsageFailure
from ..runtime.ranks.rank import CODE, FOLDER, PARENT, is_led, serve

# What torchrun says to each of its processes. None of it may reach the process that checks: it is no rank.
_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
# Seconds in which rank 0 starts, and in which the others take note of its exit code.
_STARTED, _NOTED = 120.0, 5.0


def world_size() -> int | None:
    """Of how many ranks this process is one; None where torchrun did not start it, or not more than one."""
    size = os.environ.get("WORLD_SIZE", "") if "RANK" in os.environ else ""
    return int(size) if size.isdigit() and int(size) > 1 else None


def _folder() -> Path:
    """What the ranks of one machine have in common: all of them are children of one launcher."""
    return Path(tempfile.gettempdir(), f"gradprobe-ranks-{os.getuid()}-{os.getppid()}")


def refuse_several_machines(size: int, ranks: int | None) -> None:
    """Refuses ranks that cannot be reached, or are not as many as are asked for.

    Raises:
        UsageFailure: they are.
    """
    local = os.environ.get("LOCAL_WORLD_SIZE", str(size))
    if local != str(size):
        raise UsageFailure(f"torchrun: {size} ranks on several machines", "check as many as one machine holds")
    if ranks not in (None, size):
        raise UsageFailure(f"--ranks {ranks}: torchrun started {size}", "drop --ranks")


def follow() -> int:
    """Works as any rank but 0, until that has come to its exit code; which it returns."""
    folder, over = _folder(), time.monotonic() + _STARTED
    while not is_led(str(folder)):
        if time.monotonic() > over:
            return Failure.exit_code
        time.sleep(0.05)
    with contextlib.redirect_stdout(sys.stderr):
        serve(str(folder))
    over = time.monotonic() + _NOTED
    while not (folder / CODE).exists() and time.monotonic() < over and (folder / PARENT).exists():
        time.sleep(0.05)
    try:
        code = int((folder / CODE).read_text())
        (folder / f"left.{os.environ['RANK']}").touch()
    except (OSError, ValueError):
        return Failure.exit_code
    return code


@contextlib.contextmanager
def leading(size: int) -> Iterator[None]:
    """While open, ranks work for the check that is made in here. The exit code with which it ends is told to them."""
    folder, code = _folder(), Failure.exit_code
    shutil.rmtree(folder, ignore_errors=True)  # of an older launcher with this one's number
    made = Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))
    (made / PARENT).write_text(str(os.getpid()))
    made.rename(folder)
    own = multiprocessing.get_context("spawn").Process(target=serve, args=(str(folder),), daemon=True)
    own.start()
    for name in list(os.environ):
        if name in _OF_TORCHRUN or name.startswith("TORCHELASTIC_"):
            del os.environ[name]
    os.environ[FOLDER] = str(folder)
    try:
        yield
    except typer.Exit as ended:
        code = ended.exit_code
        raise
    finally:
        (folder / "code.new").write_text(str(code))
        (folder / "code.new").rename(folder / CODE)
        over = time.monotonic() + _NOTED
        while len(list(folder.glob("left.*"))) < size - 1 and time.monotonic() < over:
            time.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)
