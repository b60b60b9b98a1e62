"""Findings: accesses that a kernel should not have made, each with tensor, program and line, and as a sentence."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from .....model.memory_finding import MISALIGNED, OUTSIDE, UNWRITTEN
from .....source.text import SourceLine

Program = tuple[int, int, int]
CodeLine = tuple[CodeType, int]
"""A line that is executing."""
Line = CodeLine | SourceLine
_VERBS = {"load": "loads", "store": "stores", "atomic": "does an atomic"}


@dataclass(frozen=True)
class AddressSpot:
    """Where an address lies, seen from a tensor."""

    offset: int
    """In elements from the tensor's first one."""
    bytes_off: int
    """By how many bytes it lies behind that; 0 unless the pointer is misaligned."""
    side: str
    """"before", "after" or "between" the tensor's elements; "" at one of them."""
    distance: int
    """In elements: to the first one, from the last one, or from the last one before the gap."""
    index: tuple[int, ...] | None
    """Of that element; of the element itself where it is at one. In the caller's tensor where it knows it."""
    holder: str = ""
    """Another tensor, with an index, of which it is an element: "k[0, 1, 0, 0]"."""
    wrapped: tuple[int, ...] | None = None
    """Of the element whose offset, cut to 32 bits, leads here; None where there is none."""
    is_beyond: bool = False
    """Whether it lies beyond the tensor's storage too. Such an access is not executed."""

    @property
    def in_words(self) -> str:
        """Such as "84 elements after its end, where k[0, 0, 2, 4] lies"."""
        off = f" and {_number(self.bytes_off, 'byte')}" if self.bytes_off else ""
        words = {
            "": f"at {_bracketed(self.index)}",
            "before": f"{_number(self.distance, 'element')}{off} before its start",
            "after": f"{_number(self.distance, 'element')}{off} after its end",
            "between": f"{_number(self.distance, 'element')}{off} past {_bracketed(self.index)}, in a gap of it",
        }[self.side]
        words += f", where {self.holder} lies" if self.holder else ""
        words += f": the offset of {_bracketed(self.wrapped)}, wrapped around in 32 bits" if self.wrapped else ""
        return words + (", beyond its storage" if self.is_beyond else "")


@dataclass(frozen=True)
class Earlier:
    """One line storing in one program: of a race, the store that another program made to the same address before."""

    program: Program
    lines: tuple[CodeLine, ...]
    is_atomic: bool

    @property
    def place(self) -> SourceLine:
        return places(self.lines)[0]


@dataclass(frozen=True)
class AccessFinding:
    """All accesses of one kind that one line of a kernel made to one tensor."""

    kind: str
    """"outside" its tensor; "race": two programs of a launch leave different bits at one address, not both by atomics;
    "unwritten": a read of what nothing has written; "misaligned": wider than the elements are, at an address that is no
    multiple of that width."""
    access: str
    """"load", "store" or "atomic"."""
    tensor: str
    """Its name, or that of the kernel's parameter without "ptr" where the caller does not know it."""
    kernel: str
    places: tuple[SourceLine, ...]
    """The line in the kernel, then those in the functions that it called to get there."""
    program: Program
    """The first that did it; all that follows is about its first element."""
    spot: AddressSpot
    earlier: Earlier | None
    """Of a race: the other program."""
    width: int
    """In bytes, of one element."""
    lanes: int = 0
    """How many elements were accessed so, in all launches; the same one as often as it was."""
    programs: int = 0
    """How many programs did it, counted anew in each launch."""
    allocated: tuple[str, int] = ("", 0)
    """Of a read of what nothing has written: the file and the line that allocated it, where they are known."""
    rest: tuple[str, SourceLine] | None = None
    """Of the same: the kernel and the line that stored the rest of it before; None where none did."""
    runs_on: bool = False
    """Whether each of these accesses left the tensor with every lane, in a program where its line had been inside."""

    @property
    def place(self) -> SourceLine:
        return self.places[0]

    def sentence(self) -> str:
        """What happened, where, and how often; without a full stop."""
        place = self.place
        where, called = f"line {place.line}" + (f": `{place.code}`" if place.code else ""), []
        for inner in self.places[1:]:
            line = f"line {inner.line}" if inner.file == place.file else inner.place
            called.append(f"{inner.function}, {line}")
        where += f" (in {', in '.join(called)})" if called else ""
        count = f"{_number(self.lanes, 'lane')} in {_number(self.programs, 'program')}"
        count += f"; {self.rest[0]} stores the rest, line {self.rest[1].line}" if self.rest else ""
        source, number = self.allocated
        count += f"; allocated at {Path(source).name}:{number}" if source else ""
        return f"{self.kernel} {self._what_it_does()}, {where}; {count}"

    def _what_it_does(self) -> str:
        does, spot, by = _VERBS[self.access], self.spot.in_words, f"(program {self.program})"
        element = f"{self.tensor} ({spot})" if self.spot.side else f"{self.tensor}{_bracketed(self.spot.index)}"
        if self.kind == OUTSIDE:
            return f"{does} outside {self.tensor}: {spot} {by}"
        if self.kind == UNWRITTEN:
            return f"{does}{' on' if self.access == 'atomic' else ''} {element}, which nothing has written {by}"
        if self.kind == MISALIGNED:
            at = f"in {self.tensor}, {spot}" if self.spot.side else f"at {element}"
            rule = f"an address that is no multiple of {self.width}"
            return f"{does} {self.width} bytes at once {at}, {rule} {by}: a GPU ends the process there"
        assert self.earlier is not None
        mixed = self.access == "atomic" or self.earlier.is_atomic
        how = "by a plain store and an atomic" if mixed else "without an atomic"
        there = f", line {self.earlier.place.line}" if self.earlier.place != self.place else ""
        return f"writes {element} from two programs {how}: {self.program} after {self.earlier.program}{there}"


def _bracketed(index: tuple[int, ...] | None) -> str:
    return "[?]" if index is None else f"[{', '.join(map(str, index))}]"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def places(lines: Sequence[Line]) -> tuple[SourceLine, ...]:
    """The same in words."""
    found = []
    for each in lines:
        if isinstance(each, SourceLine):
            found.append(each)
            continue
        code, line = each
        file = code.co_filename
        found.append(SourceLine(file, line, linecache.getline(file, line).strip(), function=code.co_name))
    return tuple(found)
