"""Forks of this process, a few at a time, each for one piece of work: what ends one of them ends nothing else."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import pickle
import resource
import selectors
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from .child import dies_with_parent, heard_by

# How much longer than a fork may compute it may take in all, where others have the processors.
_PATIENCE = 10
CROWDED: set[int] = set()
"""The process, where others beside it have the cores: a fork, or one of several that run tests."""
Done = TypeVar("Done")


def may_fork() -> bool:
    """Whether a fork can work beside this process: not where it holds a GPU, where macOS has threads, in a fork.

    Nor beside JAX, whose threads hold locks that no fork lets go.
    """
    torch = sys.modules.get("torch")
    holds_gpu = torch is not None and torch.cuda.is_initialized()
    is_apart = "jaxlib" not in sys.modules and os.getpid() not in CROWDED
    return sys.platform == "linux" and not holds_gpu and is_apart


class ParallelWork(Generic[Done]):
    """Work that a fork does while this process goes on."""

    def __init__(
        self,
        work: Callable[[], Done],
        *,
        is_waited_for: bool = False,
        computes: int | None = None,
    ) -> None:
        """`is_waited_for` and `computes` as of `Forks`."""
        self._work, self._answer = work, b""
        self.done: tuple[Done] | None = None
        """What it returned; None before, and where it came to no end."""
        self.is_over, self.since = False, time.monotonic()
        self.descriptor, writing = os.pipe()
        is_crowded = not is_waited_for or os.getpid() in CROWDED
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of threads, which a fork has none of: what they do here it does not wait for.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process = os.fork()
        if self.process == 0:
            os.close(self.descriptor)
            if is_crowded:
                CROWDED.add(os.getpid())
            if computes is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (computes, computes))
            _run(work, writing)
        os.close(writing)

    def result(self) -> Done:
        """What it returned; where the fork came to no end, it is done here."""
        self._wait(None)
        return self._work() if self.done is None else self.done[0]

    def answer(self, seconds: float) -> Done | None:
        """What it returned; None where the fork came to no end, or to none in so many seconds more."""
        self._wait(time.monotonic() + seconds)
        return None if self.done is None else self.done[0]

    def _wait(self, until: float | None) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.descriptor, selectors.EVENT_READ)
            while not self.is_over:
                left = None if until is None else max(0.0, until - time.monotonic())
                self.hear() if selector.select(left) else self.end()

    def hear(self) -> None:
        """Reads what has come of its answer; behind the last piece it is over."""
        piece = os.read(self.descriptor, 1 << 16)
        self._answer += piece
        if not piece:
            self.end()

    def end(self) -> None:
        """Kills the fork, whose answer is what has come by now."""
        if self.is_over:
            return
        self.is_over = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        os.close(self.descriptor)
        # Where a target ignores SIGCHLD or waits for all children, it is gone.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            self.done = (pickle.loads(self._answer),)

    def __enter__(self) -> ParallelWork[Done]:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _run(work: Callable[[], Any], writing: int) -> NoReturn:
    """The fork's own life: it says nothing to anybody but through its pipe, and leaves without any clean-up."""
    with contextlib.suppress(BaseException):
        faulthandler.disable()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
        dies_with_parent()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        sys.stdout = sys.stderr = os.fdopen(nowhere, "w")
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)  # a fork has none of the threads that OpenMP waits for
        with heard_by(lambda value: None):
            answer = pickle.dumps(work())
        while answer:
            answer = answer[os.write(writing, answer) :]
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


@dataclass(eq=False)
class _Work:
    key: Any
    do: Callable[[], Any]
    fork: ParallelWork[Any] | None = None
    """None before it is begun."""

    @property
    def is_over(self) -> bool:
        return self.fork is not None and self.fork.is_over


class Forks:
    """Work that waits, and the forks that do it."""

    def __init__(
        self, at_once: int, *, is_waited_for: bool = False, computes: int | None = None
    ) -> None:
        """Args:
        is_waited_for: whether this process does nothing meanwhile, so that a fork may have forks of its own.
        computes: the seconds of a processor that one fork may take. They are the same on a busy machine, where a
            fork is waited for `_PATIENCE` times as long.
        """
        self._is_waited_for, self._at_once, self._computes = is_waited_for, at_once, computes
        self._longest = math.inf if computes is None else _PATIENCE * computes
        self._works: deque[_Work] = deque()
        """All whose answers were not given, in order."""

    def __len__(self) -> int:
        """How many answers are still to be given."""
        return len(self._works)

    def add(self, key: Any, work: Callable[[], Any]) -> None:
        """Has the work done in a fork, at once or as soon as there is room."""
        self._works.append(_Work(key, work))
        self._start()

    def answers(self, until: float) -> Iterator[tuple[Any, Any]]:
        """(key, what its work returned) in the order of the work; None of one that raised, crashed, or did not end.

        Ends when nothing is left, or at a time by `time.monotonic`.
        """
        while self._works and (self._works[0].is_over or time.monotonic() < until):
            fork = self._works[0].fork
            if fork is not None and fork.is_over:
                yield self._works.popleft().key, None if fork.done is None else fork.done[0]
            else:
                self._start()
                self._hear(until)

    def _start(self) -> None:
        for work in self._works:
            if len(self._running) >= self._at_once:
                return
            if work.fork is None:
                work.fork = ParallelWork(
                    work.do, is_waited_for=self._is_waited_for, computes=self._computes
                )

    @property
    def _running(self) -> list[ParallelWork[Any]]:
        return [work.fork for work in self._works if work.fork and not work.fork.is_over]

    def _hear(self, until: float) -> None:
        """Reads what forks answer, once one does; ends those that only wait."""
        running = self._running
        late = min(until, min(fork.since for fork in running) + self._longest)
        with selectors.DefaultSelector() as selector:
            for fork in running:
                selector.register(fork.descriptor, selectors.EVENT_READ, fork)
            ready = {key.data for key, _ in selector.select(max(0.0, late - time.monotonic()))}
        for fork in running:
            if fork in ready:
                fork.hear()
            elif time.monotonic() - fork.since > self._longest:
                fork.end()

    def drop(self) -> None:
        """Ends all that is under way, and forgets what waits."""
        for fork in self._running:
            fork.end()
        self._works.clear()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()
