"""Unwritten: which memory was allocated without values, and what of it nothing has been stored to since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .elements import LISTED, Array, Elements
from .marks import Marks

if TYPE_CHECKING:
    from torch import Tensor


class Unwritten:
    """A register of the elements that have no value, such as those that torch.empty gave.

    Whoever sees torch's operations tells it of allocations and of writes; a watcher of kernels tells it of their
    stores. It keeps the storages alive that it knows, so that no other tensor can take their addresses.
    """

    def __init__(self) -> None:
        self._storages: dict[int, tuple[Tensor, Marks]] = {}
        """By address: a tensor of the storage, and a 1 for each of its elements without a value."""

    def allocated(self, tensor: Tensor) -> None:
        """The tensor's elements have no value now; the rest of its storage stays as it was."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages:
            marks = Marks(storage.nbytes(), tensor.element_size(), np.uint8)
            self._storages[storage.data_ptr()] = (tensor, marks)
        self._mark(tensor, 1)

    def written(self, tensor: Tensor) -> None:
        """All of the tensor's elements have values now."""
        if str(tensor.layout) != "torch.strided":
            return
        elements, storage = elements_of(tensor), tensor.untyped_storage()
        if elements.count * elements.itemsize == storage.nbytes():
            self._storages.pop(storage.data_ptr(), None)
        else:
            self._mark(tensor, 0)

    def stored(self, home: int, offsets: Array, width: int) -> None:
        """A kernel has stored `width` bytes at each of these offsets, in bytes, of the storage at address `home`."""
        if home in self._storages:
            self._storages[home][1].write(offsets, width, 0)

    def among(self, home: int, offsets: Array, width: int) -> Array | None:
        """Which of these accesses, [N] bool, meet what nothing has written; None where the whole storage has values."""
        return self._storages[home][1].read(offsets, width).any(1) if home in self._storages else None

    def by_granule(self, home: int, granule: int) -> Array | None:
        """[granules] uint8, 1 where nothing was written, to be read and changed; None where no such account is kept."""
        marks = self._storages[home][1] if home in self._storages else None
        return marks.whole if marks is not None and marks.unit == granule else None

    def _mark(self, tensor: Tensor, mark: int) -> None:
        home = tensor.untyped_storage().data_ptr()
        if home not in self._storages:
            return
        marks, elements = self._storages[home][1], elements_of(tensor)
        if marks.whole is not None and marks.unit == elements.itemsize:
            entries_of(tensor, marks.whole)[...] = mark
        elif elements.count <= LISTED:
            first = tensor.storage_offset() * elements.itemsize
            marks.write(first + elements.listed() * elements.itemsize, elements.itemsize, mark)
        else:  # too much to keep account of: no read of it is reported
            del self._storages[home]


def elements_of(tensor: Tensor) -> Elements:
    """The elements of a tensor."""
    return Elements(tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size())


def entries_of(tensor: Tensor, by_element: Any) -> Any:
    """The part of an array with an entry for each element of a storage that a view of it covers."""
    at = by_element[tensor.storage_offset() :]
    if tensor.numel() == 0:
        return at[:0]
    strides = [step * at.itemsize for step in tensor.stride()]
    return np.lib.stride_tricks.as_strided(at, tuple(tensor.shape), strides)
