"""AccessedElements: what each line of a CUDA kernel on the CPU reads and writes, as batch, head, row and dim.

An address is an element of a tensor through that tensor's own strides; what lies between or behind them is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..frontends.cuda import BLOCK, THREAD, WARP, Recorded
from ..frontends.triton.interpreter.dataflow.lanes import NOWHERE, OUTSIDE, IndexTable
from ..inputs.memory import Array, elements_of
from ..model.case import Case
from ..source.text import SourceLine

if TYPE_CHECKING:
    from torch import Tensor

LETTERS = "bhgmnde"
_MOST_THREADS, _LANES = 1024, 32


@dataclass(frozen=True)
class KnownTensor:
    """A tensor whose axes are known."""

    name: str
    letters: str
    tensor: Tensor
    is_input: bool
    """Whether it is q, k, v, dO or O, or a copy of one."""

    @property
    def home(self) -> int:
        """The address of its storage."""
        return self.tensor.untyped_storage().data_ptr()


@dataclass(frozen=True)
class TensorLine:
    """One line that reads one tensor, or writes it."""

    name: str
    is_load: bool
    is_input: bool
    lines: tuple[SourceLine, ...]
    """The line in the kernel, then those in the functions that it called to get there."""


class AccessedElements:
    """What the threads of one launch read and wrote of tensors that are known, each element once a unit.

    A unit is what no other gives values to: a block, a warp or a thread of a kernel that shares nothing further.
    """

    def __init__(self, launch: Recorded, known: Sequence[KnownTensor], case: Case, *, by_thread: bool = False) -> None:
        """
        Args:
            by_thread: whether a unit is a thread, which reads what shared memory holds copies of where it reads those.
        """
        self.launch, self.kernel, self._case = launch, launch.entry.name, case
        self._together = THREAD if by_thread else launch.together
        self._records = launch.records
        if by_thread and launch.copies is not None:
            self._records = np.concatenate([launch.copies, launch.records[launch.records["is_copied"] == 0]])
        self.places: list[TensorLine] = []
        parts = [part for home in {one.home for one in known} for part in self._of_home(home, known)]
        columns = list(np.concatenate(parts, 1) if parts else np.empty((2 + len(LETTERS), 0), np.int64))
        self.unit, self.place = columns[:2]
        self.at: dict[str, Array] = dict(zip(LETTERS, columns[2:], strict=True))

    def _of_home(self, home: int, known: Sequence[KnownTensor]) -> Iterator[Array]:
        """For each tensor of a storage: units, places, and the index of each letter."""
        here = [one for one in known if one.home == home]
        size = here[0].tensor.untyped_storage().nbytes()
        regions = [number for number, base in enumerate(self.launch.bases) if home <= base < home + size]
        records = self._records[np.isin(self._records["region"], regions)]
        width = here[0].tensor.element_size()
        many = np.maximum(records["bytes"] // width, 1)
        step = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        records, address = np.repeat(records, many), np.repeat(records["address"], many).astype(np.int64) + step * width
        left = np.ones(len(records), bool)
        for one in here:
            found = _indices(one, self._case, address)
            # What is no element belongs to the one tensor that lies there; of several it could be any.
            own = left & ((found[0] != OUTSIDE) | (len(here) == 1))
            left &= ~own
            if own.any():
                yield self._columns(one, records[own], [each[own] for each in found])

    def _columns(self, one: KnownTensor, records: Array, found: Sequence[Array]) -> Array:
        is_load = records["access"] == 0
        chains = np.vstack([records["pc"].T, is_load]).astype(np.int64)
        _, first, chain = np.unique(_hashes(chains), return_index=True, return_inverse=True)
        numbers = [self._number(one, tuple(map(int, each[:-1])), is_load=bool(each[-1])) for each in chains[:, first].T]
        thread = records["thread"].astype(np.int64)
        within = {BLOCK: thread * 0, WARP: thread // _LANES}.get(self._together, thread)
        unit = records["block"].astype(np.int64) * _MOST_THREADS + within
        return _distinct(np.stack([unit, np.array(numbers)[chain.reshape(-1)], *found]))

    def _number(self, one: KnownTensor, chain: tuple[int, ...], *, is_load: bool) -> int:
        place = TensorLine(one.name, is_load, one.is_input, self._lines(chain))
        if place not in self.places:
            self.places.append(place)
        return self.places.index(place)

    def _lines(self, chain: tuple[int, ...]) -> tuple[SourceLine, ...]:
        inwards = [line for address in chain if address for line in self._of_address[address]]
        return tuple(line for line in reversed(inwards) if line.file.endswith(self._files))

    @cached_property
    def _of_address(self) -> Mapping[int, tuple[SourceLine, ...]]:
        return self.launch.lines(sorted({int(each) for each in np.unique(self._records["pc"])} - {0}))

    @cached_property
    def _files(self) -> tuple[str, ...]:
        source = self.launch.entry.unit.source
        return (source.path.name, *(path.name for path, _ in source.included))

    def drop(self, places: Collection[TensorLine]) -> None:
        """Forgets what some places touch."""
        kept = np.array([place not in places for place in self.places], bool)[self.place]
        self.unit, self.place = self.unit[kept], self.place[kept]
        self.at = {letter: index[kept] for letter, index in self.at.items()}

    def size(self, letters: str) -> tuple[int, ...]:
        return tuple(self._case.size(letter) for letter in letters)

    def sets(
        self, level: str, keeps: Callable[[TensorLine], bool] = lambda place: True
    ) -> dict[int, dict[int, set[int]]]:
        """By unit and place: what is touched there, as numbers of the indices of some letters; OUTSIDE for no element.

        Args:
            level: the letters. Places of tensors that lack one are left out.
        """
        kept = np.array([keeps(place) for place in self.places], bool)[self.place]
        kept &= np.logical_and.reduce([self.at[letter] != NOWHERE for letter in level])
        indices = [self.at[letter][kept] for letter in level]
        keys = np.where(indices[0] == OUTSIDE, OUTSIDE, np.ravel_multi_index(np.maximum(indices, 0), self.size(level)))
        found: dict[int, dict[int, set[int]]] = {}
        for unit, place, key in _distinct(np.stack([self.unit[kept], self.place[kept], keys])).T.tolist():
            found.setdefault(unit, {}).setdefault(place, set()).add(key)
        return found

    def count(self, place: int) -> int:
        """How many units come to a place."""
        return len(np.unique(self.unit[self.place == place]))

    def index(self, level: str, key: int) -> tuple[int, ...]:
        """The indices that a number of `sets` stands for."""
        return tuple(map(int, np.unravel_index(max(key, 0), self.size(level))))

    def mask(self, level: str, keys: set[int]) -> Array:
        """Some numbers of `sets` as an array of those sizes, [B, H, ...]: of key heads, one for each head."""
        found = np.zeros(self.size(level), bool)
        found.reshape(-1)[sorted(keys - {OUTSIDE})] = True
        return np.repeat(found, self._case.heads // self._case.kv_heads, 1) if "g" in level else found


def _indices(one: KnownTensor, case: Case, address: Array) -> list[Array]:
    """By letter, the index of the element at each address."""
    offset, rest = np.divmod(address - one.tensor.data_ptr(), one.tensor.element_size())
    sizes = {letter: case.size(letter) for letter in LETTERS}
    found = IndexTable(elements_of(one.tensor), one.letters, sizes).at(np.where(rest == 0, offset, -1))
    return [found.get(letter, np.full(len(address), NOWHERE)) for letter in LETTERS]


def _distinct(rows: Array) -> Array:
    """The different columns."""
    return rows[:, np.unique(_hashes(rows), return_index=True)[1]]


def _hashes(rows: Array) -> Array:
    """A number for each column: different ones for different columns, as good as surely."""
    factors = np.random.default_rng(0).integers(0, 1 << 63, len(rows), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (rows.astype(np.uint64) * factors[:, None]).sum(0, dtype=np.uint64)
