"""Views: tensors as kernels see them, at their addresses; and where an address lies, seen from one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from .....inputs.memory import LISTED, Array, Elements, elements_of

Index = tuple[int, ...]


@dataclass(frozen=True)
class AddressSpot:
    """Where an address lies, seen from a tensor."""

    offset: int
    """In elements from the tensor's first one."""
    side: str
    """"before", "after" or "between" the tensor's elements; "" at one of them."""
    distance: int
    """In elements: to the first one, from the last one, or from the last one before the gap."""
    index: Index | None
    """Of that element; of the element itself where it is at one. In the caller's tensor where it knows it."""
    holder: str = ""
    """Another tensor, with an index, of which it is an element: "k[0, 1, 0, 0]"."""
    wrapped: Index | None = None
    """Of the element whose offset, cut to 32 bits, leads here; None where there is none."""
    is_beyond: bool = False
    """Whether it lies beyond the tensor's storage too. Such an access is not executed."""

    @property
    def in_words(self) -> str:
        """Such as "84 elements after its end, where k[0, 0, 2, 4] lies"."""
        if not self.side:
            return f"at {bracketed(self.index)}"
        ends = {"before": "before its start", "after": "after its end"}
        words = f"{counted(self.distance, 'element')} "
        words += ends.get(self.side, f"past {bracketed(self.index)}, in a gap of it")
        words += f", where {self.holder} lies" if self.holder else ""
        words += f": the offset of {bracketed(self.wrapped)}, wrapped around in 32 bits" if self.wrapped else ""
        return words + (", beyond its storage" if self.is_beyond else "")


@dataclass(frozen=True, eq=False)
class View:
    """A tensor at the addresses that a kernel sees."""

    name: str
    parameter: str
    """"" where no launch was given it."""
    start: int
    """The address of its first element."""
    elements: Elements
    low: int
    """The address of its storage."""
    high: int
    """The address behind its storage."""
    home: int
    """The address of its storage as torch has it: another one where the interpreter copied it from a GPU."""
    known: View | None = None
    """The caller's tensor that all of its elements are elements of, where there is one."""

    def hold(self, addresses: Array, width: int) -> Array:
        """Which accesses of `width` bytes, at [N] uint64 addresses, meet elements and nothing else."""
        return self.elements.hold(_from(self.start, addresses), width)

    def in_storage(self, addresses: Array, width: int) -> Array:
        """Which of them stay inside the storage."""
        offsets = self.in_bytes(addresses)
        return (offsets >= 0) & (offsets <= self.high - self.low - width)

    def in_bytes(self, addresses: Array) -> Array:
        """[N] int64, the offsets in the storage."""
        return _from(self.low, addresses)

    def _offset(self, address: int) -> tuple[int, int]:
        """The elements from the first one to an address, and the bytes left; one below 0 wraps around to 2^64."""
        return divmod(int(_from(self.start, np.array([address], np.uint64))[0]), self.elements.itemsize)

    def _index(self, address: int) -> Index | None:
        """That of the element there; None where there is none."""
        offset, rest = self._offset(address)
        return None if rest else self.elements.index(offset)

    def spot(self, address: int, width: int, others: Sequence[View]) -> AddressSpot:
        """Where an access of `width` bytes lies, and of which of the other views it meets an element."""
        elements, (offset, rest) = self.elements, self._offset(address)
        index: Index | None = None
        if offset < 0:
            side, distance = "before", -offset
        elif offset >= elements.span:
            side, distance = "after", offset - elements.span + 1
        elif elements.hold(np.array([address - self.start]), width)[0]:
            return AddressSpot(offset, "", 0, (self.known or self)._index(address))
        else:
            side, distance, last = "between", 0, elements.last_up_to(offset)
            if last is not None:
                distance, index = offset - last, elements.index(last)
        holder = ""
        for other in others:
            there = other._index(address) if other is not self and not holder else None
            holder = holder if there is None else f"{other.name}{bracketed(there)}"
        wrapped = None if rest else elements.wrapped(offset)
        is_beyond = not self.low <= address <= self.high - width
        return AddressSpot(offset, side, distance, index, holder, wrapped, is_beyond)

    def moved(self, by: int) -> View:
        """The same view where its storage lies so many bytes further."""
        return replace(self, start=self.start + by, low=self.low + by, high=self.high + by)

    def lies_in(self, other: View) -> bool:
        """Whether all of its elements are elements of another view."""
        elements, itemsize = self.elements, self.elements.itemsize
        if (self.low, itemsize) != (other.low, other.elements.itemsize) or not elements.count:
            return False
        if (self.start, elements) == (other.start, other.elements):
            return True
        listed = elements.listed() if elements.count <= LISTED else np.array([0, elements.span - 1])
        return bool(other.elements.hold(self.start - other.start + listed * itemsize, itemsize).all())


def argument_view(tensor: Tensor, parameter: str, known: Sequence[View], home: int) -> View:
    """An argument of a kernel, named after the smallest of the caller's tensors that it lies in, else its parameter.

    Args:
        tensor: as the interpreter gives it to the kernel.
        known: the caller's tensors, where the kernel sees them.
        home: the address of its storage as torch has it.
    """
    view = replace(view_of(tensor, without_ptr(parameter), parameter), home=home)
    around = [other for other in known if view.lies_in(other)]
    # One tensor under several names is taken by the name that the kernel has for it.
    around.sort(key=lambda other: (other.elements.count, other.name.lower() != view.name.lower()))
    return replace(view, name=around[0].name, known=around[0]) if around else view


def without_ptr(parameter: str) -> str:
    """ "lse" for lse_ptr, ptr_lse or lse_ptrs; a parameter that is nothing but that keeps its name."""
    return re.sub(r"^ptr_?(?!s$)(?=.)|(?<=.)(_?ptrs?)$", "", parameter)


def view_of(tensor: Tensor, name: str, parameter: str = "") -> View:
    """A tensor, at its own addresses."""
    storage, elements = tensor.untyped_storage(), elements_of(tensor)
    low = storage.data_ptr()
    start = low + int(tensor.storage_offset()) * elements.itemsize
    return View(name, parameter, start, elements, low, low + storage.nbytes(), low)


def bracketed(index: Index | None) -> str:
    """`[0, 1, 2]`; `[?]` of none."""
    return "[?]" if index is None else f"[{', '.join(map(str, index))}]"


def counted(count: int, noun: str) -> str:
    """`1,024 elements`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _from(start: int, addresses: Array) -> Array:
    """Differences of uint64, which wrap, as int64."""
    return (addresses - np.uint64(start)).view(np.int64)
