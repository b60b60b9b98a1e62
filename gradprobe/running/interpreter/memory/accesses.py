"""Accesses: judges each load, store and atomic of a launch, and says which lanes of it must not be executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from triton.runtime import interpreter as shipped

from ....cases.case import OUTPUTS
from ...elements import Array
from ...unwritten import Unwritten
from .findings import MISALIGNED, OUTSIDE, RACE, UNWRITTEN, Earlier, Program, Spot
from .frames import Line, executing
from .launch import Launch
from .origins import Origins
from .tally import Seen, Tally
from .views import View


@dataclass(frozen=True)
class Access:
    """One load, store or atomic of many lanes."""

    kind: str
    """"load", "store" or "atomic"."""
    program: Program
    lines: tuple[Line, ...]
    width: int
    """In bytes, of a lane."""


@dataclass
class Counts:
    """What is no finding, in lanes."""

    equal: int = 0
    """Stores that left at an address the bits that another program had stored there."""
    ordered: int = 0
    """Stores over another program's by one that had done an exchange, and so may have held a lock."""
    unfollowed: int = 0
    """Accesses at addresses in no storage that was known."""


@dataclass(frozen=True)
class _Contest:
    """Atomics on what other programs had stored plainly, before they are done."""

    access: Access
    view: View
    addresses: Array
    events: Array
    before: Array


class Accesses:
    """Judges accesses, one launch after another."""

    def __init__(self, origins: Origins, unwritten: Unwritten) -> None:
        self._origins = origins
        self._unwritten = unwritten
        self.tally = Tally()
        self.counts = Counts()
        self.launch: Launch | None = None
        """The one that runs."""
        self.writers: dict[str, tuple[str, tuple[Line, ...]]] = {}
        """By the caller's input: the kernel, and the lines, that first stored other bits there than it held."""
        self._contests: list[_Contest] = []

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
        launch = self._running()
        launch.stores.enter(program)
        lanes = np.flatnonzero(np.broadcast_to(on, pointers.data.shape))
        addresses = pointers.data.reshape(-1)[lanes]
        bits = None if values is None else _bits(np.broadcast_to(values, pointers.data.shape).reshape(-1)[lanes])
        access = Access(kind, program, executing(launch.code), width)
        keep = np.ones(len(lanes), bool)
        for view, some in launch.by_view(self._origins.of(pointers), addresses, lanes):
            if view is None:
                self.counts.unfollowed += len(addresses[some])
            elif not view.is_own:
                keep[some] = self._judge(access, view, addresses[some], None if bits is None else bits[some])
        if keep.all():
            return None
        kept = np.zeros(pointers.data.size, bool)
        kept[lanes[keep]] = True
        return kept

    def settle(self) -> None:
        """After an atomic was done: it raced with a plain store of another program where it changed a bit."""
        contests, self._contests = self._contests, []
        for contest in contests:
            changed = _read(contest.addresses, contest.access.width) != contest.before
            self._contested(contest.access, contest.view, contest.addresses, contest.events, changed)

    def _judge(self, access: Access, view: View, addresses: Array, bits: Array | None) -> Array:
        """Which of these accesses may be executed: those that stay in the view's storage."""
        inside = view.hold(addresses, access.width)
        stays = inside
        if not inside.all():
            stays = view.in_storage(addresses, access.width)
            self._report(OUTSIDE, access, view, addresses[~inside])
        if access.width > view.elements.itemsize:  # an element by itself lies where its tensor does
            self._misaligned(access, view, addresses[inside])
        if access.kind != "store":
            self._read_unwritten(access, view, addresses[inside])
        if access.kind != "load":
            self._overwritten(access, view, addresses[inside], None if bits is None else bits[inside])
            self._stored(access, view, addresses[stays], None if bits is None else bits[stays])
        return stays

    def _overwritten(self, access: Access, view: View, addresses: Array, bits: Array | None) -> None:
        if view.known is None or view.name in OUTPUTS or view.name in self.writers:
            return
        if bits is None or (_read(addresses, access.width) != bits).any():
            self.writers[view.name] = (self._running().kernel, access.lines)

    def _misaligned(self, access: Access, view: View, addresses: Array) -> None:
        found = addresses % access.width != 0
        if found.any():
            self._report(MISALIGNED, access, view, addresses[found])

    def _read_unwritten(self, access: Access, view: View, addresses: Array) -> None:
        found = self._unwritten.among(view.home, view.in_bytes(addresses), access.width)
        if found is not None and found.any():
            self._report(UNWRITTEN, access, view, addresses[found])

    def _stored(self, access: Access, view: View, addresses: Array, bits: Array | None) -> None:
        stores = self._running().stores
        is_atomic = access.kind == "atomic"
        events = stores.add(view, addresses, access.width, access.lines, is_atomic=is_atomic)
        self._unwritten.stored(view.home, view.in_bytes(addresses), access.width)
        by_others = events != 0
        if not by_others.any():
            return
        addresses, events = addresses[by_others], events[by_others]
        before = _read(addresses, access.width)
        if bits is None:
            self._contests.append(_Contest(access, view, addresses, events, before))
        else:
            self._contested(access, view, addresses, events, before != bits[by_others])

    def _contested(self, access: Access, view: View, addresses: Array, events: Array, differ: Array) -> None:
        """Two programs stored to these addresses, and left different bits at some."""
        stores = self._running().stores
        self.counts.equal += int((~differ).sum())
        if stores.is_ordered:
            self.counts.ordered += int(differ.sum())
        elif differ.any():
            self._report(RACE, access, view, addresses[differ], stores.earlier(int(events[differ][0])))

    def _report(self, kind: str, access: Access, view: View, addresses: Array, earlier: Earlier | None = None) -> None:
        launch = self._running()

        def describe() -> tuple[Spot, Earlier | None]:
            return view.spot(int(addresses[0]), access.width, launch.around), earlier

        seen = Seen(
            kind, access.kind, view, launch.kernel, access.lines, launch.number, access.program, len(addresses),
            access.width,
        )  # fmt: skip
        self.tally.add(seen, describe)

    def _running(self) -> Launch:
        assert self.launch is not None
        return self.launch


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _read(addresses: Array, width: int) -> Array:
    """The bits at addresses."""
    dtype = np.dtype(f"u{width}")
    on = np.ones(addresses.shape, bool)
    return shipped._interpreter.load(np.ascontiguousarray(addresses), on, np.zeros(addresses.shape, dtype), dtype)
