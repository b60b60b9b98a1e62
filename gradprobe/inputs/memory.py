"""Which addresses, counted from a tensor's first element, are those of its elements."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model.assignment import Sizes, spanned
from ..model.number import plural
from .guard_bands import mapped

if TYPE_CHECKING:
    from torch import Tensor

Array = Any
# Elements up to which they are listed: 128 MiB. Of a view of more that is not dense, gaps count as elements.
LISTED = 1 << 24
# Of so many elements one has a given offset modulo 2^32 by a chance of 2^-10.
_WRAP, _FEW = 1 << 32, 1 << 22


@dataclass(frozen=True)
class Elements:
    """The elements of a view, as offsets in bytes from its first one."""

    shape: Sizes
    strides: Sizes  # in elements
    itemsize: int

    @functools.cached_property
    def count(self) -> int:
        axes = zip(self.shape, self.strides, strict=True)
        return math.prod(size for size, step in axes if step or not size)

    @functools.cached_property
    def span(self) -> int:
        """In elements."""
        return spanned(self.shape, self.strides) if self.count else 0

    @functools.cached_property
    def _axes(self) -> tuple[tuple[int, int, int], ...]:
        axes = zip(self.shape, self.strides, range(len(self.shape)), strict=True)
        apart = [axis for axis in axes if axis[0] > 1 and axis[1]]
        return tuple(sorted(apart, key=lambda axis: (-axis[1], axis[2])))

    @functools.cached_property
    def _members(self) -> Array:
        """Ascending; None where the span says all."""
        reach, has_gaps = 1, False
        for size, step, _ in reversed(self._axes):
            has_gaps |= step > reach
            reach += (size - 1) * step
        return np.unique(self.listed()) if has_gaps and 0 < self.count <= LISTED else None

    def listed(self) -> Array:
        """In elements, in no order."""
        offsets = np.zeros(1 if self.count else 0, np.int64)
        for size, step, _ in self._axes:
            offsets = (offsets[:, None] + np.arange(size) * step).reshape(-1)
        return offsets

    def hold(self, offsets: Array, width: int) -> Array:
        """Which accesses of `width` bytes reach elements alone; offsets [N] int64, in bytes."""
        held = offsets % min(width, self.itemsize) == 0
        for part in range(0, width, self.itemsize):
            held &= self._hold_elements((offsets + part) // self.itemsize)
        return held

    def _hold_elements(self, offsets: Array) -> Array:
        members = self._members
        if members is None:
            return (offsets >= 0) & (offsets < self.span)
        places = np.minimum(np.searchsorted(members, offsets), len(members) - 1)
        return members[places] == offsets

    def index(self, offset: int) -> tuple[int, ...] | None:
        """None where there is none, or too many to look at."""
        found = np.flatnonzero(self.listed() == offset) if self.count <= LISTED else None
        if found is None or not len(found):
            return None
        places = np.unravel_index(found[0], [size for size, _, _ in self._axes])
        by_axis = {axis: int(at) for (_, _, axis), at in zip(self._axes, places, strict=True)}
        return tuple(by_axis.get(axis, 0) for axis in range(len(self.shape)))

    def beyond(self, offset: int) -> str:
        if offset < 0:
            return f"{plural(-offset, 'element')} before its start"
        if offset >= self.span:
            return f"{plural(offset - self.span + 1, 'element')} after its end"
        members, last = self._members, offset
        if members is not None:
            last = int(members[np.searchsorted(members, offset, side="right") - 1])
        away = plural(offset - last, "element")
        return f"{away} past {bracketed(self.index(last))}, in a gap of it"

    def wrapped(self, offset: int) -> tuple[int, ...] | None:
        """The index of an element from 2^31 on whose offset is another one plus a multiple of 2^32."""
        if self.count > _FEW:
            return None
        for at in range(offset % _WRAP, self.span, _WRAP):
            if at > offset and at >= _WRAP // 2 and (index := self.index(at)) is not None:
                return index
        return None


def bracketed(index: tuple[int, ...] | None) -> str:
    return "[?]" if index is None else str([*index])


# Units up to which marks are made as any array: 256 MiB, of which the system gives only what is touched.
ROOM_FOR_ALL = 1 << 26


class Marks:
    """Of a storage. An access is given by its offset there and its width, in bytes."""

    def __init__(self, nbytes: int, unit: int, dtype: str = "int32") -> None:
        """`unit`: in bytes, for all of which a smaller access stands; 1 where there are many."""
        is_large = nbytes > ROOM_FOR_ALL * unit
        self._nbytes, self.unit = nbytes, 1 if is_large else unit
        count = -(-nbytes // self.unit)
        self.whole: Array = np.zeros(0 if is_large else count, dtype)
        if is_large:
            import torch

            self.whole = mapped(count, getattr(torch, dtype)).numpy()

    def refined(self, unit: int) -> Marks:
        finer, parts = Marks(self._nbytes, unit), self.unit // unit
        units = np.flatnonzero(self.whole)
        for part in range(parts):
            finer.whole[units * parts + part] = self.whole[units]
        return finer

    def read(self, offsets: Array, width: int) -> Array:
        return self.whole[self._units_of(offsets, width)]

    def write(self, offsets: Array, width: int, marks: Array | int) -> None:
        """One mark, or [N, units of an access] of them."""
        self.whole[self._units_of(offsets, width)] = marks

    def _units_of(self, offsets: Array, width: int) -> Array:
        first, many = (offsets // self.unit)[:, None], width // self.unit
        return first if many <= 1 else first + np.arange(many)


class UnwrittenElements:
    """Those that have no value, as torch.empty gives them. Their storages stay alive."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[Tensor, Marks]] = {}
        """By address: a tensor, and a 1 for each element without a value."""
        self.places: dict[int, tuple[str, int]] = {}
        """By address: the file and line that allocated it."""

    def allocated(self, tensor: Tensor, place: tuple[str, int] = ("", 0)) -> None:
        storage, home = tensor.untyped_storage(), home_of(tensor)
        self.places[home] = place
        if home not in self._storages:
            marks = Marks(storage.nbytes(), tensor.element_size(), "uint8")
            self._storages[home] = (tensor, marks)
        self._mark(tensor, 1)

    def written(self, tensor: Tensor) -> None:
        if str(tensor.layout) == "torch.strided":
            elements = elements_of(tensor)
            if elements.count * elements.itemsize == tensor.untyped_storage().nbytes():
                self._storages.pop(home_of(tensor), None)
            else:
                self._mark(tensor, 0)

    def stored(self, home: int, offsets: Array, width: int) -> None:
        if home in self._storages:
            self._storages[home][1].write(offsets, width, 0)

    def among(self, home: int, offsets: Array, width: int) -> Array | None:
        """[N] bool; None where all has values."""
        if home not in self._storages:
            return None
        return self._storages[home][1].read(offsets, width).any(1)

    def by_granule(self, home: int, granule: int) -> Array | None:
        """[granules] uint8, 1 where nothing was written; None without an account."""
        marks = self._storages[home][1] if home in self._storages else None
        return marks.whole if marks is not None and marks.unit == granule else None

    def _mark(self, tensor: Tensor, mark: int) -> None:
        home = home_of(tensor)
        if home not in self._storages:
            return
        marks, elements = self._storages[home][1], elements_of(tensor)
        if marks.unit == elements.itemsize:
            entries_of(tensor, marks.whole)[...] = mark
        elif elements.count <= LISTED:
            first = tensor.storage_offset() * elements.itemsize
            marks.write(first + elements.listed() * elements.itemsize, elements.itemsize, mark)
        else:  # too much to keep account of
            del self._storages[home]


def elements_of(tensor: Tensor) -> Elements:
    return Elements(tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size())


def home_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def entries_of(tensor: Tensor, by_element: Any) -> Any:
    """The part of an array with an entry for each element of a storage that a view covers."""
    at = by_element[tensor.storage_offset() :]
    if tensor.numel() == 0:
        return at[:0]
    strides = [step * at.itemsize for step in tensor.stride()]
    return np.lib.stride_tricks.as_strided(at, tuple(tensor.shape), strides)
