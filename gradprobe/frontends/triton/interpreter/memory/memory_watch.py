"""Memory: judges each access of interpreted kernels, counts what it finds, and says which lanes are to be left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from triton.runtime import interpreter as shipped

from .....inputs.memory import Array, Marks, Unwritten
from .....model.assignment import OUTPUTS
from .....model.memory_finding import MISALIGNED, OUTSIDE, RACE, UNWRITTEN, MemoryFinding
from .....model.number import plural
from .....source.text import SourceLine
from .stream import Access, CodeLine, InterpretedLaunch, Program, Stream, Watcher, places
from .views import AddressSpot, View

_VERBS = {"load": "loads", "store": "stores", "atomic": "does an atomic"}


@dataclass
class AccessTally:
    """All accesses of one kind that one line of a kernel made to one tensor, counted as they are made."""

    first: MemoryFinding
    runs_on: bool = True
    """Whether each of these accesses left the tensor with every lane, in a program where its line had been inside."""
    lanes: int = 0
    """In all launches; one element as often as it was accessed."""
    made_by: set[tuple[int, Program]] = field(default_factory=set)
    """The number of each launch, and its programs that did it."""

    @property
    def finding(self) -> MemoryFinding:
        """The first one, with how often it was done."""
        often = f"{plural(self.lanes, 'lane')} in {plural(len(self.made_by), 'program')}"
        sentence, runs_on = f"{self.first.sentence}; {often}", self.first.kind == OUTSIDE and self.runs_on
        return replace(self.first, sentence=sentence, lanes=self.lanes, runs_on=runs_on)


class RacingStore(NamedTuple):
    """A store of one program."""

    program: Program
    lines: tuple[CodeLine, ...]
    is_atomic: bool


def _deed(kind: str, access: Access, name: str, spot: AddressSpot, earlier: RacingStore | None) -> str:
    """What a program did to an element."""
    does, by = _VERBS[access.kind], f"(program {access.program})"
    element = name + (spot.words if spot.is_element else f" ({spot.words})")
    if kind == OUTSIDE:
        return f"{does} outside {name}: {spot.words} {by}"
    if kind == UNWRITTEN:
        return f"{does}{' on' if access.kind == 'atomic' else ''} {element}, which nothing has written {by}"
    if earlier is None:
        rule = f"an address that is no multiple of {access.width}"
        return f"{does} {access.width} bytes at once at {element}, {rule} {by}: a GPU ends the process there"
    mixed = access.kind == "atomic" or earlier.is_atomic
    how = "by a plain store and an atomic" if mixed else "without an atomic"
    own, other = places(access.lines)[0], places(earlier.lines)[0]
    there = f", line {other.line}" if other != own else ""
    return f"writes {element} from two programs {how}: {access.program} after {earlier.program}{there}"


def _where(lines: Sequence[CodeLine]) -> str:
    """The line in the kernel, and that of the function that it called to get there."""
    outer, *_, inner = *places(lines), *places(lines[-1:])
    where = f"line {outer.line}" + (f": `{outer.code}`" if outer.code else "")
    if inner == outer:
        return where
    line = f"line {inner.line}" if inner.file == outer.file else inner.place
    return f"{where} (in {inner.function}, {line})"


class Stores:
    """The stores of one launch, whose programs the interpreter runs one after another.

    A plain store leaves its number at each address, an atomic leaves its negative number where nothing has stored yet:
    of several atomics the first one stays, since a later program's plain store races with it as with any other.
    """

    def __init__(self) -> None:
        self._marks: dict[int, Marks] = {}
        self.events: list[RacingStore] = []
        """By their numbers, which begin at 1: a mark of 0 says that nothing has stored."""
        self._first = 1
        """The number of the first event of the program that runs."""
        self._program: Program | None = None
        self.is_ordered = False
        """Whether the running program did an atomic that locks are made of, so that its stores may be ordered."""

    def enter(self, access: Access) -> None:
        """Notes the program that runs now."""
        if access.program != self._program:
            self._program, self._first, self.is_ordered = access.program, len(self.events) + 1, False
        self.is_ordered |= access.is_exchange

    def add(self, access: Access, view: View, addresses: Array) -> Array:
        """Notes a store; [N] for each address the number of an event of another program that it may race with, or 0."""
        width, is_atomic = access.width, access.kind == "atomic"
        marks = self._marks.get(view.low)
        if marks is None:
            marks = Marks(view.high - view.low, min(width, view.elements.itemsize))
        # Fine enough to tell neighbours of this width apart.
        self._marks[view.low] = marks = marks if marks.unit <= width else marks.refined(width)
        self.events.append(RacingStore(access.program, access.lines, is_atomic))
        offsets, event = view.in_bytes(addresses), len(self.events)
        before = marks.read(offsets, width)
        by_others = (before != 0) & (np.abs(before) < self._first)
        if is_atomic:
            by_others &= before > 0
            marks.write(offsets, width, np.where(before == 0, -event, before))
        else:
            marks.write(offsets, width, event)
        return np.where(by_others, np.abs(before), 0).max(1)


class Memory(Watcher):
    """What was seen of the accesses of all kernels that ran while it looked on."""

    def __init__(self, unwritten: Unwritten) -> None:
        self._unwritten = unwritten
        self.errors: dict[str, None] = {}
        self._stores = Stores()
        self._last: dict[int, tuple[InterpretedLaunch, tuple[CodeLine, ...]]] = {}
        """By home of what nothing had written once: the last launch that stored there, with its lines."""
        self._tallies: dict[tuple[object, ...], AccessTally] = {}
        self.writers: dict[str, tuple[str, SourceLine]] = {}
        """By the caller's input that a kernel changed: the first that stored other bits than it held, and its line."""
        self._inside: dict[tuple[int, ...], tuple[int, Program, object]] = {}
        """By line, of whose code the id is taken since its hash takes long: the program in which it last stayed inside
        its tensor, and the line, so that no other code takes its id."""
        self._changing: list[tuple[View, Array, Array, Array]] = []
        """Of the access that is being made: view, addresses, the stores of others there, and what they hold."""

    @property
    def findings(self) -> tuple[MemoryFinding, ...]:
        """In the order in which they were first seen."""
        return tuple([tally.finding for tally in self._tallies.values()])

    @property
    def failures(self) -> tuple[str, ...]:
        """What went wrong in watching. The accesses concerned were executed as they were, and not judged."""
        return tuple(self.errors)

    def begun(self, launch: InterpretedLaunch, arguments: object) -> None:
        """Stores of another launch race with none of its own."""
        self._stores = Stores()

    def before(self, access: Access) -> Array | None:
        """Judges an access; gives the lanes that stay in their storage, or None where all do."""
        self._stores.enter(access)
        self._changing = []
        kept = None
        for view, lanes, addresses in access.parts:
            stays = self._judge(access, view, addresses)
            if not stays.all():
                if kept is None:
                    kept = np.array(np.broadcast_to(access.on, access.pointers.data.shape), bool).reshape(-1)
                kept[lanes[~stays]] = False
        return kept

    def after(self, access: Access, result: Any) -> None:
        """What it changed of inputs, and of what another program of the launch stored.

        Stores of a program that did an exchange may be ordered by a lock.
        """
        for view, addresses, others, before in self._changing:
            differ = _bits_at(addresses, access.width) != before
            if not differ.any():
                continue
            if _is_input(view) and view.hold(addresses[differ], access.width).any():
                self.writers.setdefault(view.name, (access.launch.kernel, places(access.lines)[0]))
            differ &= others != 0
            if differ.any() and not self._stores.is_ordered:
                earlier = self._stores.events[int(others[differ][0]) - 1]
                self._count(RACE, access, view, addresses, differ, earlier)

    def _judge(self, access: Access, view: View, addresses: Array) -> Array:
        """Which of these accesses may be executed: those that stay in the view's storage."""
        width, home, unwritten = access.width, view.home, self._unwritten
        inside = stays = view.hold(addresses, width)
        within = stored = addresses
        if not inside.all():
            stays = view.in_storage(addresses, width)
            within, stored = addresses[inside], addresses[stays]
            self._count(OUTSIDE, access, view, addresses, ~inside)
        elif len(inside):
            self._inside[_key(access.lines)] = access.launch.number, access.program, access.lines
        if width > view.elements.itemsize:  # an element by itself lies where its tensor does
            self._count(MISALIGNED, access, view, within, within % width != 0)
        if access.kind != "store":
            unread = unwritten.among(home, view.in_bytes(within), width)
            if unread is not None:
                self._count(UNWRITTEN, access, view, within, unread)
        if access.kind != "load":
            others = self._stores.add(access, view, stored)
            unwritten.stored(home, view.in_bytes(stored), width)
            if home in unwritten.places:
                self._last[home] = access.launch, access.lines
            if _is_input(view) or others.any():
                self._changing.append((view, stored, others, _bits_at(stored, width)))
        return stays

    def _count(
        self, kind: str, access: Access, view: View, addresses: Array, which: Array, earlier: RacingStore | None = None
    ) -> None:
        """Counts `which` of the addresses as a finding; only the first of its kind is described."""
        if not which.any():
            return
        launch, lines = access.launch, access.lines
        key = (kind, access.kind, view.name, launch.kernel, lines)
        tally = self._tallies.get(key)
        if tally is None:
            spot, place = view.spot(int(addresses[which][0]), access.width), places(lines)[0]
            sentence = f"{launch.kernel} {_deed(kind, access, view.name, spot, earlier)}, {_where(lines)}"
            of = (kind, view.name, sentence, launch.kernel, place.file, place.line, place.code)
            first = MemoryFinding(*of, access=access.kind, wraps=spot.wraps)
            if kind == UNWRITTEN:
                first = replace(first, allocated=self._unwritten.places.get(view.home, ("", 0)))
                before, stored_by = self._last.get(view.home, (launch, ()))
                if before is not launch:
                    place = places(stored_by)[0]
                    first = replace(first, rest=(before.kernel, place.file, place.line))
            self._tallies[key] = tally = AccessTally(first)
        program = launch.number, access.program
        tally.runs_on &= bool(which.all()) and self._inside.get(_key(lines), ())[:2] == program
        tally.lanes += int(which.sum())
        tally.made_by.add(program)


def _is_input(view: View) -> bool:
    return view.known is not None and view.name not in OUTPUTS


def _key(lines: tuple[CodeLine, ...]) -> tuple[int, ...]:
    return tuple([number for code, line in lines for number in (id(code), line)])


def _bits_at(addresses: Array, width: int) -> Array:
    """[N] the bits at addresses, each access of `width` bytes."""
    dtype, on = np.dtype(f"u{width}"), np.ones(addresses.shape, bool)
    return shipped._interpreter.load(np.ascontiguousarray(addresses), on, np.zeros(addresses.shape, dtype), dtype)


@contextlib.contextmanager
def watched_memory(
    tensors: Mapping[str, Tensor], unwritten: Unwritten | None = None, follower: Watcher | None = None
) -> Iterator[Memory]:
    """While open, every access of a kernel in Triton's interpreter is judged; results stay what they were.

    An access that leaves the storage of its tensor is not executed: a load gives the mask's `other`, or 0, and a store
    or an atomic does nothing. A tensor's elements are those of the view that was passed.

    Args:
        tensors: those that the caller knows by name. Others are named after the kernel's parameter, without "ptr".
        unwritten: which memory has no value as yet; without it, no read is reported as one of unwritten memory.
        follower: looks on too.

    Raises:
        InterpreterNotKnown: this release of Triton lacks something that has to be watched.
    """
    memory = Memory(Unwritten() if unwritten is None else unwritten)
    with Stream(tensors, (memory, follower) if follower else (memory,), memory.errors).opened():
        yield memory
