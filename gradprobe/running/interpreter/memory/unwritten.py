"""Unwritten: which memory was allocated without values, and what of it has been written since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .elements import LISTED, Array, Elements
from .marks import Marks

if TYPE_CHECKING:
    from torch import Tensor


class Unwritten:
    """A register of tensors that came without values, such as those of torch.empty.

    Whoever sees torch's operations tells it of allocations and of writes; a watcher of kernels tells it of their
    stores. It keeps the storages alive that it knows, so that no other tensor can take their addresses.
    """

    def __init__(self) -> None:
        self._storages: dict[int, _Storage] = {}

    def allocated(self, tensor: Tensor) -> None:
        """The tensor's elements hold no value as yet; of its storage the rest stays as it was."""
        home, elements = tensor.untyped_storage().data_ptr(), elements_of(tensor)
        if not elements.count:
            return
        if home not in self._storages:
            self._storages[home] = _Storage(tensor)
        self._storages[home].allocate(_first_byte(tensor), elements)

    def written(self, tensor: Tensor) -> None:
        """All of the tensor's elements hold values now."""
        storage = self._storages.get(tensor.untyped_storage().data_ptr())
        if storage is None:
            return
        elements = elements_of(tensor)
        if elements.count > LISTED or elements.count * elements.itemsize == tensor.untyped_storage().nbytes():
            # Where it is too much to keep account of, no read of it is reported.
            del self._storages[tensor.untyped_storage().data_ptr()]
        else:
            storage.write(_first_byte(tensor) + elements.listed() * elements.itemsize, elements.itemsize)

    def stored(self, home: int, offsets: Array, width: int) -> None:
        """A kernel has stored `width` bytes at each of these offsets, in bytes, of the storage at address `home`."""
        if home in self._storages:
            self._storages[home].write(offsets, width)

    def among(self, home: int, offsets: Array, width: int) -> Array | None:
        """Which of these accesses, [N] bool, meet what nothing has written; None where the whole storage has values."""
        return self._storages[home].unwritten(offsets, width) if home in self._storages else None


class _Storage:
    """A storage some of which came without values."""

    def __init__(self, tensor: Tensor) -> None:
        self._alive = tensor.untyped_storage()
        self._written = Marks(self._alive.nbytes(), tensor.element_size())
        self._parts: dict[tuple[int, Elements], None] = {}

    def allocate(self, first: int, elements: Elements) -> None:
        if self._parts and elements.count <= LISTED:
            self._written.write(first + elements.listed() * elements.itemsize, elements.itemsize, 0)
        self._parts[first, elements] = None

    def write(self, offsets: Array, width: int) -> None:
        self._written.write(offsets, width, 1)

    def unwritten(self, offsets: Array, width: int) -> Array:
        found = (self._written.read(offsets, width) == 0).any(1)
        if found.any():
            within: Any = False
            for first, elements in self._parts:
                within = within | elements.hold(offsets - first, width)
            found &= within
        return found


def elements_of(tensor: Tensor) -> Elements:
    """The elements of a tensor."""
    return Elements(tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size())


def _first_byte(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()
