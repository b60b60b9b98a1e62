"""Accesses: judges each load, store and atomic of a launch, counts its findings, and says which lanes to leave out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array, Unwritten
from ....model.assignment import OUTPUTS
from ....model.memory import MISALIGNED, OUTSIDE, RACE, UNWRITTEN
from .findings import AccessFinding, Earlier, Line, Program, Rest, executing, places
from .launch import Launch, Units
from .views import Origins, View

_ORDER = (OUTSIDE, MISALIGNED, RACE, UNWRITTEN)
_ACCESSES = ("store", "atomic", "load")


class Access(NamedTuple):
    """One load, store or atomic of many lanes."""

    kind: str
    """"load", "store" or "atomic"."""
    program: Program
    lines: tuple[Line, ...]
    width: int
    """In bytes, of a lane."""
    kernel: str
    launch: int


@dataclass
class _Count:
    """All accesses of one kind that one line made to one tensor."""

    first: AccessFinding
    launch: Launch
    runs_on: bool = True
    lanes: int = 0
    programs: set[tuple[int, Program]] = field(default_factory=set)

    @property
    def finding(self) -> AccessFinding:
        many, beyond = len(self.programs), next(self._beyond(), None)
        return replace(self.first, lanes=self.lanes, programs=many, beyond=beyond, runs_on=self.runs_on)

    def _beyond(self) -> Iterator[tuple[int, int, int]]:
        """(axis, first, many) of each axis along which all programs from the first on did it, and no others."""
        grid, launches = self.launch.grid or (), {number for number, _ in self.programs}
        for axis, many in enumerate(grid):
            first = min(program[axis] for _, program in self.programs)
            if first and len(self.programs) == len(launches) * math.prod(grid) // many * (many - first):
                yield axis, first, many


@dataclass
class LaneCounts:
    """How many lanes were seen that are no finding."""

    equal: int = 0
    """Stores that left at an address the bits that another program had stored there."""
    ordered: int = 0
    """Stores over another program's by one that had done an exchange, and so may have held a lock."""
    unfollowed: int = 0
    """Accesses at addresses in no storage that was known."""


class Accesses:
    """Judges the accesses of all launches."""

    def __init__(self, origins: Origins, unwritten: Unwritten) -> None:
        self.origins = origins
        self.unwritten = unwritten
        self._findings: dict[tuple[object, ...], _Count] = {}
        self.counts = LaneCounts()
        self.launch: Launch | None = None
        """The one that runs."""
        self.writers: dict[str, tuple[str, tuple[Line, ...]]] = {}
        """By the caller's input: the kernel, and the lines, that first stored other bits there than it held."""
        self._storing: dict[int, tuple[Launch, tuple[Line, ...]]] = {}
        """By home of what had no value: the last launch that stored there, with its lines."""
        self._inside: dict[tuple[tuple[int, int], ...], tuple[int, Program, tuple[Line, ...]]] = {}
        """By line, of whose code the id is taken since its hash takes long: the program in which it last stayed inside
        its tensor, and the line, so that no other code takes its id."""
        self._contests: list[Callable[[], None]] = []
        """What is to be judged once the atomic that comes next is done."""

    def look(
        self, kind: str, program: Program, pointers: Any, on: Array, width: int, values: Array | None = None
    ) -> Array | None:
        """Judges an access before it is done.

        Args:
            on: bool, the lanes that are not masked.
            width: in bytes, of a lane.
            values: what a plain store is to leave.

        Returns:
            The lanes that may be executed, flat, or None for all that are not masked.
        """
        launch = self.running
        launch.stores.enter(program)
        shape = pointers.data.shape
        lanes = (on if on.shape == shape else np.broadcast_to(on, shape)).reshape(-1).nonzero()[0]
        addresses = pointers.data.reshape(-1)[lanes]
        bits = None if values is None else _bits(np.broadcast_to(values, shape).reshape(-1)[lanes])
        access = Access(kind, program, executing(launch.code), width, launch.kernel, launch.number)
        kept = None
        for view, some in launch.by_view(self.origins.of(pointers), addresses, lanes):
            if view is None or view.is_own:
                self.running.is_plain = False
            elif not view.parameter:
                launch.is_plain = False
            if view is None:
                self.counts.unfollowed += len(addresses[some])
            elif not view.is_own:
                stays = self._judge(access, view, addresses[some], None if bits is None else bits[some])
                if stays is not None:
                    kept = np.array(np.broadcast_to(on, shape), bool).reshape(-1) if kept is None else kept
                    kept[lanes[some][~stays]] = False
        return kept

    def settle(self) -> None:
        """Called after an atomic: where it changed a bit, it raced with the plain store of another program."""
        contests, self._contests = self._contests, []
        for judge in contests:
            judge()

    def _judge(self, access: Access, view: View, addresses: Array, bits: Array | None) -> Array | None:
        """Which of these accesses may be executed: those that stay in the view's storage; None where all do."""
        inside = view.hold(addresses, access.width)
        stays, within, its_bits = None, addresses, bits
        if not inside.all():
            stays, within = view.in_storage(addresses, access.width), addresses[inside]
            its_bits = None if bits is None else bits[inside]
            self._found(OUTSIDE, access, view, addresses, ~inside)
        elif len(inside):
            self._inside[_numbers(access.lines)] = access.launch, access.program, access.lines
        if access.width > view.elements.itemsize:  # an element by itself lies where its tensor does
            self._found(MISALIGNED, access, view, within, within % access.width != 0)
        if access.kind != "store":
            unread = self.unwritten.among(view.home, view.in_bytes(within), access.width)
            self._found(UNWRITTEN, access, view, within, unread)
        if access.kind != "load":
            self._overwritten(access, view, within, its_bits)
            some = slice(None) if stays is None else stays
            self._stored(access, view, addresses[some], None if bits is None else bits[some])
        return None if stays is None or stays.all() else stays

    def _overwritten(self, access: Access, view: View, addresses: Array, bits: Array | None) -> None:
        if view.known is None or view.name in OUTPUTS:
            return
        if bits is None or (bits_at(addresses, access.width) != bits).any():
            self.running.is_plain = False
            if view.name not in self.writers:
                self.running.is_plain = False
                self.writers[view.name] = (self.running.kernel, access.lines)

    def _stored(self, access: Access, view: View, addresses: Array, bits: Array | None) -> None:
        stores = self.running.stores
        is_atomic = access.kind == "atomic"
        events = stores.add(view, addresses, access.width, access.lines, is_atomic=is_atomic)
        self.unwritten.stored(view.home, view.in_bytes(addresses), access.width)
        if view.home in self.unwritten.places:
            self._storing[view.home] = self.running, access.lines
        by_others = events != 0
        if not by_others.any():
            return
        self.running.is_plain = False
        addresses, events = addresses[by_others], events[by_others]
        before = bits_at(addresses, access.width)
        contested = functools.partial(self._contested, access, view, addresses, events, before)
        if bits is None:
            self._contests.append(contested)
        else:
            contested(bits[by_others])

    def _contested(
        self, access: Access, view: View, addresses: Array, events: Array, before: Array, after: Array | None = None
    ) -> None:
        """Two programs stored to these addresses: other bits `before` than `after`, None where these lie there now."""
        differ = before != (bits_at(addresses, access.width) if after is None else after)
        stores = self.running.stores
        self.counts.equal += int((~differ).sum())
        if stores.is_ordered:
            self.counts.ordered += int(differ.sum())
        elif differ.any():
            self._found(RACE, access, view, addresses, differ, stores.earlier(int(events[differ][0])))

    def _found(
        self, kind: str, access: Access, view: View, addresses: Array, which: Array | None, other: Earlier | None = None
    ) -> None:
        """Counts `which` of the addresses as a finding; only the first of its kind is described."""
        if which is None or not which.any():
            return
        self.running.is_plain = False
        key = (kind, access.kind, view.name, access.kernel, access.lines)
        if key not in self._findings:
            spot = view.spot(int(addresses[which][0]), access.width, self.running.around)
            lines = places(access.lines)
            first = AccessFinding(
                kind, access.kind, view.name, access.kernel, lines, access.program, spot, other, access.width
            )
            if kind == UNWRITTEN:
                made = self.unwritten.places.get(view.home, ("", 0))
                first = replace(first, allocated=made, rest=self._rest(view.home))
            self._findings[key] = _Count(first, self.running)
        count, program = self._findings[key], (access.launch, access.program)
        inside = self._inside.get(_numbers(access.lines))
        count.runs_on &= bool(which.all()) and inside is not None and inside[:2] == program
        count.lanes += int(which.sum())
        count.programs.add(program)

    def _rest(self, home: int) -> Rest | None:
        """Who stored the rest of what is read where nothing has written it: an earlier launch."""
        launch, lines = self._storing.get(home, (None, ()))
        if launch is None or launch is self.launch:
            return None
        return Rest(launch.kernel, places(lines)[0], tuple(launch.alike.items()))

    @property
    def findings(self) -> tuple[AccessFinding, ...]:
        """By kind, stores before loads; among these in the order in which they were first seen."""
        found = [count.finding for count in self._findings.values()]
        return tuple(sorted(found, key=lambda one: (_ORDER.index(one.kind), _ACCESSES.index(one.access))))

    def recall(self, view: View, units: Units, lines: tuple[Line, ...]) -> None:
        """Notes what a launch of an earlier check has stored in a view's storage, last from these lines."""
        self.unwritten.stored(view.home, units.offsets, units.width)
        if view.home in self.unwritten.places:
            self._storing[view.home] = self.running, lines

    def last_of(self, launch: Launch) -> dict[int, tuple[Line, ...]]:
        """By home of what had no value: the lines of a launch that stored there, where no later one did."""
        return {home: lines for home, (by, lines) in self._storing.items() if by is launch}

    @property
    def running(self) -> Launch:
        """The launch that runs."""
        assert self.launch is not None
        return self.launch


def _numbers(lines: tuple[Line, ...]) -> tuple[tuple[int, int], ...]:
    """Of lines that are executing: the id of each one's code, and its number there."""
    return tuple([(id(code), line) for code, line in lines])  # type: ignore[misc]


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def bits_at(addresses: Array, width: int) -> Array:
    """[N] the bits at addresses, each access of `width` bytes."""
    dtype = np.dtype(f"u{width}")
    on = np.ones(addresses.shape, bool)
    return shipped._interpreter.load(np.ascontiguousarray(addresses), on, np.zeros(addresses.shape, dtype), dtype)
