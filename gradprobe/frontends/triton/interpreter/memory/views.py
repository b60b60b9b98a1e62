"""Views: tensors as kernels see them. Origins: which argument of a kernel each pointer came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .....inputs.memory import LISTED, Array, Elements, elements_of
from ..operations import Handle, Operation
from .findings import AddressSpot

if TYPE_CHECKING:
    from torch import Tensor

NO_ORIGIN = -1


class Origins:
    """A number for each argument, kept in the `attr` of handles: that of all pointers of a handle.

    Where pointers into several arguments become one tile it is lost, and addresses are looked up instead.
    """

    def __init__(self) -> None:
        self._key = f"gradprobe origin {id(self)}"

    def set(self, handle: Any, origin: int) -> None:
        handle.attr[self._key] = origin

    def of(self, handle: Any) -> int:
        """The origin of a handle's pointers; NO_ORIGIN where it got lost."""
        return handle.attr.get(self._key, NO_ORIGIN)  # type: ignore[no-any-return]

    def handed_on(self, step: Operation) -> None:
        """The result points into the argument that the first operand points into."""
        if (origin := self.of(step.args[0])) != NO_ORIGIN:
            self.set(step.result, origin)

    def of_block(self, step: Operation) -> None:
        """The pointers of a block point into the argument of its base."""
        pointers, _ = step.result
        self.set(pointers, self.of(step.of.base))

    def moved(self, step: Operation) -> None:
        """Pointers that are rearranged still point into their argument."""
        # A loop, since this runs more often than anything else here.
        for arg in step.args:
            if isinstance(arg, Handle) and self._key in arg.attr:
                pointers = (each for each in step.args if isinstance(each, Handle) and each.dtype.scalar.is_ptr())
                if all(self.of(each) == arg.attr[self._key] for each in pointers):
                    for each in step.results:
                        self.set(each, arg.attr[self._key])
                break


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
    known: View | None = None
    """The caller's tensor that all of its elements are elements of, where there is one."""

    def hold(self, addresses: Array, width: int) -> Array:
        """Which accesses of `width` bytes, at [N] uint64 addresses, meet elements and nothing else."""
        return self.elements.hold(_from(self.start, addresses), width)

    def in_storage(self, addresses: Array, width: int) -> Array:
        """Which of them stay inside the storage."""
        offsets = _from(self.low, addresses)
        return (offsets >= 0) & (offsets <= self.high - self.low - width)

    def in_bytes(self, addresses: Array) -> Array:
        """[N] int64, the offsets in the storage."""
        return _from(self.low, addresses)

    def _offset(self, address: int) -> tuple[int, int]:
        """The elements from the first one to an address, and the bytes left; one below 0 wraps around to 2^64."""
        return divmod(int(_from(self.start, np.array([address], np.uint64))[0]), self.elements.itemsize)

    def element_at(self, address: int) -> str:
        """Its name and index where there is an element of it, else ""."""
        offset, off = self._offset(address)
        index = None if off else self.elements.index(offset)
        return "" if index is None else f"{self.name}[{', '.join(map(str, index))}]"

    def spot(self, address: int, width: int, others: Sequence[View]) -> AddressSpot:
        """Where an access of `width` bytes lies, and of which of the other views it meets an element."""
        span, (offset, off) = self.elements.span, self._offset(address)
        beyond = not self.low <= address <= self.high - width
        if offset < 0 or offset >= span:
            side, distance, index = ("before", -offset, None) if offset < 0 else ("after", offset - span + 1, None)
        elif self.elements.hold(np.array([address - self.start]), width)[0]:
            known = self.known or self
            return AddressSpot(offset, off, "", 0, known.elements.index(known._offset(address)[0]))
        else:
            last = self.elements.last_up_to(offset)
            side, distance = "between", 0 if last is None else offset - last
            index = None if last is None else self.elements.index(last)
        holder = next((word for other in others if other is not self and (word := other.element_at(address))), "")
        wrapped = None if off else self.elements.wrapped(offset)
        return AddressSpot(offset, off, side, distance, index, holder, wrapped, beyond)

    def lies_in(self, other: View) -> bool:
        """Whether all of its elements are elements of another view."""
        same = (self.low, self.elements.itemsize) == (other.low, other.elements.itemsize)
        first, off = divmod(self.start - other.start, self.elements.itemsize)
        if not same or off or not self.elements.count:
            return False
        if (first, self.elements) == (0, other.elements):
            return True
        listed = self.elements.listed() if self.elements.count <= LISTED else np.array([0, self.elements.span - 1])
        itemsize = self.elements.itemsize
        return bool(other.elements.hold((first + listed) * itemsize, itemsize).all())


def argument_view(tensor: Tensor, parameter: str, known: Sequence[View]) -> View:
    """An argument of a kernel, named after the smallest of the caller's tensors that it lies in, else its parameter.

    One that the interpreter copied from a GPU lies in none.
    """
    view = view_of(tensor, without_ptr(parameter), parameter)
    around = [other for other in known if view.lies_in(other)]
    if not around:
        return view
    # One tensor under several names is taken by the name that the kernel has for it.
    other = min(around, key=lambda one: (one.elements.count, one.name.lower() != view.name.lower()))
    return replace(view, name=other.name, known=other)


def without_ptr(parameter: str) -> str:
    """ "lse" for lse_ptr, ptr_lse or lse_ptrs; a parameter that is nothing but that keeps its name."""
    return re.sub(r"^ptr_?(?!s$)(?=.)|(?<=.)(_?ptrs?)$", "", parameter)


def view_of(tensor: Tensor, name: str, parameter: str = "") -> View:
    """A tensor, at its own addresses."""
    storage, elements = tensor.untyped_storage(), elements_of(tensor)
    low = storage.data_ptr()
    start = low + int(tensor.storage_offset()) * elements.itemsize
    return View(name, parameter, start, elements, low, low + storage.nbytes())


def _from(start: int, addresses: Array) -> Array:
    """Differences of uint64, which wrap, as int64."""
    return (addresses - np.uint64(start)).view(np.int64)
