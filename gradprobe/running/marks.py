"""Marks: a small number for each unit of a storage, 0 until it is set."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
# Units up to which there is room for all of them: 256 MiB, of which the system gives only what is touched.
ROOM_FOR_ALL = 1 << 26


class Marks:
    """Marks of a storage of any size. An access is given by its offset in the storage and its width, both in bytes."""

    def __init__(self, nbytes: int, unit: int, dtype: Any = np.int32) -> None:
        """All 0. `unit`: in bytes; a smaller access stands for its whole unit."""
        self._nbytes = nbytes
        self.unit = unit
        count = -(-nbytes // unit)
        self._marks: _Room | _Sorted = _Room(count, dtype) if count <= ROOM_FOR_ALL else _Sorted()

    @property
    def whole(self) -> Array | None:
        """[units] the marks themselves; None where there are too many to have room for all."""
        return self._marks.values if isinstance(self._marks, _Room) else None

    def refined(self, unit: int) -> Marks:
        """The same marks for smaller units, of which each old one holds a whole number."""
        finer = Marks(self._nbytes, unit)
        units, values = self._marks.all_set()
        for part in range(self.unit // unit):
            finer._marks.write(units * (self.unit // unit) + part, values)
        return finer

    def read(self, offsets: Array, width: int) -> Array:
        """[N, units of an access]."""
        return self._marks.read(self._units(offsets, width))

    def write(self, offsets: Array, width: int, marks: Array | int) -> None:
        """Sets one mark, or [N, units of an access] of them."""
        units = self._units(offsets, width)
        self._marks.write(units.reshape(-1), np.broadcast_to(np.int32(marks), units.shape).reshape(-1))

    def _units(self, offsets: Array, width: int) -> Array:
        return (offsets // self.unit)[:, None] + np.arange(max(1, width // self.unit))


class _Room:
    """Room for every unit."""

    def __init__(self, count: int, dtype: Any) -> None:
        self.values = np.zeros(count, dtype)

    def read(self, units: Array) -> Array:
        return self.values[units]

    def write(self, units: Array, values: Array) -> None:
        self.values[units] = values

    def all_set(self) -> tuple[Array, Array]:
        units = np.flatnonzero(self.values)
        return units, self.values[units]


class _Sorted:
    """Those units only that were set, in ascending order: for storages of which little is ever touched."""

    def __init__(self) -> None:
        self._units, self._values = np.zeros(0, np.int64), np.zeros(0, np.int32)

    def read(self, units: Array) -> Array:
        if not self._units.size:
            return np.zeros(units.shape, np.int32)
        places = np.minimum(np.searchsorted(self._units, units), self._units.size - 1)
        return np.where(self._units[places] == units, self._values[places], np.int32(0))

    def write(self, units: Array, values: Array) -> None:
        # Of equal units np.unique takes the first one it meets, and the last one written is to stay.
        units = np.concatenate([units[::-1], self._units])
        self._units, first = np.unique(units, return_index=True)
        self._values = np.concatenate([values[::-1], self._values])[first]

    def all_set(self) -> tuple[Array, Array]:
        return self._units, self._values
