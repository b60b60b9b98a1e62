"""The memory that a kernel may access: the elements of its tensors, and the arrays of its source."""

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

# In a storage of up to so many elements, a map names the owner of each. In a larger one, a view owns all that lies
# between its first and its last element.
_MAPPED = 1 << 26


class CRegion(ctypes.Structure):
    """gp_region of the runtime."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("base", "bytes")),
        *((name, ctypes.c_void_p) for name in ("owners", "unwritten")),
        *((name, ctypes.c_int32) for name in ("granule", "first", "is_shared")),
    )


@dataclass(frozen=True)
class Named:
    """An array, as findings name it."""

    name: str
    is_shared: bool = False
    tensor: Tensor | None = None
    start: int = 0
    """The address of a shared or global array."""
    bytes: int = 0
    element: int = 0
    """The bytes of one of its elements; 0 where they are not known."""


@dataclass(frozen=True)
class Dynamic:
    """The memory of `extern __shared__` arrays."""

    names: tuple[str, ...]
    """All names that the source has for it."""
    name: str
    """The kernel's name for it."""
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

    def add_arrays(self, library: Library, dynamic: Dynamic, granule: int, element: Callable[[str], int]) -> None:
        """Adds the arrays of the source.

        Args:
            dynamic: the dynamic shared memory of the launch.
            granule: the bytes of the smallest element in shared memory.
            element: gives the bytes of an element of a shared array by its name, 0 where they are not known.
        """
        for array in library.arrays:
            base = (library.shared_base if array.is_shared else library.base) + array.offset
            is_dynamic = array.is_shared and array.name in dynamic.names
            name, size = (dynamic.name, dynamic.bytes) if is_dynamic else (array.name, array.bytes)
            named = Named(name, array.is_shared, None, base, size, element(name))
            number = self._name(named) if array.name else 0
            if size:
                self.all.append(CRegion(base, size, None, None, granule, number, array.is_shared))
        # The rest of the shared memory. An access there is a fault, and does no harm.
        self.all.append(CRegion(library.shared_base, library.shared_bytes, None, None, granule, -1, 0))
        # Constants, and the compiler's own data. They are no array, and may be read.
        self.all.append(CRegion(library.base, library.bytes, None, None, 1, 0, 0))

    def _add_storage(self, base: int, views: list[tuple[str, Tensor]], unwritten: Unwritten) -> None:
        granule = min(tensor.element_size() for _, tensor in views)
        storage = views[0][1].untyped_storage()
        count = storage.nbytes() // granule
        numbers = [self._name(Named(name, tensor=tensor)) for name, tensor in views]
        if count > _MAPPED:
            for number, (_, tensor) in zip(numbers, views, strict=True):
                start, end = span(tensor)
                self.all.append(CRegion(start, end - start, None, None, tensor.element_size(), number, 0))
            return
        marks = unwritten.by_granule(base, granule)
        only = views[0][1]
        fills = only.is_contiguous() and storage.nbytes() == only.numel() * only.element_size()
        owners = None if len(views) == 1 and fills else self._owners(views, numbers, granule, count)
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

    def _name(self, named: Named) -> int:
        self.arrays.append(named)
        return len(self.arrays)


def span(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first element and behind its last."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _address(array: Any) -> int | None:
    return None if array is None else int(array.ctypes.data)
