"""Findings: accesses that a kernel should not have made, each with tensor, program and line, and as a sentence."""

from __future__ import annotations

import functools
import linecache
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import triton

Program = tuple[int, int, int]
OUTSIDE, MISALIGNED, RACE, UNWRITTEN = "outside", "misaligned", "race", "unwritten"
# How many of the programs are named.
NAMED = 4
_VERBS = {"load": "loads", "store": "stores", "atomic": "does an atomic"}


@dataclass(frozen=True)
class KernelLine:
    """A line of a kernel, or of a function that it calls."""

    function: str
    file: str
    line: int
    code: str
    """The text of the line, without the blanks around it; "" where the file cannot be read."""


@dataclass(frozen=True)
class Spot:
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
    def words(self) -> str:
        """Such as "84 elements after its end, where k[0, 0, 2, 4] lies"."""
        off = f" and {_number(self.bytes_off, 'byte')}" if self.bytes_off else ""
        words = {
            "": f"at {_bracketed(self.index)}",
            "before": f"{_number(self.distance, 'element')}{off} before its start",
            "after": f"{_number(self.distance, 'element')}{off} after its end",
            "between": f"between its elements, {_number(self.distance, 'element')}{off} after {_bracketed(self.index)}",
        }[self.side]
        words += f", where {self.holder} lies" if self.holder else ""
        words += f": the offset of {_bracketed(self.wrapped)}, wrapped around in 32 bits" if self.wrapped else ""
        return words + (", beyond its storage" if self.is_beyond else "")


@dataclass(frozen=True)
class Earlier:
    """The store that another program made to the same address before."""

    program: Program
    place: KernelLine
    is_atomic: bool


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
    parameter: str
    """The kernel's own name for it; "" where the pointer's origin is lost."""
    is_known: bool
    """Whether the tensor is the caller's. If not, a copy may have the name of what it was made from."""
    kernel: str
    places: tuple[KernelLine, ...]
    """The line in the kernel, then those in the functions that it called to get there."""
    program: Program
    """The first that did it; all that follows is about its first element."""
    spot: Spot
    earlier: Earlier | None
    """Of a race: the other program."""
    lanes: int
    """How many elements were accessed so, in all launches; the same one as often as it was."""
    width: int
    """In bytes, of one of them."""
    programs: int
    """How many programs did it, counted anew in each launch."""
    named_programs: tuple[Program, ...]
    """The first few of them."""

    @property
    def place(self) -> KernelLine:
        return self.places[0]

    def sentence(self) -> str:
        """What happened, where, and how often; without a full stop."""
        said = {
            OUTSIDE: self._outside,
            MISALIGNED: self._misaligned,
            RACE: self._race,
            UNWRITTEN: self._unwritten,
        }[self.kind]()
        count = f"{_number(self.lanes, 'lane')} in {_number(self.programs, 'program')}"
        return f"{self.kernel} {said}, {self._line()}; {count}"

    def _outside(self) -> str:
        return f"{_VERBS[self.access]} outside {self.tensor}: {self.spot.words} (program {self.program})"

    def _misaligned(self) -> str:
        return (
            f"{_VERBS[self.access]} {self.width} bytes at once {self._at()}, an address that is no multiple of "
            f"{self.width} (program {self.program}): a GPU ends the process there"
        )

    def _race(self) -> str:
        assert self.earlier is not None
        mixed = self.access == "atomic" or self.earlier.is_atomic
        how = "by a plain store and an atomic" if mixed else "without an atomic"
        there = f", {_line(self.earlier.place)}" if self.earlier.place != self.place else ""
        return f"writes {self._element()} from two programs {how}: {self.program} after {self.earlier.program}{there}"

    def _unwritten(self) -> str:
        verb = "loads" if self.access == "load" else "does an atomic on"
        return f"{verb} {self._element()}, which nothing has written (program {self.program})"

    def _at(self) -> str:
        return f"in {self.tensor}, {self.spot.words}" if self.spot.side else f"at {self._element()}"

    def _element(self) -> str:
        return self.tensor + (f" ({self.spot.words})" if self.spot.side else _bracketed(self.spot.index))

    def _line(self) -> str:
        called = f" (in {', in '.join(self._called(place) for place in self.places[1:])})" if self.places[1:] else ""
        return _line(self.place) + (f": `{self.place.code}`" if self.place.code else "") + called

    def _called(self, place: KernelLine) -> str:
        same = place.file == self.place.file
        return f"{place.function}, " + (f"line {place.line}" if same else f"{Path(place.file).name}:{place.line}")


def _line(place: KernelLine) -> str:
    return f"line {place.line}"


def _bracketed(index: tuple[int, ...] | None) -> str:
    return "[?]" if index is None else f"[{', '.join(map(str, index))}]"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


Line = tuple[CodeType, int]
# Not a kernel's own: Triton's language and interpreter, and what of this tool wraps them.
_BETWEEN = tuple(str(Path(triton.__file__).parent / part) for part in ("language", "runtime"))
_THIS_TOOL = str(Path(__file__).parents[1])
# The name that a function with taps has for its file.
_TAPPED = re.compile(r"<(.+), \S+ with taps>")


def executing(kernel: CodeType | None) -> tuple[Line, ...]:
    """The lines that are executing, that of the kernel first; the innermost alone where the kernel's is not found."""
    lines: list[Line] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is kernel:
            return ((frame.f_code, frame.f_lineno), *reversed(lines))
        if not _is_between(frame.f_code.co_filename):
            lines.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines[:1])


def places(lines: tuple[Line, ...]) -> tuple[KernelLine, ...]:
    """The same in words; of a function with taps, the file and line that it was made from."""
    return tuple(_place(code.co_name, code.co_filename, line) for code, line in lines)


@functools.cache
def _is_between(file: str) -> bool:
    return file.startswith((*_BETWEEN, _THIS_TOOL))


def _place(function: str, file: str, line: int) -> KernelLine:
    tapped = _TAPPED.fullmatch(file)
    file = tapped[1] if tapped else file
    return KernelLine(function, file, line, linecache.getline(file, line).strip())
