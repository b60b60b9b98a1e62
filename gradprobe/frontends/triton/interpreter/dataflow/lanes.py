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
    shape = np.broadcast_shapes(*(values.shape for values in at.values()))
    at = {letter: values if values.shape == shape else np.broadcast_to(values, shape) for letter, values in at.items()}
    return Lanes(at, origins, None if "m" in at and "n" in at else cover)


def spread(lanes: Lanes, shape: tuple[int, ...]) -> Lanes:
    """The same in the shape of a result, to which numpy broadcasts its operands."""
    if all(values.shape == shape for values in lanes.at.values()):
        return lanes
    return replace(lanes, at={letter: np.broadcast_to(values, shape) for letter, values in lanes.at.items()})


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
    found, lost = {}, {}
    for letter, values in lanes.at.items():
        kept = along(values, axis)
        if kept is None:
            lost[letter] = values
        else:
            found[letter] = kept.reshape(shape)
    over, cover = next((letter for letter in "mn" if letter in lost), None), None
    if lanes.cover is not None and lanes.cover.axis != axis and len(shape) == 1:
        cover = replace(lanes.cover, axis=0)
    # Not of a vector, of which a number is left.
    if over is not None and lost[over].ndim == 2 and lanes.is_matrix and len(shape) == 1 and "h" in lanes.at:
        rows, head = (np.moveaxis(lanes.at[x], axis, -1) for x in (over, "h"))
        cover = Cover(0, over, _counts(rows, head, sizes["h"], sizes[over]))
    if over == "m" and "n" in found:
        found.pop("h", None)
    return Lanes(found, {letter: lanes.origins[letter] for letter in found}, cover) if found else None


def _counts(indices: Array, head: Array, heads: int, length: int) -> Array:
    """[lanes, heads, length] how often each index of each head stands in a lane's row of [lanes, terms]."""
    counts = np.zeros((indices.shape[0], heads, length), np.int16)
    lane = np.broadcast_to(np.arange(indices.shape[0])[:, None], indices.shape)
    known = (indices >= 0) & (head >= 0)
    np.add.at(counts, (lane[known], head[known], indices[known]), 1)
    return counts


def contracted(scores: Lanes, axis: int, sizes: Mapping[str, int]) -> Cover | None:
    """What a dot sums over where one operand holds scores: over `axis` of them, whose other axis is kept."""
    over = next((x for x in "mn" if x in scores.at and along(scores.at[x], axis) is None), None)
    if over is None or "h" not in scores.at:
        return None
    rows, head = (np.moveaxis(scores.at[x], axis, -1) for x in (over, "h"))
    return Cover(1 - axis, over, _counts(rows, head, sizes["h"], sizes[over]))


def together(left: Cover | None, right: Cover | None, *, is_sum: bool) -> Cover | None:
    """What the sum, or the maximum, of two tiles is over."""
    if left is None or right is None:
        return left or right
    if (left.axis, left.letter, left.counts.shape) != (right.axis, right.letter, right.counts.shape):
        return None
    counts = left.counts + right.counts if is_sum else np.maximum(left.counts, right.counts)
    return replace(left, counts=counts)


def without_tail(at: dict[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """The indices of a tile without those of the lanes behind the last row or key.

    Kernels that do not mask them read whatever lies there, such as the next head's rows, and then make no use of it.
    """
    behind: Any = False
    for letter in ("m", "n"):
        if letter in at:
            last = at[letter] == sizes[letter] - 1
            for axis in range(last.ndim):
                behind = behind | (np.maximum.accumulate(last, axis) & ~last)
    return {letter: np.where(behind, NOWHERE, values) for letter, values in at.items()}


def is_block(at: Mapping[str, Array]) -> bool:
    """Whether a tile was read as a block of rows and columns: inside its tensor, and along each axis by one letter.

    A distance goes along both by its nature.
    """
    for letter, values in at.items():
        if (values == OUTSIDE).any():
            return False
        varies = [along(values, axis) is None for axis in range(values.ndim)]
        if sum(varies) > 1 and letter != "w":
            return False
    return True


_AXIS = re.compile(r"\(\w+\)|\w")


class IndexTable:
    """The index of each element of a tensor, by its offset from the first one; a key head for each head too."""

    def __init__(self, elements: Elements, letters: str, sizes: Mapping[str, int]) -> None:
        # Of an axis of stride 0 nothing is known but its first index.
        axes = _split(elements, letters, sizes)
        held = [axis for axis, (_, size, step) in enumerate(axes) if step or size == 1]
        self._letters = {letter for letter, _, _ in axes} - {"1"}
        steps = np.ogrid[tuple(slice(axes[axis][1]) for axis in held)]
        strides = [axes[axis][2] for axis in held]
        offsets = np.zeros([len(step.reshape(-1)) for step in steps], np.int64)
        for step, stride in zip(steps, strides, strict=True):
            offsets = offsets + step * stride
        order = np.argsort(offsets, axis=None)
        self._offsets = offsets.reshape(-1)[order]
        self._indices = {
            axes[axis][0]: np.broadcast_to(step, offsets.shape).reshape(-1)[order].astype(np.int32)
            for axis, step in zip(held, steps, strict=True)
            if axes[axis][0] != "1"
        }
        if "h" in self._indices:
            self._indices["g"] = self._indices["h"] // (sizes["h"] // sizes["g"])

    def at(self, offsets: Array) -> dict[str, Array]:
        """By letter, the index at each offset; OUTSIDE where there is no element."""
        places = np.minimum(np.searchsorted(self._offsets, offsets), len(self._offsets) - 1)
        inside = self._offsets[places] == offsets
        found = {letter: np.where(inside, index[places], OUTSIDE) for letter, index in self._indices.items()}
        # Elements of an axis of stride 0 have no index of their own; what is none of them is outside all the same.
        lost = () if inside.all() else self._letters - found.keys()
        return found | {letter: np.where(inside, NOWHERE, OUTSIDE) for letter in lost}


def _split(elements: Elements, letters: str, sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """(letter, size, stride) of each axis; of axes that were made one, in brackets, each of them."""
    found: list[tuple[str, int, int]] = []
    for word, size, step in zip(_AXIS.findall(letters), elements.shape, elements.strides, strict=True):
        if len(word) == 1:
            found.append((word, size, step))
            continue
        inner = word.strip("()")
        steps = [step * math.prod(sizes[letter] for letter in inner[at + 1 :]) for at in range(len(inner))]
        found += [(letter, sizes[letter], each) for letter, each in zip(inner, steps, strict=True)]
    return found
