"""Judges each access of interpreted kernels."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from triton.runtime import interpreter as shipped

from ....inputs.memory import Array, Marks, UnwrittenElements
from ....model.assignment import OUTPUTS
from ....model.memory_finding import MISALIGNED, OUTSIDE, RACE, UNWRITTEN, MemoryFinding
from ....model.number import plural
from ....source.syntax import SourceLine
from .stream import Stream, Watcher
from .views import Access, InterpretedLaunch, Program, View

_VERBS = {"load": "loads", "store": "stores", "atomic": "does an atomic"}
# Of a store: its program, its line, and whether it is atomic.
RacingStore = tuple[Program, SourceLine, bool]


def _deed(
    kind: str, access: Access, view: View, address: int, earlier: RacingStore | None
) -> str:
    does, by = _VERBS[access.kind], f"(program {access.program})"
    beyond, element = view.beyond(address)[0], view.element(address, access.width)
    element = view.name + (element or f" ({beyond})")
    if kind == OUTSIDE:
        return f"{does} outside {view.name}: {beyond} {by}"
    if kind == MISALIGNED:
        rule = f"an address that is no multiple of {access.width}"
        return f"{does} {access.width} bytes at once at {element}, {rule} {by}: a GPU ends the process there"
    if earlier is None:
        return f"{does}{' on' if access.kind == 'atomic' else ''} {element}, which nothing has written {by}"
    program, line, is_atomic = earlier
    is_mixed = is_atomic or access.kind == "atomic"
    how = "by a plain store and an atomic" if is_mixed else "without an atomic"
    there = f", line {line.line}" if line != access.site.lines[0] else ""
    return f"writes {element} from two programs {how}: {access.program} after {program}{there}"


class Stores:
    """Of one launch: a store leaves its number at each address, an atomic its negative one where nothing has stored."""

    def __init__(self) -> None:
        self._marks: dict[int, Marks] = {}
        self.events: list[RacingStore] = []
        self._first = 1
        self._program: Program | None = None
        # Whether that program did an atomic that locks are made of.
        self.is_ordered = False

    def add(self, access: Access, view: View, addresses: Array) -> Array:
        """[N] the event of another program that each address may race with, or 0."""
        width, is_atomic = access.width, access.kind == "atomic"
        if access.program != self._program:
            self._program, self._first = access.program, len(self.events) + 1
            self.is_ordered = False
        self.is_ordered |= access.is_exchange
        marks = self._marks.get(view.home)
        if marks is None:
            marks = Marks(view.high - view.home, min(width, view.elements.itemsize))
        # Fine enough to tell neighbours of this width apart.
        self._marks[view.home] = marks = marks if marks.unit <= width else marks.refined(width)
        self.events.append((access.program, access.site.lines[0], is_atomic))
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
    def __init__(self, unwritten: UnwrittenElements) -> None:
        self._unwritten, self._stores = unwritten, Stores()
        self.failures: dict[str, None] = {}
        # By home of what nothing had written: who stored there last.
        self._last: dict[int, tuple[InterpretedLaunch, SourceLine]] = {}
        # What a line did to a tensor in a way: the first, with all lanes; and programs.
        self._found: dict[tuple[object, ...], tuple[MemoryFinding, set[object]]] = {}
        # By input: the kernel that changed it first, and its line.
        self.writers: dict[str, tuple[str, SourceLine]] = {}
        # The programs and lines whose accesses stayed inside.
        self._inside: set[tuple[object, ...]] = set()
        # Of the access that is made: view, addresses, others' stores and the bits there before.
        self._changing: list[tuple[View, Array, Array, Array]] = []

    @property
    def findings(self) -> tuple[MemoryFinding, ...]:
        found = []
        for first, programs in self._found.values():
            often = f"{plural(first.lanes, 'lane')} in {plural(len(programs), 'program')}"
            found.append(replace(first, sentence=f"{first.sentence}; {often}"))
        return tuple(found)

    def begun(self, launch: InterpretedLaunch, arguments: object) -> None:
        self._stores = Stores()

    def before(self, access: Access) -> Array | None:
        self._changing, kept = [], None
        for view, lanes, addresses in access.parts:
            stays = self._judge(access, view, addresses)
            if not stays.all():
                kept = access.lanes.copy() if kept is None else kept
                kept[lanes[~stays]] = False
        return kept

    def after(self, access: Access, result: Any) -> None:
        for view, addresses, others, before in self._changing:
            differ = _bits_at(addresses, access.width) != before
            if not differ.any():
                continue
            if _is_input(view) and view.hold(addresses[differ], access.width).any():
                self.writers.setdefault(view.name, (access.site.kernel, access.site.lines[0]))
            differ &= others != 0
            if differ.any() and not self._stores.is_ordered:
                earlier = self._stores.events[int(others[differ][0]) - 1]
                self._count(RACE, access, view, addresses[differ], earlier)

    def _judge(self, access: Access, view: View, addresses: Array) -> Array:
        width, home, unwritten = access.width, view.home, self._unwritten
        inside = stays = view.hold(addresses, width)
        within = stored = addresses
        if not inside.all():
            stays = view.in_storage(addresses, width)
            within, stored = addresses[inside], addresses[stays]
            self._count(OUTSIDE, access, view, addresses[~inside], is_whole=not inside.any())
        elif len(inside):
            self._inside.add(_program_and_line(access))
        if width > view.elements.itemsize:  # an element by itself lies where its tensor does
            self._count(MISALIGNED, access, view, within[within % width != 0])
        if access.kind != "store":
            unread = unwritten.among(home, view.in_bytes(within), width)
            if unread is not None:
                self._count(UNWRITTEN, access, view, within[unread])
        if access.kind != "load":
            others = self._stores.add(access, view, stored)
            unwritten.stored(home, view.in_bytes(stored), width)
            if home in unwritten.places:
                self._last[home] = access.launch, access.site.lines[0]
            if _is_input(view) or others.any():
                self._changing.append((view, stored, others, _bits_at(stored, width)))
        return stays

    def _count(
        self, kind: str, access: Access, view: View, at: Array, earlier: RacingStore | None = None,
        *, is_whole: bool = True,
    ) -> None:  # fmt: skip
        if not len(at):
            return
        key = (kind, access.kind, view.name, access.site.kernel, access.site.lines)
        if key not in self._found:
            self._found[key] = self._finding(kind, access, view, int(at[0]), earlier), set()
        first, programs = self._found[key]
        programs.add((access.launch, access.program))
        runs_on = first.runs_on and is_whole and _program_and_line(access) in self._inside
        self._found[key] = replace(first, lanes=first.lanes + len(at), runs_on=runs_on), programs

    def _finding(
        self, kind: str, access: Access, view: View, address: int, earlier: RacingStore | None
    ) -> MemoryFinding:
        site, more = access.site, dict[str, Any]()
        line, inner = site.lines[0], site.lines[-1]
        where = f"line {line.line}" + (f": `{line.code}`" if line.code else "")
        inside = f"line {inner.line}" if inner.file == line.file else inner.place
        where += "" if inner == line else f" (in {inner.function}, {inside})"
        words = f"{site.kernel} {_deed(kind, access, view, address, earlier)}, {where}"
        if kind == OUTSIDE:
            more = {"wraps": view.beyond(address)[1], "runs_on": True}
        elif kind == UNWRITTEN:
            more["allocated"] = self._unwritten.places.get(view.home, ("", 0))
            before, at = self._last.get(view.home, (access.launch, line))
            if before is not access.launch:
                more["rest"] = before.kernel, at.file, at.line
        of = (kind, view.name, words, site.kernel, line.file, line.line, line.code)
        return MemoryFinding(*of, access=access.kind, **more)


def _is_input(view: View) -> bool:
    return view.known is not None and view.name not in OUTPUTS


def _program_and_line(access: Access) -> tuple[object, ...]:
    return access.launch, access.program, *(line.line for line in access.site.lines)


def _bits_at(addresses: Array, width: int) -> Array:
    addresses, dtype = np.ascontiguousarray(addresses), np.dtype(f"u{width}")
    on, other = np.ones(addresses.shape, bool), np.zeros(addresses.shape, dtype)
    return shipped._interpreter.load(addresses, on, other, dtype)


@contextlib.contextmanager
def watched_memory(
    tensors: Mapping[str, Tensor],
    unwritten: UnwrittenElements | None = None,
    followers: Sequence[Watcher] = (),
) -> Iterator[Memory]:
    """While open, accesses are judged, and not made outside of storages; or raises InterpreterNotKnown."""
    memory = Memory(unwritten or UnwrittenElements())
    with Stream(tensors, (memory, *followers), memory.failures).opened():
        yield memory
