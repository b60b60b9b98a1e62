"""Launch: the tensors that one launch of a kernel was given, where its pointers come from, and what it stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import numpy as np
from triton.runtime import interpreter as shipped

from .....inputs.memory import Array, Marks
from ...kernel_call import tensors_in
from .findings import CodeLine, Earlier, Program
from .views import NO_ORIGIN, View, argument_view


class Stores:
    """The stores of one launch, whose programs the interpreter runs one after another.

    A plain store leaves its number at each address, an atomic leaves its negative number where nothing has stored yet:
    of several atomics the first one stays, since a later program's plain store races with it as with any other.
    """

    def __init__(self) -> None:
        self._marks: dict[int, Marks] = {}
        self._events: list[Earlier] = []
        """By their numbers, which begin at 1: a mark of 0 says that nothing has stored."""
        self._first = 1
        """The number of the first event of the program that runs."""
        self._program: Program | None = None
        self.is_ordered = False
        """Whether the running program did an atomic that locks are made of, so that its stores may be ordered."""

    def enter(self, program: Program) -> None:
        """Notes that this program runs now."""
        if program != self._program:
            self._program, self._first, self.is_ordered = program, len(self._events) + 1, False

    def add(self, view: View, addresses: Array, width: int, lines: tuple[CodeLine, ...], *, is_atomic: bool) -> Array:
        """Notes a store of the running program.

        Returns:
            [N] for each address the number of an event of another program that it may race with, or 0.
        """
        marks = self._marks_of(view, width)
        offsets, event = view.in_bytes(addresses), self._event(lines, is_atomic)
        before = marks.read(offsets, width)
        if not before.any():
            marks.write(offsets, width, -event if is_atomic else event)
            return before.max(1)
        by_others = (before != 0) & (np.abs(before) < self._first)
        if is_atomic:
            by_others &= before > 0
            marks.write(offsets, width, np.where(before == 0, -event, before))
        else:
            marks.write(offsets, width, event)
        return np.where(by_others, np.abs(before), 0).max(1)

    def earlier(self, number: int) -> Earlier:
        """The event of that number."""
        return self._events[number - 1]

    def _marks_of(self, view: View, width: int) -> Marks:
        """The marks of a view's storage, fine enough to tell neighbours of this width in bytes apart."""
        marks = self._marks.get(view.low)
        if marks is None:
            marks = Marks(view.high - view.low, min(width, view.elements.itemsize))
        self._marks[view.low] = marks if marks.unit <= width else marks.refined(width)
        return self._marks[view.low]

    def _event(self, lines: tuple[CodeLine, ...], is_atomic: bool) -> int:
        assert self._program is not None
        event = Earlier(self._program, lines, is_atomic)
        running = self._events[self._first - 1 :]
        if event not in running:
            self._events.append(event)
            return len(self._events)
        return self._first + running.index(event)


class Launch:
    """One launch, from its arguments on."""

    def __init__(self, number: int, function: Any, known: Sequence[View]) -> None:
        self.number = number
        self.kernel: str = getattr(function, "__name__", str(function))
        self.code: CodeType | None = getattr(function, "__code__", None)
        self.stores = Stores()
        self.views: list[View] = []
        """By the number that is the origin of their pointers."""
        self.around: tuple[View, ...] = tuple(known)
        """All tensors that an address may belong to, the caller's before the arguments."""
        self._known = tuple(known)
        self.origins: dict[int, int] = {}
        """The origin of the pointers made from an argument, by the argument's id."""

    def learn(self, arguments: Mapping[str, Any]) -> None:
        """Takes the arguments by parameter name, as the interpreter gives them to the kernel."""
        for parameter, given in arguments.items():
            for name, tensor, handed in tensors_in(given, parameter):
                self.origins[id(handed)] = len(self.views)
                self.views.append(argument_view(tensor, name, self._known))
        self.around = (*self._known, *self.views)

    def by_view(self, origin: int, addresses: Array) -> Iterator[tuple[View | None, Any]]:
        """(view, index of its addresses) for all addresses; the view is None where no known storage holds them.

        Of pointers of lost origin it is the view that has the address as an element, else one of its storage.
        """
        if origin != NO_ORIGIN:
            yield self.views[origin], slice(None)
            return
        left = np.ones(len(addresses), bool)
        for owns in (lambda view: view.hold(addresses, 1), lambda view: view.in_storage(addresses, 1)):
            for view in (*self.views, *self.around):
                chosen = np.flatnonzero(left & owns(view))
                if chosen.size:
                    left[chosen] = False
                    yield view, chosen
        if left.any():
            yield None, np.flatnonzero(left)


def bits_at(addresses: Array, width: int) -> Array:
    """[N] the bits at addresses, each access of `width` bytes."""
    dtype = np.dtype(f"u{width}")
    on = np.ones(addresses.shape, bool)
    return shipped._interpreter.load(np.ascontiguousarray(addresses), on, np.zeros(addresses.shape, dtype), dtype)
