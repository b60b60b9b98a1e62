"""Memory: judges each access of interpreted kernels, counts what it finds, and says which lanes are to be left out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .....inputs.memory import Array, Unwritten
from .....model.assignment import OUTPUTS
from .....model.memory_finding import MISALIGNED, OUTSIDE, RACE, UNWRITTEN
from .....source.text import SourceLine
from .findings import AccessFinding, CodeLine, Earlier, Program, places
from .stream import Access, Stream, Watcher
from .views import View
from .watched_launch import Launch, bits_at

if TYPE_CHECKING:
    from torch import Tensor

_ORDER = (OUTSIDE, MISALIGNED, RACE, UNWRITTEN)
_ACCESSES = ("store", "atomic", "load")


@dataclass
class _Count:
    """All accesses of one kind that one line made to one tensor."""

    first: AccessFinding
    runs_on: bool = True
    lanes: int = 0
    programs: set[tuple[int, Program]] = field(default_factory=set)

    @property
    def finding(self) -> AccessFinding:
        return replace(self.first, lanes=self.lanes, programs=len(self.programs), runs_on=self.runs_on)


class Memory(Watcher):
    """What was seen of the accesses of all kernels that ran while it looked on."""

    def __init__(self, unwritten: Unwritten) -> None:
        super().__init__()
        self._unwritten = unwritten
        self._last: dict[int, tuple[Launch, tuple[CodeLine, ...]]] = {}
        """By home of what nothing had written once: the last launch that stored there, with its lines."""
        self._findings: dict[tuple[object, ...], _Count] = {}
        self._writers: dict[str, tuple[str, tuple[CodeLine, ...]]] = {}
        self._inside: dict[tuple[tuple[int, int], ...], tuple[int, Program, tuple[CodeLine, ...]]] = {}
        """By line, of whose code the id is taken since its hash takes long: the program in which it last stayed inside
        its tensor, and the line, so that no other code takes its id."""
        self._contests: list[Callable[[], None]] = []
        """What is to be judged once the atomic that comes next is done."""

    @property
    def findings(self) -> tuple[AccessFinding, ...]:
        """By kind, stores before loads; among these in the order in which they were first seen."""
        found = [count.finding for count in self._findings.values()]
        return tuple(sorted(found, key=lambda one: (_ORDER.index(one.kind), _ACCESSES.index(one.access))))

    @property
    def writers(self) -> dict[str, tuple[str, SourceLine]]:
        """By the caller's input that a kernel changed: the first that stored other bits than it held, and its line."""
        return {name: (kernel, places(lines)[0]) for name, (kernel, lines) in self._writers.items() if lines}

    @property
    def failures(self) -> tuple[str, ...]:
        """What went wrong in watching. The accesses concerned were executed as they were, and not judged."""
        return tuple(self.errors)

    def before(self, access: Access) -> Array | None:
        """Judges an access; gives the lanes that stay in their storage, or None where all do."""
        launch, shape = access.launch, access.pointers.data.shape
        launch.stores.enter(access.program)
        launch.stores.is_ordered |= access.is_exchange
        kept = None
        for view, lanes, addresses in access.parts:
            if view is None:
                continue
            bits = _bits(np.broadcast_to(access.value.data, shape).reshape(-1)[lanes]) if access.is_store else None
            stays = self._judge(access, view, addresses, bits)
            if stays is not None:
                kept = np.array(np.broadcast_to(access.on, shape), bool).reshape(-1) if kept is None else kept
                kept[lanes[~stays]] = False
        return kept

    def after(self, access: Access, result: Any) -> None:
        """Where an atomic changed a bit, it raced with the plain store of another program."""
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
            self._inside[_numbers(access.lines)] = access.launch.number, access.program, access.lines
        if access.width > view.elements.itemsize:  # an element by itself lies where its tensor does
            self._found(MISALIGNED, access, view, within, within % access.width != 0)
        if access.kind != "store":
            unread = self._unwritten.among(view.low, view.in_bytes(within), access.width)
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
            self._writers.setdefault(view.name, (access.launch.kernel, access.lines))

    def _stored(self, access: Access, view: View, addresses: Array, bits: Array | None) -> None:
        is_atomic = access.kind == "atomic"
        events = access.launch.stores.add(view, addresses, access.width, access.lines, is_atomic=is_atomic)
        self._unwritten.stored(view.low, view.in_bytes(addresses), access.width)
        if view.low in self._unwritten.places:
            self._last[view.low] = access.launch, access.lines
        by_others = events != 0
        if not by_others.any():
            return
        addresses, events = addresses[by_others], events[by_others]
        before = bits_at(addresses, access.width)
        contested = partial(self._contested, access, view, addresses, events, before)
        if bits is None:
            self._contests.append(contested)
        else:
            contested(bits[by_others])

    def _contested(
        self, access: Access, view: View, addresses: Array, events: Array, before: Array, after: Array | None = None
    ) -> None:
        """Two programs stored to these addresses: other bits `before` than `after`, None where these lie there now.

        Stores of a program that did an exchange may be ordered by a lock.
        """
        differ, stores = before != (bits_at(addresses, access.width) if after is None else after), access.launch.stores
        if differ.any() and not stores.is_ordered:
            self._found(RACE, access, view, addresses, differ, stores.earlier(int(events[differ][0])))

    def _found(
        self, kind: str, access: Access, view: View, addresses: Array, which: Array | None, other: Earlier | None = None
    ) -> None:
        """Counts `which` of the addresses as a finding; only the first of its kind is described."""
        if which is None or not which.any():
            return
        launch, lines = access.launch, access.lines
        key = (kind, access.kind, view.name, launch.kernel, lines)
        if key not in self._findings:
            spot = view.spot(int(addresses[which][0]), access.width, launch.around)
            of = (kind, access.kind, view.name, launch.kernel, places(lines), access.program, spot, other, access.width)
            first = AccessFinding(*of)
            if kind == UNWRITTEN:
                made = self._unwritten.places.get(view.low, ("", 0))
                before, its_lines = self._last.get(view.low, (launch, ()))
                rest = None if before is launch else (before.kernel, places(its_lines)[0])
                first = replace(first, allocated=made, rest=rest)
            self._findings[key] = _Count(first)
        count, program = self._findings[key], (launch.number, access.program)
        inside = self._inside.get(_numbers(lines))
        count.runs_on &= bool(which.all()) and inside is not None and inside[:2] == program
        count.lanes += int(which.sum())
        count.programs.add(program)


def _numbers(lines: tuple[CodeLine, ...]) -> tuple[tuple[int, int], ...]:
    """Of lines that are executing: the id of each one's code, and its number there."""
    return tuple([(id(code), line) for code, line in lines])


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


@contextlib.contextmanager
def watched_memory(
    tensors: Mapping[str, Tensor], unwritten: Unwritten | None = None, *others: Watcher
) -> Iterator[Memory]:
    """While open, every access of a kernel in Triton's interpreter is judged; results stay what they were.

    An access that leaves the storage of its tensor is not executed: a load gives the mask's `other`, or 0, and a store
    or an atomic does nothing. Everything else happens as without the watcher. A tensor's elements are those of the
    view that was passed; an address of unknown origin belongs to the storage that holds it. Views of over 2^24
    elements with gaps in between count as if they had none.

    Args:
        tensors: those that the caller knows by name. Others are named after the kernel's parameter, without "ptr".
        unwritten: which memory has no value as yet; without it, no read is reported as one of unwritten memory.
        others: look on too.

    Raises:
        InterpreterNotKnown: this release of Triton lacks something that has to be watched.
    """
    memory = Memory(Unwritten() if unwritten is None else unwritten)
    with Stream(tensors, (memory, *others)).opened():
        yield memory
