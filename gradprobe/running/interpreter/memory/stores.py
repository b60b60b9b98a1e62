"""Stores: which program of a launch has stored where, and at which line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...elements import Array
from ...marks import Marks
from .findings import Earlier, Program
from .frames import Line, places
from .views import View


@dataclass(frozen=True)
class _Event:
    """One line storing in one program."""

    program: Program
    lines: tuple[Line, ...]
    is_atomic: bool


class Stores:
    """The stores of one launch, whose programs the interpreter runs one after another.

    A plain store leaves its number at each address, an atomic leaves its negative number where nothing has stored yet:
    of several atomics the first one stays, since a later program's plain store races with it as with any other.
    """

    def __init__(self) -> None:
        self._marks: dict[int, Marks] = {}
        self._events: list[_Event | None] = [None]
        self._first = 1
        """The first event of the program that runs."""
        self._program: Program | None = None
        self.is_ordered = False
        """Whether the running program did an atomic that locks are made of, so that its stores may be ordered."""

    def enter(self, program: Program) -> None:
        """From now on this program runs."""
        if program != self._program:
            self._program, self._first, self.is_ordered = program, len(self._events), False

    def add(self, view: View, addresses: Array, width: int, lines: tuple[Line, ...], *, is_atomic: bool) -> Array:
        """Notes a store of the running program.

        Returns:
            [N] for each address the number of an event of another program that it may race with, or 0.
        """
        marks = self._marks_of(view, width)
        offsets, event = view.in_bytes(addresses), self._event(lines, is_atomic)
        before = marks.read(offsets, width)
        by_others = (before != 0) & (np.abs(before) < self._first)
        if is_atomic:
            by_others &= before > 0
            marks.write(offsets, width, np.where(before == 0, -event, before))
        else:
            marks.write(offsets, width, event)
        return np.where(by_others, np.abs(before), 0).max(1)

    def earlier(self, number: int) -> Earlier:
        """The event of that number."""
        event = self._events[number]
        assert event is not None
        return Earlier(event.program, places(event.lines)[0], event.is_atomic)

    def _marks_of(self, view: View, width: int) -> Marks:
        """The marks of a view's storage, fine enough to tell neighbours of this width in bytes apart."""
        marks = self._marks.get(view.low)
        if marks is None:
            marks = Marks(view.high - view.low, min(width, view.elements.itemsize))
        self._marks[view.low] = marks if marks.unit <= width else marks.refined(width)
        return self._marks[view.low]

    def _event(self, lines: tuple[Line, ...], is_atomic: bool) -> int:
        assert self._program is not None
        event = _Event(self._program, lines, is_atomic)
        running = self._events[self._first :]
        if event not in running:
            self._events.append(event)
            return len(self._events) - 1
        return self._first + running.index(event)
