"""Forks of this process, a few at a time, each for one piece of work: what ends one of them ends nothing else."""

from __future__ import annotations

import contextlib
import ctypes
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
from typing import Any, Generic, NoReturn, TypeVar, cast

from .child import heard_by

_PR_SET_PDEATHSIG = 1
# How much longer than a fork may compute it may take in all, where others have the processors.
_PATIENCE = 10


@dataclass(eq=False)
class _Fork:
    process: int
    descriptor: int
    since: float
    answer: bytes = b""


@dataclass(eq=False)
class _Work:
    key: Any
    do: Callable[[], Any]
    fork: _Fork | None = None
    """None before it is begun, and once it has ended."""
    answer: Any = None
    is_over: bool = False


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
            if self._works[0].is_over:
                work = self._works.popleft()
                yield work.key, work.answer
            else:
                self._start()
                self._hear(until)

    def _start(self) -> None:
        for work in self._works:
            if len(self._running) == self._at_once:
                return
            if work.fork is None and not work.is_over:
                work.fork = _started(
                    work.do, is_waited_for=self._is_waited_for, computes=self._computes
                )

    @property
    def _running(self) -> dict[_Work, _Fork]:
        return {work: work.fork for work in self._works if work.fork is not None}

    def _hear(self, until: float) -> None:
        """Reads what forks answer, once one does; ends those that only wait."""
        late = min(until, min(fork.since for fork in self._running.values()) + self._longest)
        with selectors.DefaultSelector() as selector:
            for work, fork in self._running.items():
                selector.register(fork.descriptor, selectors.EVENT_READ, work)
            ready = {key.data for key, _ in selector.select(max(0.0, late - time.monotonic()))}
        for work, fork in self._running.items():
            piece = os.read(fork.descriptor, 1 << 16) if work in ready else None
            fork.answer += piece or b""
            if piece == b"" or (piece is None and time.monotonic() - fork.since > self._longest):
                work.answer, work.fork, work.is_over = _ended(fork), None, True

    @property
    def _longest(self) -> float:
        return math.inf if self._computes is None else _PATIENCE * self._computes

    def drop(self) -> None:
        """Ends all that is under way, and forgets what waits."""
        for fork in self._running.values():
            _ended(fork)
        self._works.clear()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


Done = TypeVar("Done")


def may_fork() -> bool:
    """Whether a fork can work beside this process: not where it holds a GPU, where macOS has threads, in a fork.

    Nor beside JAX, whose threads hold locks that no fork lets go.
    """
    torch = sys.modules.get("torch")
    holds_gpu = torch is not None and torch.cuda.is_initialized()
    return (
        sys.platform == "linux"
        and not holds_gpu
        and "jaxlib" not in sys.modules
        and os.getpid() not in CROWDED
    )


CROWDED: set[int] = set()
"""The process, where others beside it have the cores: a fork, or one of several that run tests."""


class ParallelWork(Generic[Done]):
    """Work that a fork does while this process goes on."""

    def __init__(self, work: Callable[[], Done]) -> None:
        self._work = work
        self._fork: _Fork | None = _started(lambda: (work(),))

    def result(self) -> Done:
        """What it returned; where the fork came to no end, it is done here."""
        done = self._awaited(None)
        return self._work() if done is None else done[0]

    def answer(self, seconds: float) -> Done | None:
        """What it returned; None where the fork came to no end, or to none in so many seconds more."""
        done = self._awaited(time.monotonic() + seconds)
        return None if done is None else done[0]

    def _awaited(self, until: float | None) -> tuple[Done] | None:
        fork, self._fork = self._fork, None
        assert fork is not None
        with selectors.DefaultSelector() as selector:
            selector.register(fork.descriptor, selectors.EVENT_READ)
            while selector.select(None if until is None else max(0.0, until - time.monotonic())):
                if not (piece := os.read(fork.descriptor, 1 << 16)):
                    break
                fork.answer += piece
        return cast("tuple[Done] | None", _ended(fork))

    def __enter__(self) -> ParallelWork[Done]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fork is not None:
            _ended(self._fork)


def _started(
    work: Callable[[], Any], *, is_waited_for: bool = False, computes: int | None = None
) -> _Fork:
    reading, writing = os.pipe()
    is_crowded = not is_waited_for or os.getpid() in CROWDED
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns of threads, which a fork has none of: what they do here it does not wait for.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        os.close(reading)
        if is_crowded:
            CROWDED.add(os.getpid())
        if computes is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (computes, computes))
        _work(work, writing)
    os.close(writing)
    return _Fork(process, reading, time.monotonic())


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
    with contextlib.suppress(
        ChildProcessError
    ):  # where a target ignores SIGCHLD or waits for all children, it is gone
        os.waitpid(fork.process, 0)
    try:
        return pickle.loads(fork.answer)
    except (EOFError, pickle.UnpicklingError):
        return None
