"""`run_each`: gives items to workers in child processes, and replaces a child that dies or hangs."""

from __future__ import annotations

import contextlib
import functools
import math
import pickle
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import resource_limits as limits
from .child import ANSWER, LOST, RAISED, TOLD, heard_by, worker_of
from .ended import CRASH, DEVICE, TIMEOUT, Crash, TaskResult, raised_of, words_of
from .process import Child, ChildMessage, next_child
from .resource_limits import gpus

# Seconds in which a child must be ready. Importing torch takes up to twenty seconds on a busy machine with cold disks.
START_LIMIT = 180.0
# Seconds between two questions whether anybody still wants what is made.
_ASK = 0.1


class AbandonedWork(Exception):
    """Nobody wants any more what was being made."""


_unwanted: list[Callable[[], bool]] = []


@contextlib.contextmanager
def abandoned_when(unwanted: Callable[[], bool]) -> Iterator[None]:
    """While open, what waits for children asks ten times a second; where so, it ends them and raises AbandonedWork."""
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

    Each child makes `worker = Class(setup)` once and calls `worker(item)` for each item. A child that dies ends only
    its own item, and another takes its place. When the iterator ends or is closed, all children and their process
    groups are gone. Together they take no more memory than `limits.limit` allows, and none more than its share.
    Where no child ever was ready, or two in a row were not, all remaining items end as that child did.

    Args:
        factory: "package.module:Class". It, `setup`, items and results are pickled, by name where they are classes.
        items: a list may grow behind its end whenever an end was yielded; the children that are there go on with it.
        timeout: seconds for one item, once its child is ready; None for no limit.
        echo: called in another thread with what the children write on stdout and stderr, as it comes.
        told: called with the index of an item and a value that its worker tells (`tell`) before the item ends.

    Raises:
        Failure: no process can be started at all.
        AbandonedWork: as `abandoned_when` says.
    """
    crew = _Crew(factory, setup, items, timeout, workers, echo, told)
    try:
        yield from crew.ends()
    finally:
        for child in crew.children:
            child.stop()


def run_here(
    factory: str,
    setup: Any,
    items: Sequence[Any],
    *,
    told: Callable[[int, Any], object] = lambda index, value: None,
) -> Iterator[TaskResult]:
    """`run_each` in this process, for debuggers: exceptions of the worker come out, and crashes end this process."""
    worker = worker_of(factory, setup)
    for index, item in enumerate(items):
        with heard_by(functools.partial(told, index)):
            result = worker(item)
        yield TaskResult(item, index, result)


@dataclass
class _Crew:
    """The children, and the items that are left."""

    factory: str
    setup: Any
    items: Sequence[Any]
    timeout: float | None
    workers: int
    echo: Callable[[str], object] | None
    told: Callable[[int, Any], object]

    def __post_init__(self) -> None:
        self.workers = max(1, min(self.workers, limits.limit() // limits.LEAST))
        self._shares = self.workers
        """How many share the memory, however many of them could not be started."""
        # Where there are several GPUs and children, each of these sees one.
        self._devices = gpus() if self.workers > 1 and len(gpus()) > 1 else ("",)
        self._setup = pickle.dumps(self.setup)
        self._events: queue.SimpleQueue[ChildMessage] = queue.SimpleQueue()
        self._left, self._seen = deque[int](), 0
        self.children: list[Child] = []
        self._ever_ready, self._failed_starts = False, 0
        self._heard: ChildMessage | None = None
        """The message that is being judged."""

    def ends(self) -> Iterator[TaskResult]:
        try:
            self._hire()
            while self._left or any(child.index is not None for child in self.children):
                self._heard = self._next()
                ended = self._late() if self._heard is None else self._judged(self._heard)
                self._heard = None
                self._hire()  # before the caller looks at these, so that no child waits meanwhile
                yield from ended
                self._hire()  # to what the caller has added
        except KeyboardInterrupt:
            self._hear_the_rest()
            raise

    def _hear_the_rest(self) -> None:
        """What children told before Ctrl-C, that in the hearing of which it came among it."""
        heard = self._heard
        while heard is not None:
            if heard.kind == TOLD and heard.child.index is not None:
                self.told(heard.child.index, pickle.loads(heard.payload))
            heard = None if self._events.empty() else self._events.get_nowait()

    def _hire(self) -> None:
        """Gives items to idle children, and starts as many more as there can be work for."""
        self._left.extend(range(self._seen, len(self.items)))
        self._seen = len(self.items)
        for child in self.children:
            if child.ready and child.index is None and self._left:
                index = self._left.popleft()
                child.give(index, pickle.dumps(self.items[index]))
        waiting = sum(not child.ready for child in self.children)
        while len(self.children) < self.workers and waiting < len(self._left):
            taken = [child.device for child in self.children]
            child = next_child(min(self._devices, key=taken.count))
            self.children.append(child)
            most = limits.limit() // self._shares
            child.begin(self.factory, self._setup, self._events, self.echo, self._shares, most)
            waiting += 1

    def _next(self) -> ChildMessage | None:
        """The next message; None where a child is late. A message that has already come is never late."""
        late = min(map(self._limit, self.children), default=math.inf)
        while True:
            if any(unwanted() for unwanted in _unwanted):
                raise AbandonedWork
            left = max(0.0, late - time.monotonic())
            wait = min(left, _ASK) if _unwanted else left
            with contextlib.suppress(queue.Empty):
                return self._events.get(timeout=None if wait == math.inf else wait)
            if left <= wait:
                return None

    def _limit(self, child: Child) -> float:
        """The time at which a child is late."""
        if not child.ready:
            return child.since + START_LIMIT
        is_free = self.timeout is None or child.index is None
        return math.inf if is_free else child.since + (self.timeout or 0.0)

    def _judged(self, heard: ChildMessage) -> list[TaskResult]:
        child = heard.child
        if child not in self.children:
            return []
        if heard.kind is None or heard.kind == LOST:
            return self._died(child, heard.payload.decode())
        if not child.ready:
            if heard.kind == RAISED:
                self._stop(child)
                return self._without_start(
                    TaskResult(None, 0, raised=pickle.loads(heard.payload))
                )
            child.ready, self._ever_ready, self._failed_starts = True, True, 0
            return []
        assert child.index is not None
        if heard.kind == TOLD:
            self.told(child.index, pickle.loads(heard.payload))
            return []
        index, child.index = child.index, None
        return [self._answered(index, heard)]

    def _answered(self, index: int, heard: ChildMessage) -> TaskResult:
        item = self.items[index]
        try:
            value = pickle.loads(heard.payload)
        except Exception as error:
            return TaskResult(item, index, raised=raised_of(error))
        if heard.kind == ANSWER:
            return TaskResult(item, index, value)
        return TaskResult(item, index, raised=value)

    def _stop(self, child: Child) -> int:
        self.children.remove(child)
        return child.stop()

    def _died(self, child: Child, lost: str) -> list[TaskResult]:
        """The item that ends with a child that died or lost its device; `lost` says how."""
        seconds, code = time.monotonic() - child.since, self._stop(child)
        kind, words = (DEVICE, lost) if lost else child.broken or (CRASH, words_of(code))
        return self._crashed(child, Crash(kind, words, child.tail, seconds, child.stack))

    def _late(self) -> list[TaskResult]:
        now, ended = time.monotonic(), list[TaskResult]()
        for child in list(self.children):
            limit = self._limit(child)
            if limit <= now:
                child.say_where()
                self._stop(child)
                words, seconds = f"no answer within {limit - child.since:g} s", now - child.since
                crash = Crash(TIMEOUT, f"{words}: stopped", child.tail, seconds, child.stack)
                ended += self._crashed(child, crash)
        return ended

    def _crashed(self, child: Child, crash: Crash) -> list[TaskResult]:
        if not child.ready:
            crash = replace(crash, words=f"{crash.words} while it started")
            return self._without_start(TaskResult(None, 0, crash=crash))
        if child.index is None:
            return []
        return [TaskResult(self.items[child.index], child.index, crash=crash)]

    def _without_start(self, ended: TaskResult) -> list[TaskResult]:
        """The items that end with a child that failed to start: none where others work, else the next one, or all."""
        if any(other.ready for other in self.children):
            self.workers -= 1
            return []
        self._failed_starts += 1
        hopeless = not self._ever_ready or self._failed_starts > 1
        count = len(self._left) if hopeless else min(1, len(self._left))
        lost = [self._left.popleft() for _ in range(count)]
        return [replace(ended, item=self.items[index], index=index) for index in lost]
