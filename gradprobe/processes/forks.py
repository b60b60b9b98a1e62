"""Forks of this process, a few at a time, each for one piece of work: what ends one of them ends nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from .child import heard_by

_PR_SET_PDEATHSIG = 1


@dataclass(eq=False)
class _Fork:
    key: Any
    process: int
    descriptor: int
    since: float
    answer: bytes = b""


class Forks:
    """Work that waits, and the forks that do it."""

    def __init__(self, at_once: int) -> None:
        self._waiting: deque[tuple[Any, Callable[[], Any]]] = deque()
        self._forks: list[_Fork] = []
        self._at_once = at_once

    @property
    def idle(self) -> int:
        """How many more could work now."""
        return self._at_once - len(self._forks) - len(self._waiting)

    def add(self, key: Any, work: Callable[[], Any]) -> None:
        """Has the work done in a fork as soon as there is room."""
        self._waiting.append((key, work))

    def answers(self, until: float, longest: float) -> Iterator[tuple[Any, Any]]:
        """(key, what its work returned) as it comes; None of one that raised, crashed, or took too long.

        Ends when nothing is left, or at a time by `time.monotonic`.

        Args:
            longest: seconds for one.
        """
        while (self._waiting or self._forks) and time.monotonic() < until:
            while self._waiting and len(self._forks) < self._at_once:
                key, work = self._waiting.popleft()
                self._forks.append(_started(key, work))
            for fork in self._over(min(until, min(fork.since for fork in self._forks) + longest), longest):
                self._forks.remove(fork)
                yield fork.key, _ended(fork)

    def _over(self, until: float, longest: float) -> list[_Fork]:
        """The forks that have ended; also those that took too long."""
        with selectors.DefaultSelector() as selector:
            for fork in self._forks:
                selector.register(fork.descriptor, selectors.EVENT_READ, fork)
            ready = selector.select(max(0.0, until - time.monotonic()))
        over = []
        for fork in (key.data for key, _ in ready):
            piece = os.read(fork.descriptor, 1 << 16)
            fork.answer += piece
            over += [] if piece else [fork]
        now = time.monotonic()
        return over + [fork for fork in self._forks if fork not in over and now - fork.since > longest]

    def drop(self) -> None:
        """Ends all that is under way, and forgets what waits."""
        self._waiting.clear()
        for fork in self._forks:
            _ended(fork)
        self._forks.clear()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


def _started(key: Any, work: Callable[[], Any]) -> _Fork:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        os.close(reading)
        _work(work, writing)
    os.close(writing)
    return _Fork(key, process, reading, time.monotonic())


def _work(work: Callable[[], Any], writing: int) -> NoReturn:
    """The fork's own life: it says nothing to anybody but through its pipe, and leaves without any clean-up."""
    with contextlib.suppress(BaseException):
        faulthandler.disable()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
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


def _ended(fork: _Fork) -> Any:
    """What the work returned; None where it did not come to an end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(fork.process, signal.SIGKILL)
    os.close(fork.descriptor)
    os.waitpid(fork.process, 0)
    try:
        return pickle.loads(fork.answer)
    except (EOFError, pickle.UnpicklingError):
        return None
