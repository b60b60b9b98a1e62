"""What a kernel may touch: the elements of the tensors that it was given, and the arrays of its source."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...running.unwritten import Unwritten, entries_of
from .library import Library

if TYPE_CHECKING:
    from torch import Tensor

# Elements of a storage up to which it is known of each whether it is one of a tensor's. Of larger ones, everything from
# a view's first to its last element counts as its own.
_MAPPED = 1 << 26


class CRegion(ctypes.Structure):
    """gp_region of the runtime."""

    _fields_ = (
        ("base", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("owners", ctypes.c_void_p),
        ("unwritten", ctypes.c_void_p), ("granule", ctypes.c_int32), ("first", ctypes.c_int32),
        ("is_shared", ctypes.c_int32),
    )  # fmt: skip


@dataclass(frozen=True)
class Named:
    """An array as findings call it."""

    name: str
    is_shared: bool = False
    tensor: Tensor | None = None
    start: int = 0
    """Where a shared or global array begins, an address."""
    bytes: int = 0
    element: int = 0
    """The bytes of one of its elements; 0 where they are not known."""


@dataclass(frozen=True)
class Dynamic:
    """The memory of `extern __shared__` arrays."""

    names: tuple[str, ...]
    """All that the source has for it."""
    name: str
    """The kernel's."""
    bytes: int


@dataclass
class Regions:
    """The regions of one launch, and the arrays in them by number, from 1."""

    all: list[CRegion] = field(default_factory=list)
    arrays: list[Named] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)

    def add_tensors(self, tensors: Sequence[tuple[str, Tensor]], unwritten: Unwritten) -> None:
        by_storage: dict[int, list[tuple[str, Tensor]]] = {}
        for name, tensor in tensors:
            if tensor.numel():
                by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
        for base, views in by_storage.items():
            self._add_storage(base, views, unwritten)

    def add_arrays(
        self, library: Library, dynamic: Dynamic, granule: int, element: Callable[[str], int]
    ) -> None:  # fmt: skip
        """Those of the source.

        Args:
            dynamic: the shared memory that the launch gives.
            granule: the bytes of the smallest element that shared memory holds.
            element: the bytes of an element of a shared array by its name, 0 where they are not known.
        """
        for array in library.arrays:
            base = (library.shared_base if array.is_shared else library.base) + array.offset
            is_dynamic = array.is_shared and array.name in dynamic.names
            name, size = (dynamic.name, dynamic.bytes) if is_dynamic else (array.name, array.bytes)
            named = Named(name, array.is_shared, None, base, size, element(name))
            number = self._name(named) if array.name else 0
            if size:
                self.all.append(CRegion(base, size, None, None, granule, number, array.is_shared))
        # What is left of the memory behind shared arrays: an access there is a fault, and hurts nobody.
        self.all.append(CRegion(library.shared_base, library.shared_bytes, None, None, granule, -1, 0))
        # Constants, and what the compiler keeps: nobody's array, and no fault to read.
        self.all.append(CRegion(library.base, library.bytes, None, None, 1, 0, 0))

    def _add_storage(self, base: int, views: list[tuple[str, Tensor]], unwritten: Unwritten) -> None:
        granule = min(tensor.element_size() for _, tensor in views)
        storage = views[0][1].untyped_storage()
        count = storage.nbytes() // granule
        numbers = [self._name(Named(name, tensor=tensor)) for name, tensor in views]
        if count > _MAPPED:
            for number, (_, tensor) in zip(numbers, views, strict=True):
                self._add_span(number, tensor)
            return
        marks = unwritten.by_granule(base, granule)
        owners = None if len(views) == 1 and _fills(views[0][1]) else self._owners(views, numbers, granule, count)
        self.all.append(CRegion(base, count * granule, _address(owners), _address(marks), granule, numbers[0], 0))
        self._kept += [owners, marks]

    def _owners(self, views: list[tuple[str, Tensor]], numbers: list[int], granule: int, count: int) -> Any:
        owners = np.zeros(count, np.uint8)
        for number, (_, tensor) in zip(numbers, views, strict=True):
            parts = tensor.element_size() // granule
            by_element = owners[: count // parts * parts].reshape(-1, parts)
            for part in range(parts):
                entries_of(tensor, by_element[:, part])[...] = number
        return owners

    def _add_span(self, number: int, tensor: Tensor) -> None:
        last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        size = tensor.element_size()
        self.all.append(CRegion(tensor.data_ptr(), (last + 1) * size, None, None, size, number, 0))

    def _name(self, named: Named) -> int:
        self.arrays.append(named)
        return len(self.arrays)


def _fills(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _address(array: Any) -> int | None:
    return None if array is None else int(array.ctypes.data)
