"""`run_each`: gives items to workers in child processes, and replaces a child that dies or hangs."""

import contextlib
import functools
import math
import os
import pickle
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import resource_limits as limits
from .child import ANSWER, RAISED, TOLD, heard_by, worker_of
from .ended import Crash, TaskResult, raised_of
from .process import Child, next_child
from .resource_limits import SHARE, SHARED_BY, gpus

# Seconds in which a child must be ready. Importing torch takes up to twenty seconds on a busy machine with cold disks.
START_LIMIT = 180.0
# Of the event of a child that made no worker.
_UNMADE = "unmade"


class AbandonedWork(Exception):
    """Nobody wants any more what was being made."""


_unwanted: list[Callable[[], bool]] = []


@contextlib.contextmanager
def abandoned_when(unwanted: Callable[[], bool]) -> Iterator[None]:
    """While open, what waits for children raises AbandonedWork soon after that is so."""
    _unwanted.append(unwanted)
    try:
        yield
    finally:
        _unwanted.pop()


def run_each(
    factory: str,
    setup: Any,
    items: Sequence[Any],
    *,
    timeout: float | None = None,
    workers: int = 1,
    echo: Callable[[str], object] | None = None,
    told: Callable[[int, Any], object] = lambda index, value: None,
) -> Iterator[TaskResult]:
    """Yields the end of each item as it comes; with one worker, in the order of the items.

    Each child makes `worker = Class(setup)` once and calls `worker(item)` for each item. A child that dies ends its
    own item, and another takes its place. When the iterator ends or is closed, all children are gone with what they
    started. Each takes no more than its share of `limits.limit`. Where no other child is ready and none can be
    made, once more where one was before, all remaining items end as that start did.

    Args:
        factory: "package.module:Class". It, `setup`, items and results are pickled.
        items: a list may grow behind its end whenever an end was yielded.
        timeout: seconds for one item, once its child is ready.
        echo: called in another thread with what the children write on stdout and stderr.
        told: called with the index of an item and a value that its worker tells.

    Raises:
        Failure: no process can be started at all.
        AbandonedWork: as `abandoned_when` says.
    """
    crew = _Crew(factory, setup, items, timeout, workers, echo, told)
    try:
        yield from crew.ends()
    finally:
        for worker in [*crew.workers]:
            crew.close(worker)


def run_here(
    factory: str,
    setup: Any,
    items: Sequence[Any],
    *,
    told: Callable[[int, Any], object] = lambda index, value: None,
) -> Iterator[TaskResult]:
    """`run_each` in this process: exceptions of the worker come out."""
    worker = worker_of(factory, setup)
    for index, item in enumerate(items):
        with heard_by(functools.partial(told, index)):
            result = worker(item)
        yield TaskResult(item, index, result)


@dataclass(eq=False)
class _Worker:
    child: Child
    device: str
    index: int | None = None
    thread: threading.Thread | None = None
    is_ready: bool = False
    is_unwanted: bool = False


class _Crew:
    def __init__(
        self, factory: str, setup: Any, items: Sequence[Any], timeout: float | None, workers: int,
        echo: Callable[[str], object] | None, told: Callable[[int, Any], object],
    ) -> None:  # fmt: skip
        self.workers = list[_Worker]()
        self._items, self._timeout, self._told = items, timeout or math.inf, told
        self._places = workers = max(1, min(workers, limits.limit() // limits.LEAST))
        # Where there are several GPUs and children, each of these sees one.
        self._devices = gpus() if workers > 1 and len(gpus()) > 1 else ("",)
        most = limits.limit() // workers
        # Of a child of one of several, all of those share the cores too.
        sharing = workers * int(os.environ.get(SHARED_BY, "1"))
        own = {SHARED_BY: str(sharing), SHARE: str(most)}
        self._setup = pickle.dumps((factory, pickle.dumps(setup), own))
        self._most, self._echo = most, echo
        self._left, self._seen, self._may_fail = deque[int](), 0, False
        self._events: queue.SimpleQueue[tuple[_Worker, str, Any]] = queue.SimpleQueue()

    def ends(self) -> Iterator[TaskResult]:
        self._hand_out()
        while any(worker.index is not None for worker in self.workers):
            ended = self._judged(*self._next())
            self._hand_out()  # before the caller looks at these, so that no child waits meanwhile
            yield from ended
            self._hand_out()  # of what the caller has added

    def _hand_out(self) -> None:
        self._left.extend(range(self._seen, len(self._items)))
        self._seen = len(self._items)
        for worker in [worker for worker in self.workers if worker.index is None]:
            if not worker.child.lives():
                self.close(worker)
        while self._left:
            idle = next((one for one in self.workers if one.index is None), None)
            if idle is None and len(self.workers) == self._places:
                return
            if idle is None:
                device = min(self._devices, key=[each.device for each in self.workers].count)
                self.workers.append(idle := _Worker(next_child(device), device))
            idle.index = self._left.popleft()
            words = (idle, idle.index)
            idle.thread = threading.Thread(target=self._ask, args=words, daemon=True)
            idle.thread.start()

    def _ask(self, worker: _Worker, index: int) -> None:
        ask = functools.partial(
            worker.child.asked, most=self._most, echo=self._echo, unwanted=lambda: worker.is_unwanted,
            told=lambda payload: self._events.put((worker, TOLD, payload)),
        )  # fmt: skip
        kind = ANSWER if worker.is_ready else _UNMADE
        ended = TaskResult(self._items[index], index)
        try:
            found = (ANSWER, b"") if worker.is_ready else ask(self._setup, START_LIMIT)
            if not isinstance(found, Crash) and found[0] == ANSWER:
                worker.is_ready, kind = True, ANSWER
                found = ask(pickle.dumps(ended.item), self._timeout)
            if isinstance(found, Crash):
                ended = replace(ended, crash=found)
            else:
                name = "raised" if found[0] == RAISED else "result"
                ended = replace(ended, **{name: pickle.loads(found[1])})
        except Exception as error:
            ended = replace(ended, raised=raised_of(error))
        self._events.put((worker, kind, ended))

    def _next(self) -> tuple[_Worker, str, Any]:
        while True:
            if any(unwanted() for unwanted in _unwanted):
                raise AbandonedWork
            with contextlib.suppress(queue.Empty):
                return self._events.get(timeout=0.1 if _unwanted else None)

    def _judged(self, worker: _Worker, kind: str, found: Any) -> list[TaskResult]:
        if worker not in self.workers or worker.index is None:
            return []
        if kind == TOLD:
            self._told(worker.index, pickle.loads(found))
            return []
        worker.index = None
        if kind == _UNMADE or found.crash:
            self.close(worker)
        if kind == _UNMADE:
            return self._without_start(found)
        self._may_fail = True
        return [found]

    def _without_start(self, ended: TaskResult) -> list[TaskResult]:
        """The items that end with a child that failed to start: all, but where others work, or the one before did."""
        self._left.appendleft(ended.index)
        if any(other.is_ready for other in self.workers):
            self._places -= 1
            return []
        if self._may_fail:
            self._may_fail = False
            return []
        lost = [*self._left]
        self._left.clear()
        for other in [*self.workers]:
            lost += [] if other.index is None else [other.index]
            self.close(other)
        if ended.crash:
            crash = replace(ended.crash, words=f"{ended.crash.words} while it started")
            ended = replace(ended, crash=crash)
        return [replace(ended, item=self._items[at], index=at) for at in sorted(lost)]

    def close(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.is_unwanted = True
        if worker.thread is not None:
            worker.thread.join()
        worker.child.stop()
