"""Views: tensors at the addresses that kernels see; and where an address lies, seen from one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from .....inputs.memory import LISTED, Array, Elements, elements_of
from .....model.number import plural

Index = tuple[int, ...]


@dataclass(frozen=True)
class AddressSpot:
    """Where an address lies, seen from a tensor."""

    words: str
    """The index of an element: "[0, 1]"; else such as "84 elements after its end"."""
    is_element: bool = False
    wraps: bool = False
    """Whether the offset of an element leads there when it is cut to 32 bits."""


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
    """The caller's tensor that it is a part of."""

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

    def in_elements(self, addresses: Array) -> Array:
        """[N] int64, from the first element."""
        return _from(self.start, addresses) // self.elements.itemsize

    def spot(self, address: int, width: int) -> AddressSpot:
        """Where an access of `width` bytes lies."""
        elements, offsets = self.elements, _from(self.start, np.array([address], np.uint64))
        offset, size = int(offsets[0]) // elements.itemsize, elements.itemsize
        if elements.hold(offsets, width)[0]:
            owner = self.known or self
            return AddressSpot(bracketed(owner.elements.index((address - owner.start) // size)), is_element=True)
        if offset < 0:
            words = f"{plural(-offset, 'element')} before its start"
        elif offset >= elements.span:
            words = f"{plural(offset - elements.span + 1, 'element')} after its end"
        else:
            last = elements.last_up_to(offset) or 0
            words = f"{plural(offset - last, 'element')} past {bracketed(elements.index(last))}, in a gap of it"
        wrapped = elements.wrapped(offset)
        if wrapped is not None:
            words += f": the offset of {bracketed(wrapped)}, wrapped around in 32 bits"
        return AddressSpot(words, wraps=wrapped is not None)

    def moved(self, by: int) -> View:
        """The same where its storage lies so many bytes further."""
        return replace(self, start=self.start + by, low=self.low + by, high=self.high + by)

    def lies_in(self, other: View) -> bool:
        """Whether all of its elements are elements of another view."""
        own, size = self.elements, self.elements.itemsize
        if (self.low, size) != (other.low, other.elements.itemsize) or not own.count:
            return False
        if (self.start, own) == (other.start, other.elements):
            return True
        listed = own.listed() if own.count <= LISTED else np.array([0, own.span - 1])
        return bool(other.elements.hold(self.start - other.start + listed * size, size).all())


def argument_view(tensor: Tensor, parameter: str, known: Sequence[View], home: int) -> View:
    """An argument of a kernel, named after the smallest of the caller's tensors that it lies in, else its parameter.

    Args:
        tensor: as the interpreter gives it to the kernel.
        known: the caller's tensors, where the kernel sees them.
        home: the address of its storage as torch has it.
    """
    view = replace(view_of(tensor, without_ptr(parameter), parameter), home=home)

    def order(other: View) -> tuple[int, bool]:
        # One tensor under several names is taken by the name that the kernel has for it.
        return other.elements.count, other.name.lower() != view.name.lower()

    owner = min(filter(view.lies_in, known), key=order, default=None)
    return view if owner is None else replace(view, name=owner.name, known=owner)


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


def _from(start: int, addresses: Array) -> Array:
    """Differences of uint64, which wrap, as int64."""
    return (addresses - np.uint64(start)).view(np.int64)
