"""Split: the programs of one launch over several processes, with all that they do one after another, bit for bit.

Forks run the later programs ahead, each a share of them, while this process runs the first. What a share did is taken
over once the sequence comes there, and only where the sequence would have done the same: it loaded nothing that was
stored meanwhile, stored where nobody else did but by atomics, and came to nothing that there is to tell. Else the
programs run here, one after another.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array
from ....model.mechanisms import is_on, note
from ....processes.forks import Beside, at_once, nothing_said
from ....source.text import SourceLine
from .accesses import Accesses, Ahead, InSequence, bits_at
from .findings import Earlier, Program, places
from .launch import Stores, Units
from .memo import Memo
from .views import Handle

# Seconds of work below which no fork is begun. One costs some 20 ms in each process, most of it for pages copied, and
# what it learns of types and constants is lost: of launches of 0.15 s two processes took as long as one.
WORTH = 0.4
# A share is waited for as long as its programs should take, so often; and so many seconds more.
_PATIENCE, _GRACE = 3.0, 1.0
_IN_SEQUENCE: set[CodeType] = set()
"""Kernels of which a share was not taken over: another would not be either."""
_SECONDS: dict[tuple[CodeType, Program], list[float]] = {}
"""What each program of the last launch of a kernel took, by the grid."""


@dataclass(frozen=True)
class Share:
    """What a fork answers: what its programs did to memory, and what there is to know of it."""

    loaded: set[int]
    """The addresses of storages of which any element may have been loaded."""
    loads: list[Units]
    """What was loaded of the others."""
    stores: list[tuple[Units, Array, Array]]
    """What was stored: the marks of these units, and what they hold."""
    events: list[Earlier]
    """Of those marks."""
    atomics: list[tuple[Any, ...]]
    """The arguments of each, in order."""
    last: dict[int, tuple[SourceLine, ...]]
    """By the address of a storage: the lines that stored there last."""
    grid: Program | None
    asked: set[int]
    seconds: list[float]
    """That each program took."""
    is_plain: bool
    """Of the launch, as far as these programs show."""


class Unknown(Handle):  # type: ignore[misc]
    """What an atomic found at an address, which a fork cannot know: others added to it meanwhile."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.attr: dict[str, Any] = {}

    @property
    def data(self) -> Array:
        """Raises InSequence: what a program makes of it depends on others."""
        raise InSequence


class Programs:
    """The kernel of one launch. The interpreter calls it for each program; what is known already is left out."""

    def __init__(
        self,
        function: Any,
        accesses: Accesses,
        atomic: Callable[..., Any],
        failures: Mapping[str, None],
        *,
        may_recall: bool = False,
    ) -> None:
        """`atomic`: the interpreter's method; `failures`: what went wrong in watching."""
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)
        self.__globals__, self.__code__ = function.__globals__, function.__code__
        self._function, self._accesses, self._atomic, self._failures = function, accesses, atomic, failures
        self._called, self._done = 0, 0
        self._seconds: list[float] = []
        self._shares: list[tuple[int, int, Beside[Share]]] = []
        """(its first program, the one behind its last, the fork), in order."""
        self._event = 0
        """The first event of this process's stores that no fork has seen."""
        self._is_whole = function.__code__ not in _IN_SEQUENCE
        self._may_recall, self._failed = may_recall, len(failures)
        self._memo: Memo | None = None

    def __call__(self, **arguments: Any) -> None:
        """Runs the next program of the grid, or takes over what a fork did in its place."""
        number, self._called = self._called, self._called + 1
        if self._may_recall and number == 0:
            self._recall(arguments)
        if self._is_whole and self._is_worth(number):
            self._is_whole = False
            self._split(number, arguments)
        if self._shares and self._shares[0][0] == number:
            self._take_over(*self._shares.pop(0))
        if number >= self._done:
            self._run(arguments)

    def close(self) -> None:
        """Ends the forks that are left, and keeps what programs took."""
        for _, _, fork in self._shares:
            fork.__exit__()
        if self._called and len(self._seconds) == _many():
            _SECONDS[self.__code__, _grid()] = self._seconds
            if self._memo is not None and len(self._failures) == self._failed:
                self._memo.keep(self._accesses)

    def _recall(self, arguments: dict[str, Any]) -> None:
        """Does at once what an earlier check did, where that is kept."""
        self._memo = Memo.of(self._function, arguments, _grid(), self._accesses)
        if self._memo is not None and self._memo.recalled(self._accesses):
            self._done = _many()

    def _run(self, arguments: dict[str, Any]) -> None:
        start = time.thread_time()  # of work: on busy cores a fork would have to wait, too
        self._function(**arguments)
        self._seconds.append(time.thread_time() - start)

    def _is_worth(self, number: int) -> bool:
        """Whether what is left takes longer than forks cost. The first program shows that, and where it stores."""
        left = _many() - number
        return (
            is_on("split") and number > 0 and left > 1 and sum(self._seconds) / number * left > WORTH and at_once() > 1
            and threading.current_thread() is threading.main_thread()
        )  # fmt: skip

    def _split(self, number: int, arguments: dict[str, Any]) -> None:
        """Begins a fork for each share of what is left but the first, which is this process's."""
        note("split", spoke=True)
        many, self._event = _many(), self._accesses.running.stores.share()
        takes = np.cumsum(_SECONDS.get((self.__code__, _grid()), [1.0] * many)[number:])
        count = min(at_once(), many - number)
        ends = [number + int(np.searchsorted(takes, takes[-1] * at / count)) + 1 for at in range(1, count)]
        for first, last in zip(ends, [*ends[1:], many], strict=True):
            if first < last:
                self._shares.append((first, last, Beside(functools.partial(self._ahead, first, last, arguments))))

    def _ahead(self, first: int, last: int, arguments: dict[str, Any]) -> Share:
        """Runs these programs; the life of a fork.

        Raises:
            InSequence: a sequence may do otherwise, or has something to tell.
        """
        accesses, launch = self._accesses, self._accesses.running
        stores, failures = launch.stores, len(self._failures)
        accesses.ahead = ahead = Ahead(stores.stored)
        event = stores.share()
        self._seconds = []
        with nothing_said():
            for number in range(first, last):
                shipped.interpreter_builder.set_grid_idx(*map(int, np.unravel_index(number, _grid())))
                self._run(arguments)
        if len(self._failures) > failures:
            raise InSequence
        held = [(units, marks, bits_at(units.addresses, units.width)) for units, marks in stores.since(event)]
        return Share(
            loaded=ahead.loaded,
            loads=ahead.loads,
            stores=held,
            events=stores.events_since(event),
            atomics=ahead.atomics,
            last={low: places(lines) for low, lines in ahead.last.items()},
            grid=launch.grid,
            asked=launch.asked,
            seconds=self._seconds,
            is_plain=launch.is_plain,
        )

    def _take_over(self, first: int, last: int, fork: Beside[Share]) -> None:
        """Does at once what a fork did, where the sequence would do the same."""
        each = sum(self._seconds) / len(self._seconds)
        share, launch = fork.answer(_GRACE + _PATIENCE * each * (last - first)), self._accesses.running
        stores = launch.stores
        if share is None or _would_differ(share, stores, self._event):
            _IN_SEQUENCE.add(self.__code__)
            return
        # What only atomics reached is what they make of it here; what a plain store reached was nobody else's.
        for atomic in share.atomics:
            self._atomic(shipped.interpreter_builder, *map(_unpickled, atomic))
        by = stores.add_events(share.events, self._event)
        for units, marks, held in share.stores:
            plain = marks > 0
            shipped._interpreter.store(units.addresses[plain], held[plain], np.ones(plain.sum(), bool))
            stores.add_ahead(launch.view_at(units.low), units, marks, by)
            self._accesses.stored_ahead(launch.view_at(units.low), units, share.last[units.low])
        launch.learn_ahead(share.grid, share.asked)
        launch.is_plain &= share.is_plain
        self._seconds += share.seconds
        self._done = last


def _would_differ(share: Share, stores: Stores, event: int) -> bool:
    """Whether the programs of a share would have met what this process stored from an event on."""
    if any(units.low in share.loaded for units, _ in stores.since(event)):
        return True
    if any((stores.marks_at(units, event) != 0).any() for units in share.loads):
        return True
    return any(_clash(stores.marks_at(units, event), marks) for units, marks, _ in share.stores)


def _clash(here: Array, there: Array) -> bool:
    """Whether any marks of one unit, [N, M] and [N], are not both those of atomics, which may follow one another."""
    return bool(((here > 0) | ((here < 0) & (there > 0)[:, None])).any())


def _unpickled(argument: Any) -> Any:
    """An argument, of a handle with numpy's own object for its type, by which the interpreter knows types."""
    if not isinstance(argument, Handle):
        return argument
    return Handle(argument.data.view(np.dtype(argument.data.dtype.char)), argument.dtype)


def _grid() -> Program:
    return tuple(map(int, shipped.interpreter_builder.grid_dim))  # type: ignore[return-value]


def _many() -> int:
    return math.prod(_grid())
