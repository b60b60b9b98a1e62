"""Lanes: the batch, head, row, key and dim that each lane of a tile is of, and how operations carry them on.

The letters are those of the table of intermediates: b batch, h head, g key head, m query row, n key, d head dim,
e value head dim, w distance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .....inputs.memory import Array, Elements

NOWHERE = -1
"""The index of a lane that was masked, or whose element is not known."""
OUTSIDE = -2
"""The index of a lane that was read where its tensor has no element."""


@dataclass(frozen=True)
class Cover:
    """What a tile is a sum, or a maximum, over: how often each row and key is in it."""

    axis: int
    """The axis of the tile along which `counts` goes."""
    letter: str
    """What was summed over: m or n."""
    counts: Array
    """[lanes of the axis, heads, indices of the letter] int16."""


@dataclass(frozen=True)
class Lanes:
    """What is known of a tile's lanes."""

    at: Mapping[str, Array]
    """By letter, int32 in the shape of the tile; NOWHERE where it is not known."""
    origins: Mapping[str, frozenset[int]]
    """By letter, the numbers of the loads that it comes from."""
    cover: Cover | None = None

    @property
    def is_matrix(self) -> bool:
        """Whether its lanes are scores: each of one row and one key."""
        return "m" in self.at and "n" in self.at

    def of_sum(self) -> tuple[str, Array, Array, Array] | None:
        """Of a sum over rows or keys: the letter of the other, and of each lane its batch, its index, what it sums."""
        kept = {"m": "n", "n": "m"}[self.cover.letter] if self.cover is not None else ""
        if self.cover is None or not {"b", kept} <= self.at.keys():
            return None
        others = tuple(axis for axis in range(self.at["b"].ndim) if axis != self.cover.axis)
        return kept, self.at["b"].max(others), self.at[kept].max(others), self.cover.counts


def joined(left: Lanes, right: Lanes, cover: Cover | None = None) -> Lanes:
    """The lanes of a tile that two tiles met in, lane by lane."""
    at, origins = dict(left.at), dict(left.origins)
    for letter, values in right.at.items():
        at[letter] = np.where(at[letter] < 0, values, at[letter]) if letter in at else values
        origins[letter] = origins.get(letter, frozenset()) | right.origins[letter]
    made = Lanes(at, origins)
    shape = np.broadcast_shapes(*(values.shape for values in at.values()))
    return spread(made if made.is_matrix else replace(made, cover=cover), shape)


def spread(lanes: Lanes, shape: tuple[int, ...]) -> Lanes:
    """The same in the shape of a result, to which numpy broadcasts its operands."""
    at = dict(lanes.at)
    for letter, values in at.items():
        at[letter] = values if values.shape == shape else np.broadcast_to(values, shape)
    return replace(lanes, at=at)


def without(lanes: Lanes, letters: set[str]) -> Lanes:
    """The same, as if nothing were known of some letters."""
    return replace(lanes, at={x: at for x, at in lanes.at.items() if x not in letters})


def differ(left: Array, right: Array) -> tuple[int, int] | None:
    """Two indices that are known and differ, of tiles that meet lane by lane; None where there are none.

    What lies outside its tensor differs from every element, and not from what is not known.
    """
    if left.shape != right.shape:
        try:
            left, right = np.broadcast_arrays(left, right)
        except ValueError:
            return None
    apart = (left != right) & (left != NOWHERE) & (right != NOWHERE)
    if not apart.any():
        return None
    where = int(np.flatnonzero(apart)[0])
    return int(left.reshape(-1)[where]), int(right.reshape(-1)[where])


def along(values: Array, axis: int) -> Array | None:
    """The index of each lane of the other axes, where it is the same throughout `axis`; None where it varies."""
    most = values.max(axis)
    same = (values == np.expand_dims(most, axis)) | (values < 0)
    return most if bool(same.all()) else None


def reduced(lanes: Lanes, axis: int, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Lanes | None:
    """The lanes of a tile after a reduction over one of its axes."""
    found = {}
    for letter, values in lanes.at.items():
        index = along(values, axis)
        if index is not None:
            found[letter] = index.reshape(shape)
    cover = None
    if len(shape) == 1:  # a vector is left, and no number
        cover = contracted(lanes, axis, sizes)
        if lanes.cover is not None and lanes.cover.axis != axis:
            cover = lanes.cover
    cover = replace(cover, axis=0) if cover is not None else None
    return Lanes(found, {letter: lanes.origins[letter] for letter in found}, cover) if found else None


def contracted(scores: Lanes, axis: int, sizes: Mapping[str, int]) -> Cover | None:
    """What a sum of scores over one of their two axes is over, the other of which is kept."""
    over = ""
    if scores.is_matrix and scores.at["m"].ndim == 2:
        over = next((x for x in "mn" if along(scores.at[x], axis) is None), "")
    if not over or "h" not in scores.at:
        return None
    terms, head = (np.moveaxis(scores.at[x], axis, -1) for x in (over, "h"))
    lane = np.broadcast_to(np.arange(len(terms))[:, None], terms.shape)
    known = (terms >= 0) & (head >= 0)
    counts = np.zeros((len(terms), sizes["h"], sizes[over]), np.int16)
    np.add.at(counts, (lane[known], head[known], terms[known]), 1)
    return Cover(1 - axis, over, counts)


def together(left: Cover, right: Cover, *, is_sum: bool) -> Cover | None:
    """What the sum, or the maximum, of two tiles is over."""
    if (left.axis, left.letter, left.counts.shape) != (right.axis, right.letter, right.counts.shape):
        return None
    counts = left.counts + right.counts if is_sum else np.maximum(left.counts, right.counts)
    return replace(left, counts=counts)


def without_tail(at: dict[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """The indices of a tile without those of the lanes behind the last row or key.

    Kernels that do not mask them read whatever lies there, such as the next head's rows, and then make no use of it.
    """
    behind: Any = False
    for letter in at.keys() & set("mn"):
        last = at[letter] == sizes[letter] - 1
        for axis in range(last.ndim):
            behind = behind | (np.maximum.accumulate(last, axis) & ~last)
    return {letter: np.where(behind, NOWHERE, values) for letter, values in at.items()}


def varying(values: Array) -> list[int]:
    """The axes along which an index varies."""
    return [axis for axis in range(values.ndim) if along(values, axis) is None]


def is_block(at: Mapping[str, Array]) -> bool:
    """Whether a tile was read as a block of rows and columns: inside its tensor, and along each axis by one letter.

    A distance goes along both by its nature.
    """
    for letter, values in at.items():
        if (values == OUTSIDE).any() or (letter != "w" and len(varying(values)) > 1):
            return False
    return True


_AXIS = re.compile(r"\(\w+\)|\w")


class IndexTable:
    """The index of each element of a tensor, by its offset from the first one; a key head for each head too."""

    def __init__(self, elements: Elements, letters: str, sizes: Mapping[str, int]) -> None:
        axes = _split(elements, letters, sizes)
        self._letters = {letter for letter, _, _ in axes} - {"1"}
        # Of an axis of stride 0 nothing is known but its first index.
        held = [(letter, size, step) for letter, size, step in axes if step or size == 1]
        shape = [size for _, size, _ in held]
        indices = np.indices(shape, np.int32).reshape(len(held), math.prod(shape))
        offsets = np.zeros(math.prod(shape), np.int64)
        for index, (_, _, step) in zip(indices, held, strict=True):
            offsets += index.astype(np.int64) * step
        order = np.argsort(offsets)
        self._offsets = offsets[order]
        self._indices = {letter: index[order] for index, (letter, _, _) in zip(indices, held, strict=True)}
        self._indices.pop("1", None)
        if "h" in self._indices:
            self._indices["g"] = self._indices["h"] // (sizes["h"] // sizes["g"])

    def at(self, offsets: Array) -> dict[str, Array]:
        """By letter, the index at each offset; OUTSIDE where there is no element."""
        places = np.minimum(np.searchsorted(self._offsets, offsets), len(self._offsets) - 1)
        inside = self._offsets[places] == offsets
        found = {letter: np.where(inside, index[places], OUTSIDE) for letter, index in self._indices.items()}
        if not inside.all():
            # Elements of an axis of stride 0 have no index of their own; what is none of them is outside all the same.
            for letter in self._letters - found.keys():
                found[letter] = np.where(inside, NOWHERE, OUTSIDE)
        return found


def _split(elements: Elements, letters: str, sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """(letter, size, stride) of each axis; of axes that were made one, in brackets, each of them."""
    found: list[tuple[str, int, int]] = []
    for word, size, step in zip(_AXIS.findall(letters), elements.shape, elements.strides, strict=True):
        if len(word) == 1:
            found.append((word, size, step))
            continue
        inner = step
        for letter in reversed(word.strip("()")):
            found.append((letter, sizes[letter], inner))
            inner *= sizes[letter]
    return found
