"""Elements: which addresses, counted from a tensor's first element, are those of its elements, whatever its strides."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cases.placement import spanned

Array = Any
# Elements from first to last up to which a map of them is kept: 16 MiB.
MAPPED = 1 << 24
# Elements up to which they are listed where a map would be larger: 128 MiB. Of a view of yet more elements that is not
# dense, everything between the first and the last counts as an element, gaps included.
LISTED = 1 << 24
_WRAP = 1 << 32
# Of so many elements one has a given offset modulo 2^32 by a chance of 2^-10.
_FEW = 1 << 22


@dataclass(frozen=True)
class Elements:
    """The elements of a view, as offsets in bytes from its first one."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements, none negative."""
    itemsize: int

    @functools.cached_property
    def count(self) -> int:
        """How many different ones there are: an axis of stride 0 adds none."""
        return math.prod(size for size, step in zip(self.shape, self.strides, strict=True) if step or not size)

    @functools.cached_property
    def span(self) -> int:
        """From the first to the last one, both included; in elements, 0 where there is none."""
        return spanned(self.shape, self.strides) if self.count else 0

    @functools.cached_property
    def _has_no_gaps(self) -> bool:
        reach = 1
        for size, step, _ in reversed(self._axes):
            if step > reach:
                return False
            reach += (size - 1) * step
        return True

    @functools.cached_property
    def _axes(self) -> tuple[tuple[int, int, int], ...]:
        """(size, stride, number) of each axis along which elements differ, the longest stride first."""
        axes = zip(self.shape, self.strides, range(len(self.shape)), strict=True)
        return tuple(sorted(((n, s, i) for n, s, i in axes if n > 1 and s), key=lambda axis: (-axis[1], axis[2])))

    @functools.cached_property
    def _members(self) -> Array:
        """A map of the span, or the offsets in ascending order; None where the span says all."""
        if self._has_no_gaps or (self.span > MAPPED and self.count > LISTED):
            return None
        offsets = self.listed()
        if self.span > MAPPED:
            return np.unique(offsets)
        members = np.zeros(self.span, bool)
        members[offsets] = True
        return members

    def listed(self) -> Array:
        """The offset of each element, in elements, in no particular order."""
        offsets = np.zeros(1 if self.count else 0, np.int64)
        for size, step, _ in self._axes:
            offsets = (offsets[:, None] + np.arange(size) * step).reshape(-1)
        return offsets

    def hold(self, offsets: Array, width: int) -> Array:
        """Which accesses of `width` bytes begin at an element and reach no other place than elements.

        Args:
            offsets: [N] int64, in bytes.
        """
        held = offsets % min(width, self.itemsize) == 0
        for part in range(0, width, self.itemsize):
            held &= self._hold_elements((offsets + part) // self.itemsize)
        return held

    def _hold_elements(self, offsets: Array) -> Array:
        held = (offsets >= 0) & (offsets < self.span)
        members = self._members
        if members is None:
            return held
        if members.dtype == bool:
            held[held] = members[offsets[held]]
            return held
        places = np.minimum(np.searchsorted(members, offsets), len(members) - 1)
        return members[places] == offsets

    def last_up_to(self, offset: int) -> int | None:
        """The last element at or before an offset; both in elements. None where there is none, or it is not known."""
        if self._members is None:
            return offset if 0 <= offset < self.span else None
        if self._members.dtype == bool:
            found = np.flatnonzero(self._members[: max(offset + 1, 0)])
            return int(found[-1]) if found.size else None
        place = int(np.searchsorted(self._members, offset, side="right"))
        return int(self._members[place - 1]) if place else None

    def index(self, offset: int) -> tuple[int, ...] | None:
        """The index of the element at an offset, in elements: 0 along axes of stride 0. None where there is none."""
        found = _index(self._axes, offset) if self.count else None
        if found is None:
            return None
        by_axis = {axis: at for (_, _, axis), at in zip(self._axes, found, strict=True)}
        return tuple(by_axis.get(axis, 0) for axis in range(len(self.shape)))

    def wrapped(self, offset: int) -> tuple[int, ...] | None:
        """The index of an element whose offset, from 2^31 on, is another one plus a multiple of 2^32.

        None where there is none, or where there are so many elements that one may be met by chance.
        """
        if self.count > _FEW:
            return None
        alike = (self.index(at) for at in range(offset % _WRAP, self.span, _WRAP) if at > offset and at >= _WRAP // 2)
        return next((index for index in alike if index is not None), None)


def _index(axes: tuple[tuple[int, int, int], ...], offset: int) -> tuple[int, ...] | None:
    """The index along each axis that adds up to an offset; where there are several, one of them."""
    if not axes:
        return () if offset == 0 else None
    (size, step, _), rest = axes[0], axes[1:]
    reach = sum((n - 1) * s for n, s, _ in rest)
    for at in range(min(offset // step, size - 1), -1, -1):
        if offset - at * step > reach:
            return None
        found = _index(rest, offset - at * step)
        if found is not None:
            return (at, *found)
    return None
