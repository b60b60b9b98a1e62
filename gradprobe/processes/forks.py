"""Forks of this process, a few at a time, each for one piece of work: what ends one of them ends nothing else."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import pickle
import resource
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NoReturn, TypeVar

from .child import dies_with_parent, heard_by

# How much longer than a fork may compute it may take in all, where others have the processors.
_PATIENCE = 10
Done = TypeVar("Done")


def may_fork() -> bool:
    """Whether a fork works: not beside a GPU that is held, or JAX's threads that hold locks."""
    torch = sys.modules.get("torch")
    holds_gpu = torch is not None and torch.cuda.is_initialized()
    return sys.platform == "linux" and not holds_gpu and "jaxlib" not in sys.modules


class ParallelWork(Generic[Done]):
    def __init__(self, work: Callable[[], Done], *, computes: int | None = None) -> None:
        """`computes`: the seconds of a processor that it may take, the same on a busy machine."""
        self.is_over = False
        # What it returned; None before, and where it came to no end.
        self.done: Done | None = None
        self.late = time.monotonic() + (math.inf if computes is None else _PATIENCE * computes)
        self._reading, writing = Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of threads, which a fork has none of: what they do here it does not wait for.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process = os.fork()
        if self.process == 0:
            self._reading.close()
            if computes is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (computes, computes))
            _run(work, writing)
        writing.close()

    def fileno(self) -> int:
        return self._reading.fileno()

    def answer(self, seconds: float) -> Done | None:
        """What it returned; None where the fork came to no end, or to none in so many seconds more."""
        self.late = time.monotonic() + seconds
        while not self.is_over:
            _hear([self], math.inf)
        return self.done

    def hear(self) -> None:
        with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
            self.done = self._reading.recv()
        self.end()

    def end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        self._reading.close()
        # Where a target ignores SIGCHLD or waits for all children, it is gone.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)

    def __enter__(self) -> ParallelWork[Done]:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _hear(forks: Sequence[ParallelWork[Any]], until: float) -> None:
    """Waits for a piece of an answer, until a time at most, reads what has come, and ends what is late."""
    left = min(until, *(fork.late for fork in forks)) - time.monotonic()
    ready = wait([fork.fileno() for fork in forks], None if left == math.inf else max(0.0, left))
    for fork in forks:
        if fork.fileno() in ready:
            fork.hear()
        elif time.monotonic() > fork.late:
            fork.end()


def _run(work: Callable[[], Any], writing: Connection[Any, Any]) -> NoReturn:
    """The fork's own life: it says nothing but through its pipe, and leaves without any clean-up."""
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
            writing.send(work())
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


class Forks(contextlib.ExitStack):
    """Work that waits, and the forks that do it, a few at once; both in order."""

    def __init__(self, at_once: int, *, computes: int | None = None) -> None:
        super().__init__()
        self._at_once, self._computes = at_once, computes
        self._waiting = deque[tuple[Any, Callable[[], Any]]]()
        self._begun = deque[tuple[Any, ParallelWork[Any]]]()

    def add(self, key: Any, work: Callable[[], Any]) -> None:
        self._waiting.append((key, work))
        self._start()

    def answers(self, until: float = math.inf) -> Iterator[tuple[Any, Any]]:
        """(key, what its work returned) in the order of the work; None of one that raised, crashed, or did not end.

        Ends when nothing is left, or at a time by `time.monotonic`.
        """
        while self._begun and (self._begun[0][1].is_over or time.monotonic() < until):
            key, first = self._begun[0]
            if first.is_over:
                self._begun.popleft()
                yield key, first.done
            else:
                _hear(self._start(), until)
            self._start()

    def _start(self) -> list[ParallelWork[Any]]:
        running = [fork for _, fork in self._begun if not fork.is_over]
        while self._waiting and len(running) < self._at_once:
            key, work = self._waiting.popleft()
            running.append(self.enter_context(ParallelWork(work, computes=self._computes)))
            self._begun.append((key, running[-1]))
        return running
