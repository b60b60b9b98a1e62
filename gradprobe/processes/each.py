"""`run_each`: gives items to workers in child processes, and replaces a child that dies or hangs."""

from __future__ import annotations

import contextlib
import functools
import pickle
import queue
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from . import resource_limits as limits
from .child import ANSWER, LOST, READY, START_LIMIT, TOLD, UNREADY, heard_by, worker_of
from .ended import (
    CRASH,
    DEVICE,
    MEMORY,
    TIMEOUT,
    Crash,
    TaskResult,
    WorkerException,
    raised_of,
    words_of,
)
from .process import Child, ChildMessage
from .resource_limits import gpus

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
    alike: Callable[[Any], Hashable] = lambda item: None,
    start_limit: float = START_LIMIT,
    echo: Callable[[str], object] | None = None,
    told: Callable[[int, Any], object] = lambda index, value: None,
) -> Iterator[TaskResult]:
    """Yields the end of each item as it comes; with one worker, in the order of the items.

    Each child makes `worker = Class(setup)` once and calls `worker(item)` for each item. A child that dies ends only
    its own item, and another takes its place. When the iterator ends or is closed, all children and their process
    groups are gone. Together they take no more memory than `limits.limit` allows, and none more than its share.

    Args:
        factory: "package.module:Class". It, `setup`, items and results are pickled, by name where they are classes.
        items: a list may grow behind its end whenever an end was yielded; the children that are there go on with it.
        timeout: seconds for one item, once its child is ready; None for no limit.
        alike: a child goes on with an item of the same value as its last one where one is left: what that compiled or
            cached serves again.
        start_limit: seconds for a child to be ready. Where no child ever was ready, or two in a row were not, all
            remaining items end as that child did.
        echo: called in another thread with what the children write on stdout and stderr, as it comes.
        told: called with the index of an item and a value that its worker tells (`telling.tell`) before the item ends.

    Raises:
        Failure: no process can be started at all.
        AbandonedWork: as `abandoned_when` says.
    """
    events: queue.SimpleQueue[ChildMessage] = queue.SimpleQueue()
    workers = max(1, min(workers, limits.limit() // limits.LEAST))
    most = limits.limit() // workers
    # Where there are several GPUs and children, each of these sees one.
    devices = gpus() if workers > 1 and len(gpus()) > 1 else ("",)
    start = functools.partial(
        Child, factory, pickle.dumps(setup), events, echo, workers=workers, most=most
    )
    crew = _Crew(start, devices, events, items, timeout, workers, start_limit, alike, told)
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


class _Crew:
    """The children, and the items that are left."""

    def __init__(
        self,
        start: Callable[..., Child],
        devices: Sequence[str],
        events: queue.SimpleQueue[ChildMessage],
        items: Sequence[Any],
        timeout: float | None,
        workers: int,
        start_limit: float,
        alike: Callable[[Any], Hashable],
        told: Callable[[int, Any], object],
    ) -> None:
        self._start, self._devices, self._events = start, devices, events
        self._items, self._left, self._seen = items, deque[int](), 0
        self._alike, self._latest = alike, dict[Child, Hashable]()
        self._timeout, self._workers, self._start_limit = timeout, max(1, workers), start_limit
        self._told = told
        self.children: list[Child] = []
        self._ever_ready, self._failed_starts = False, 0
        self._heard: ChildMessage | None = None
        """The message that is being judged."""

    def ends(self) -> Iterator[TaskResult]:
        try:
            yield from self._ends()
        except KeyboardInterrupt:
            self._hear_the_rest()
            raise

    def _hear_the_rest(self) -> None:
        """What children told before Ctrl-C, that in the hearing of which it came among it."""
        heard = self._heard
        while heard is not None:
            if heard.kind == TOLD and heard.child.index is not None:
                self._told(heard.child.index, pickle.loads(heard.payload))
            heard = None if self._events.empty() else self._events.get_nowait()

    def _ends(self) -> Iterator[TaskResult]:
        self._hire()
        while self._left or any(child.index is not None for child in self.children):
            self._heard = heard = self._next()
            ended = self._judged(heard) if heard is not None else self._late()
            self._heard = None
            self._hire()  # before the caller looks at these, so that no child waits meanwhile
            yield from ended
            self._hire()  # to what the caller has added

    def _hire(self) -> None:
        """Gives items to idle children, and starts as many more as there can be work for."""
        self._left.extend(range(self._seen, len(self._items)))
        self._seen = len(self._items)
        for child in self.children:
            if child.ready and child.index is None and self._left:
                index = self._chosen(child)
                self._left.remove(index)
                child.give(index, pickle.dumps(self._items[index]))
        waiting = sum(not child.ready for child in self.children)
        while len(self.children) < self._workers and waiting < len(self._left):
            self.children.append(self._start(device=self._freest()))
            waiting += 1

    def _freest(self) -> str:
        """The device that the fewest children have."""
        taken = [child.device for child in self.children]
        return min(self._devices, key=taken.count)

    def _chosen(self, child: Child) -> int:
        """The first item that is like this child's last one, else like no other child's, else the first of all."""
        kinds = {index: self._alike(self._items[index]) for index in self._left}
        others = {
            self._latest[other]
            for other in self.children
            if other is not child and other in self._latest
        }
        own = (
            index
            for index in self._left
            if child in self._latest and kinds[index] == self._latest[child]
        )
        new = (index for index in self._left if kinds[index] not in others)
        chosen = next(own, next(new, self._left[0]))
        self._latest[child] = kinds[chosen]
        return chosen

    def _next(self) -> ChildMessage | None:
        """The next message; None where a child is late. A message that has already come is never late."""
        late = min(
            (limit for child in self.children if (limit := self._limit(child)) is not None),
            default=None,
        )
        while True:
            if any(unwanted() for unwanted in _unwanted):
                raise AbandonedWork
            left = None if late is None else max(0.0, late - time.monotonic())
            wait = left if not _unwanted else _ASK if left is None else min(left, _ASK)
            with contextlib.suppress(queue.Empty):
                return self._events.get(timeout=wait)
            if left is not None and left <= _ASK:
                return None

    def _limit(self, child: Child) -> float | None:
        """The time at which a child is late; None where it has no limit."""
        if not child.ready:
            return child.since + self._start_limit
        return (
            None if self._timeout is None or child.index is None else child.since + self._timeout
        )

    def _judged(self, heard: ChildMessage) -> list[TaskResult]:
        child = heard.child
        if child not in self.children:
            return []
        if heard.kind is None:
            return self._died(child)
        if heard.kind == READY:
            child.ready, self._ever_ready, self._failed_starts = True, True, 0
            return []
        if heard.kind == UNREADY:
            return self._without(child, raised=pickle.loads(heard.payload))
        if heard.kind == LOST:
            return self._died(child, heard.payload.decode())
        assert child.index is not None
        if heard.kind == TOLD:
            self._told(child.index, pickle.loads(heard.payload))
            return []
        index, child.index = child.index, None
        return [self._answered(index, heard)]

    def _answered(self, index: int, heard: ChildMessage) -> TaskResult:
        item = self._items[index]
        try:
            value = pickle.loads(heard.payload)
        except Exception as error:
            return TaskResult(item, index, raised=raised_of(error))
        return (
            TaskResult(item, index, value)
            if heard.kind == ANSWER
            else TaskResult(item, index, raised=value)
        )

    def _died(self, child: Child, lost: str = "") -> list[TaskResult]:
        """The item that ends with a child that died or lost its device; `lost` says how."""
        seconds = time.monotonic() - child.since
        self.children.remove(child)
        code = child.stop()
        words = lost or child.over or child.broken or words_of(code)
        kind = DEVICE if lost else MEMORY if child.over else CRASH
        return self._lost(child, Crash(kind, words, child.tail, seconds, child.stack))

    def _late(self) -> list[TaskResult]:
        now, ended = time.monotonic(), []
        for child in list(self.children):
            limit = self._limit(child)
            if limit is not None and limit <= now:
                child.say_where()
                self.children.remove(child)
                child.stop()
                words = f"no answer within {limit - child.since:g} s: stopped"
                ended += self._lost(
                    child, Crash(TIMEOUT, words, child.tail, now - child.since, child.stack)
                )
        return ended

    def _lost(self, child: Child, crash: Crash) -> list[TaskResult]:
        if child.ready:
            return (
                []
                if child.index is None
                else [TaskResult(self._items[child.index], child.index, crash=crash)]
            )
        while_starting = replace(crash, words=f"{crash.words} while it started")
        return self._without(child, crash=while_starting)

    def _without(
        self, child: Child, *, crash: Crash | None = None, raised: WorkerException | None = None
    ) -> list[TaskResult]:
        """The items that end with a child that failed to start: none where others work, else the next one, or all."""
        if child in self.children:
            self.children.remove(child)
            child.stop()
        if any(other.ready for other in self.children):
            self._workers -= 1
            return []
        self._failed_starts += 1
        hopeless = not self._ever_ready or self._failed_starts > 1
        lost = [
            self._left.popleft()
            for _ in range(len(self._left) if hopeless else min(1, len(self._left)))
        ]
        return [
            TaskResult(self._items[index], index, crash=crash, raised=raised) for index in lost
        ]
