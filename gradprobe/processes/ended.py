"""How an item ended: with a result, an exception, or a crash of its process."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import linecache
import os
import re
import signal
import sysconfig
import traceback
from dataclasses import dataclass
from typing import Any

from ..model import failures
from ..model.failures import Failure, as_failure

CRASH, TIMEOUT, DEVICE, MEMORY = "Crash", "Timeout", "DeviceLost", "NoRoom"
# The meaning of signals whose names do not say enough.
_MEANINGS = {
    signal.SIGKILL: "from outside; most often the system was out of memory",
    signal.SIGABRT: "abort",
    signal.SIGXCPU: "more processor time than its limit",
}


@dataclass(frozen=True)
class WorkerException:
    kind: str
    message: str
    way_out: str
    exit_code: int
    traceback: str
    details: tuple[str, ...] = ()

    @property
    def failure(self) -> Failure:
        made: type[Failure] = getattr(failures, self.kind, Failure)
        return made(self.message, self.way_out, self.details)


@dataclass(frozen=True)
class Crash:
    # CRASH, TIMEOUT, DEVICE where it lost its GPU, or MEMORY where it was stopped for taking too much.
    kind: str
    words: str  # `killed by SIGSEGV (segmentation fault)`; of a lost GPU, the driver's message
    stderr_tail: str  # the last lines that it wrote to stdout or stderr
    seconds: float  # the time since it was given the item or was started
    stack: str = ""  # as Python writes it

    @property
    def last(self) -> EndedLine | None:
        return last_line(self.stack)

    @property
    def where(self) -> str:
        """`, last at attention.py:37 in kernel: x = tl.load(ptr)`; "" where that is not known."""
        return f", last at {self.last.sentence}" if self.last else ""


@dataclass(frozen=True)
class TaskResult:
    """Where `crash` and `raised` are both None, `result` is what the worker returned."""

    item: Any
    index: int
    result: Any | None = None
    crash: Crash | None = None
    raised: WorkerException | None = None

    @property
    def why(self) -> str:
        return self.crash.words if self.crash else self.raised.message if self.raised else ""


def raised_of(error: BaseException) -> WorkerException:
    failure, trace = as_failure(error), "".join(traceback.format_exception(error))
    of = (failure.way_out, failure.exit_code, trace, failure.details)
    return WorkerException(type(failure).__name__, str(failure), *of)


def words_of(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code} before it answered (os._exit?)"
    if -code not in {*signal.Signals}:
        return f"killed by signal {-code}"
    number = signal.Signals(-code)
    meaning = _MEANINGS.get(number) or (signal.strsignal(number) or "").lower()
    return f"killed by {number.name} ({meaning})"


_HEAD = re.compile(r"^(?:(Current thread|Stack)|Thread\b).*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
# Libraries that run a user's kernel.
_LIBRARIES = ("torch", "triton", "numpy")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The parts of this package that are targets like any other.
_TARGETS = os.path.join(_PACKAGE, "kernels"), os.path.join(_PACKAGE, "targets", "adapters")


@dataclass(frozen=True)
class EndedLine:
    file: str
    line: int
    function: str
    code: str  # its text; "" where the file cannot be read

    @property
    def sentence(self) -> str:
        """`attention.py:37 in kernel: x = tl.load(ptr)`."""
        told = min(os.path.relpath(self.file), self.file, key=len)
        return f"{told}:{self.line} in {self.function}" + (f": {self.code}" if self.code else "")


def last_line(written: str) -> EndedLine | None:
    """The user's innermost line in what a process wrote: in its last stack, and that of the thread that failed."""
    stacks = list[tuple[bool, list[EndedLine]]]()
    for line in written.splitlines():
        head, frame = _HEAD.match(line), _FRAME.match(line)
        if head:
            stacks.insert(0, (head[1] is None, []))
        elif frame and stacks and is_users(frame[1]):
            code = linecache.getline(frame[1], int(frame[2])).strip()
            stacks[0][1].append(EndedLine(frame[1], int(frame[2]), frame[3], code))
    lines = (lines for _, lines in sorted(stacks, key=lambda stack: stack[0]))
    return next(itertools.chain(*lines), None)


@functools.cache  # a check asks of every module that there is
def is_users(file: str) -> bool:
    """Whether a file is none of Python's, the libraries' that run kernels, or this tool's."""
    if file.startswith("<") or _lies_in(file, *_libraries()):
        return False
    if _lies_in(file, _PACKAGE):
        return _lies_in(file, *_TARGETS)
    paths = sysconfig.get_paths()
    is_installed = _lies_in(file, paths["purelib"], paths["platlib"]) or "-packages" in file
    return is_installed or not _lies_in(file, paths["stdlib"], paths["platstdlib"])


def is_edited(file: str) -> bool:
    """Whether somebody who writes a kernel may edit a file."""
    return is_users(file) and "-packages" not in file and not _lies_in(file, _PACKAGE)


@functools.cache
def _libraries() -> list[str]:
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    return [os.path.dirname(spec.origin) for spec in specs if spec is not None and spec.origin]


def _lies_in(file: str, *folders: str) -> bool:
    return any(file.startswith(folder + os.sep) for folder in folders)
