"""How an item ended: a result, an exception, or a crash of the process that had it; and the words for a crash."""

from __future__ import annotations

import signal
import traceback
from dataclasses import dataclass
from typing import Any

from ..failures import as_failure
from .lines import Line, last_line

CRASH, TIMEOUT, DEVICE, MEMORY = "Crash", "Timeout", "DeviceLost", "NoRoom"
# What the system's own names of signals leave open.
_MEANINGS = {
    signal.SIGKILL: "from outside; most often the system was out of memory",
    signal.SIGABRT: "abort",
    signal.SIGXCPU: "more processor time than its limit",
}


@dataclass(frozen=True)
class Raised:
    """An exception of the worker's. The process that raised it lives on."""

    kind: str
    """The name of its class."""
    message: str
    way_out: str
    """"" where there is none to tell."""
    exit_code: int
    """What the command would end with: 2 for a wrong word, else 3."""
    traceback: str


@dataclass(frozen=True)
class Crash:
    """A process that died, or was stopped, before it answered."""

    kind: str
    """CRASH, TIMEOUT, DEVICE where it lost its GPU, or MEMORY where it took too much, and was stopped."""
    words: str
    """What follows "it was" or "it": "killed by SIGSEGV (segmentation fault)"; of a GPU, its own words."""
    stderr_tail: str
    """The last lines that it wrote, on either stream."""
    seconds: float
    """Since it was given the item, or was started."""
    stack: str = ""
    """Where it was, as Python writes it; "" where it could not say."""

    @property
    def last(self) -> Line | None:
        """The line of a user's that it was at."""
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
    """How a process ended, from its exit code as Popen gives it: negative for a signal."""
    if code >= 0:
        return f"ended with exit code {code} before it answered (os._exit?)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"killed by signal {-code}"
    meaning = _MEANINGS.get(signal.Signals(-code)) or (signal.strsignal(-code) or "").lower()
    return f"killed by {name} ({meaning})"
