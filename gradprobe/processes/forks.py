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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from .child import dies_with_parent, heard_by

# How much longer than a fork may compute it may take in all, where others have the processors.
_PATIENCE = 10
CROWDED: set[int] = set()
"""The process, where it is a fork, or one of several that run tests."""
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

    def __init__(self, work: Callable[[], Done], *, computes: int | None = None) -> None:
        """`computes`: the seconds of a processor that it may take, the same on a busy machine."""
        self._work, self._answer = work, b""
        self.done: tuple[Done] | None = None
        """What it returned; None before, and where it came to no end."""
        self.is_over = False
        self.late = time.monotonic() + (math.inf if computes is None else _PATIENCE * computes)
        self.descriptor, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of threads, which a fork has none of: what they do here it does not wait for.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process = os.fork()
        if self.process == 0:
            os.close(self.descriptor)
            CROWDED.add(os.getpid())
            if computes is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (computes, computes))
            _run(work, writing)
        os.close(writing)

    def result(self) -> Done:
        """What it returned; where the fork came to no end, it is done here."""
        self.answer(math.inf)
        return self._work() if self.done is None else self.done[0]

    def answer(self, seconds: float) -> Done | None:
        """What it returned; None where the fork came to no end, or to none in so many seconds more."""
        until = time.monotonic() + seconds
        while not self.is_over:
            if not _hear([self], until):
                self.end()
        return None if self.done is None else self.done[0]

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


def _hear(forks: Sequence[ParallelWork[Any]], until: float) -> bool:
    """Waits for a piece of an answer, and reads what has come; False where nothing has until then."""
    left = until - time.monotonic()
    with selectors.DefaultSelector() as selector:
        for fork in forks:
            selector.register(fork.descriptor, selectors.EVENT_READ, fork)
        ready = selector.select(None if left == math.inf else max(0.0, left))
    for key, _ in ready:
        key.data.hear()
    return bool(ready)


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


class Forks:
    """Work that waits, and the forks that do it; both in order."""

    def __init__(self, at_once: int, *, computes: int | None = None) -> None:
        """`computes`: of each fork, which is waited for `_PATIENCE` times as long."""
        self._at_once = at_once
        self._fork = partial(ParallelWork[Any], computes=computes)
        self._waiting = deque[tuple[Any, Callable[[], Any]]]()
        self._begun = deque[tuple[Any, ParallelWork[Any]]]()

    def __len__(self) -> int:
        """How many answers are still to be given."""
        return len(self._waiting) + len(self._begun)

    def add(self, key: Any, work: Callable[[], Any]) -> None:
        """Has the work done in a fork, at once or as soon as there is room."""
        self._waiting.append((key, work))
        self._start()

    def answers(self, until: float) -> Iterator[tuple[Any, Any]]:
        """(key, what its work returned) in the order of the work; None of one that raised, crashed, or did not end.

        Ends when nothing is left, or at a time by `time.monotonic`.
        """
        while self:
            if self._begun and self._begun[0][1].is_over:
                key, fork = self._begun.popleft()
                yield key, None if fork.done is None else fork.done[0]
            elif time.monotonic() >= until:
                return
            else:
                self._start()
                _hear(self._running, min(until, *(fork.late for fork in self._running)))
                for fork in self._running:
                    if time.monotonic() > fork.late:
                        fork.end()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._at_once:
            key, work = self._waiting.popleft()
            self._begun.append((key, self._fork(work)))

    @property
    def _running(self) -> list[ParallelWork[Any]]:
        return [fork for _, fork in self._begun if not fork.is_over]

    def drop(self) -> None:
        """Ends all that is under way, and forgets what waits."""
        for fork in self._running:
            fork.end()
        self._begun.clear()
        self._waiting.clear()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()
