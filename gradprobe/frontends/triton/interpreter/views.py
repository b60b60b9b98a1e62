"""Tensors at the addresses that kernels see, and accesses of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from types import CodeType
from typing import Any

import numpy as np
from torch import Tensor

from ....inputs.memory import LISTED, Array, Elements, bracketed, elements_of
from ....source.syntax import SourceLine
from ..launches import tensors_in

Program = tuple[int, int, int]
# Under which pointers keep the id of the argument that all of them point into; else addresses are looked up.
ORIGIN = "gradprobe origin"


# Leaves "lse" of lse_ptr, ptr_lse or lse_ptrs.
_PTR = re.compile(r"^ptr_?(?!s$)(?=.)|(?<=.)(_?ptrs?)$")


@dataclass(frozen=True, eq=False)
class View:
    name: str
    start: int  # the address of its first element
    elements: Elements
    home: int  # the address of its storage
    high: int
    known: View | None = None  # the caller's tensor that it is a part of, or is

    def hold(self, addresses: Array, width: int) -> Array:
        """Which accesses of `width` bytes, at [N] uint64, meet elements alone."""
        return self.elements.hold(_from(self.start, addresses), width)

    def in_storage(self, addresses: Array, width: int) -> Array:
        offsets = self.in_bytes(addresses)
        return (offsets >= 0) & (offsets <= self.high - self.home - width)

    def in_bytes(self, addresses: Array) -> Array:
        return _from(self.home, addresses)

    def in_elements(self, addresses: Array) -> Array:
        return _from(self.start, addresses) // self.elements.itemsize

    def element(self, address: int, width: int) -> str:
        """ "[0, 1]" of the caller's tensor; "" where an access lies on no element."""
        at, owner = np.array([address], np.uint64), self.known or self
        is_on_one = self.hold(at, width)[0]
        return (
            bracketed(owner.elements.index(int(owner.in_elements(at)[0]))) if is_on_one else ""
        )

    def beyond(self, address: int) -> tuple[str, bool]:
        """Where it lies; whether its offset, cut to 32 bits, is on an element."""
        offset = int(self.in_elements(np.array([address], np.uint64))[0])
        words, wrapped = self.elements.beyond(offset), self.elements.wrapped(offset)
        if wrapped is not None:
            words += f": the offset of {bracketed(wrapped)}, wrapped around in 32 bits"
        return words, wrapped is not None

    def lies_in(self, other: View) -> bool:
        own, size = self.elements, self.elements.itemsize
        if (self.home, size) != (other.home, other.elements.itemsize) or not own.count:
            return False
        if (self.start, own) == (other.start, other.elements):
            return True
        listed = own.listed() if own.count <= LISTED else np.array([0, own.span - 1])
        return bool(other.elements.hold(self.start - other.start + listed * size, size).all())


def view_of(tensor: Tensor, name: str) -> View:
    storage, elements = tensor.untyped_storage(), elements_of(tensor)
    home = storage.data_ptr()
    start = home + int(tensor.storage_offset()) * elements.itemsize
    return View(name, start, elements, home, home + storage.nbytes())


def _from(start: int, addresses: Array) -> Array:
    return (addresses - np.uint64(start)).view(np.int64)


class InterpretedLaunch:
    def __init__(self, function: Any, known: Sequence[View]) -> None:
        self.kernel: str = getattr(function, "__name__", str(function))
        self.code: CodeType | None = getattr(function, "__code__", None)
        # By the id of an argument, named after the smallest caller's tensor it lies in.
        self.views: dict[int, View] = {}
        self._known = known

    def learn(self, given: Mapping[str, Any]) -> None:
        for parameter, argument in given.items():
            for name, tensor, handed in tensors_in(argument, parameter):
                self.views[id(handed)] = view_of(tensor, _PTR.sub("", name))
        for number, view in self.views.items():
            owners = [other for other in self._known if view.lies_in(other)]
            # One tensor under several names is taken by the name that the kernel has for it.
            owners.sort(key=lambda other: other.name.lower() != view.name.lower())
            if owners:
                owner = min(owners, key=attrgetter("elements.count"))
                self.views[number] = replace(view, name=owner.name, known=owner)

    def by_view(self, addresses: Array) -> Iterator[tuple[View, Array]]:
        left = np.ones(len(addresses), bool)
        for owns in (View.hold, View.in_storage):
            for view in (*self.views.values(), *self._known):
                some = np.flatnonzero(left & owns(view, addresses, 1))
                if some.size:
                    left[some] = False
                    yield view, some


@dataclass(frozen=True)
class Site:
    kernel: str
    # The kernel's, then those in the functions that it called.
    lines: tuple[SourceLine, ...]
    operation: str
    instruction: int  # of the innermost function: a line may have several


@dataclass(eq=False)
class Access:
    site: Site
    launch: InterpretedLaunch
    program: Program
    pointers: Any
    on: Array  # bool, the lanes that are not masked
    width: int  # in bytes, of a lane
    # What a store or an atomic is given; None of a load, and of an exchange that compares.
    value: Any
    is_exchange: bool  # whether it is an atomic that locks are made of

    @property
    def kind(self) -> str:
        return self.site.operation

    @cached_property
    def lanes(self) -> Array:
        shape = self.pointers.data.shape
        on = self.on if self.on.shape == shape else np.broadcast_to(self.on, shape)
        return on.reshape(-1)

    @cached_property
    def parts(self) -> list[tuple[View, Array, Array]]:
        """(view, flat numbers of the lanes, addresses) of each known tensor."""
        lanes = self.lanes.nonzero()[0]
        addresses = self.pointers.data.reshape(-1)[lanes]
        view = self.launch.views.get(self.pointers.attr.get(ORIGIN))
        if view is not None:
            return [(view, lanes, addresses)]
        owned = self.launch.by_view(addresses)
        return [(view, lanes[some], addresses[some]) for view, some in owned]
