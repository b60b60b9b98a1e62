"""How an item ended: with a result, an exception, or a crash of its process; and the words for a crash."""

from __future__ import annotations

import signal
import traceback
from dataclasses import dataclass
from typing import Any

from ..failures import as_failure
from .lines import Line, last_line

CRASH, TIMEOUT, DEVICE, MEMORY = "Crash", "Timeout", "DeviceLost", "NoRoom"
# The meaning of signals whose names do not say enough.
_MEANINGS = {
    signal.SIGKILL: "from outside; most often the system was out of memory",
    signal.SIGABRT: "abort",
    signal.SIGXCPU: "more processor time than its limit",
}


@dataclass(frozen=True)
class Raised:
    """An exception of the worker. The process that raised it lives on."""

    kind: str
    """The name of its class."""
    message: str
    way_out: str
    """"" where there is none."""
    exit_code: int
    """The command's exit code: 2 for wrong usage, else 3."""
    traceback: str


@dataclass(frozen=True)
class Crash:
    """A process that died, or was stopped, before it answered."""

    kind: str
    """CRASH, TIMEOUT, DEVICE where it lost its GPU, or MEMORY where it was stopped for taking too much."""
    words: str
    """What happened, such as "killed by SIGSEGV (segmentation fault)"; for a lost GPU, the driver's message."""
    stderr_tail: str
    """The last lines that it wrote to stdout or stderr."""
    seconds: float
    """The time since it was given the item or was started."""
    stack: str = ""
    """Its stack, as Python writes it; "" where it could not be had."""

    @property
    def last(self) -> Line | None:
        """The innermost line of the user's code that it was running."""
        return last_line(self.stack)

    @property
    def where(self) -> str:
        """`, last at attention.py:37 in kernel: x = tl.load(ptr)`; "" where that is not known."""
        return f", last at {self.last.words}" if self.last else ""


@dataclass(frozen=True)
class Ended:
    """An item that is over. Where `crash` and `raised` are both None, `result` is what the worker returned."""

    item: Any
    index: int
    """Its place among the items, from 0."""
    result: Any | None = None
    crash: Crash | None = None
    raised: Raised | None = None

    @property
    def why(self) -> str:
        """Why there is no result; "" where there is one."""
        return self.crash.words if self.crash else self.raised.message if self.raised else ""


def raised_of(error: BaseException) -> Raised:
    """An exception as a value that any process can read."""
    failure = as_failure(error)
    return Raised(
        kind=type(failure).__name__,
        message=str(failure),
        way_out=failure.way_out,
        exit_code=failure.exit_code,
        traceback="".join(traceback.format_exception(error)),
    )


def words_of(code: int) -> str:
    """How a process ended, from its exit code as Popen gives it, where a negative one is a signal."""
    if code >= 0:
        return f"ended with exit code {code} before it answered (os._exit?)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"killed by signal {-code}"
    meaning = _MEANINGS.get(signal.Signals(-code)) or (signal.strsignal(-code) or "").lower()
    return f"killed by {name} ({meaning})"
