"""Which memory has no value as yet: what torch.empty gave, until something is stored there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

# Bytes of a storage up to which its elements are kept account of.
LARGEST = 1 << 28

if TYPE_CHECKING:
    from torch import Tensor


class Unwritten:
    """A mark for each element of the storages that were allocated without values."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[Tensor, int, Any]] = {}

    def allocated(self, tensor: Tensor) -> None:
        """None of its elements has a value; the rest of its storage has."""
        storage = tensor.untyped_storage()
        if storage.nbytes() > LARGEST:
            return
        marks = np.ones(storage.nbytes() // tensor.element_size(), np.uint8)
        self._marks[storage.data_ptr()] = (tensor, tensor.element_size(), marks)
        elements_of(tensor, marks)[...] = 0

    def written(self, tensor: Tensor) -> None:
        """All of its elements have one."""
        if str(tensor.layout) != "torch.strided":
            return
        found = self._marks.get(tensor.untyped_storage().data_ptr())
        if found is not None and found[1] == tensor.element_size():
            elements_of(tensor, found[2])[...] = 1

    def marks(self, storage: int, granule: int) -> Any | None:
        """[granules] uint8, 1 where there is a value; None where all have one."""
        found = self._marks.get(storage)
        return found[2] if found is not None and found[1] == granule else None


def elements_of(tensor: Tensor, by_element: Any) -> Any:
    """The part of an array with an entry for each element of a storage that a view of it covers."""
    at = by_element[tensor.storage_offset() :]
    strides = [step * at.itemsize for step in tensor.stride()]
    if tensor.numel() == 0:
        return at[:0]
    return np.lib.stride_tricks.as_strided(at, tuple(tensor.shape), strides)
