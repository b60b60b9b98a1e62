"""Batch b, head h, key head g, row m, key n, dim d or e of each lane; w: a distance."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .....inputs.memory import Array, Elements

# The index of a lane that was masked, or whose element is not known.
NOWHERE = -1
# The index of a lane that was read where its tensor has no element.
OUTSIDE = -2


@dataclass(frozen=True)
class Cover:
    axis: int
    letter: str
    # [lanes along the axis, heads, indices of the letter] int16: how often each is in it.
    counts: Array

    def together(self, other: Cover, *, is_sum: bool) -> Cover | None:
        if (self.axis, self.letter) != (other.axis, other.letter):
            return None
        if self.counts.shape != other.counts.shape:
            return None
        counts = (np.add if is_sum else np.maximum)(self.counts, other.counts)
        return replace(self, counts=counts)


@dataclass(frozen=True)
class Lanes:
    at: Mapping[str, Array]  # by letter, int32 in the shape of the tile, or NOWHERE
    # By letter, the loads that it comes from; of letters that were left out too.
    origins: Mapping[str, frozenset[int]]
    cover: Cover | None = None

    @property
    def is_matrix(self) -> bool:
        return "m" in self.at and "n" in self.at

    def of_sum(self) -> tuple[str, Array, Array, Array] | None:
        """Of a sum over rows or keys: the letter of the other; by lane batch, index, summand."""
        cover, at = self.cover, self.at
        kept = {"m": "n", "n": "m"}[cover.letter] if cover is not None else ""
        if cover is None or "b" not in at or kept not in at:
            return None
        others = tuple({*range(at["b"].ndim)} - {cover.axis})
        return kept, at["b"].max(others), at[kept].max(others), cover.counts

    def joined(self, other: Lanes, cover: Cover | None = None) -> Lanes:
        at, origins = dict(self.at), dict(self.origins)
        for x, index in other.at.items():
            at[x] = np.where(at[x] < 0, index, at[x]) if x in at else index
            origins[x] = origins.get(x, frozenset()) | other.origins[x]
        return Lanes(at, origins, None if {"m", "n"} <= at.keys() else cover)

    def only(self, at: Mapping[str, Array], cover: Cover | None) -> Lanes:
        return Lanes(at, {x: self.origins[x] for x in at}, cover if at else None)

    def without(self, letters: set[str]) -> Lanes:
        return replace(self, at={x: index for x, index in self.at.items() if x not in letters})

    def reduced(self, axis: int, shape: Sequence[int], sizes: Mapping[str, int]) -> Lanes:
        at, cover = dict[str, Array](), self.cover
        for x, index in self.at.items():
            if (kept := along(index, axis)) is not None:
                at[x] = kept.reshape(shape)
        if cover is None or cover.axis == axis:
            cover = self.contracted(axis, sizes)
        if cover is not None:
            cover = replace(cover, axis=0) if len(shape) == 1 else None
        return self.only(at, cover)

    def contracted(self, axis: int, sizes: Mapping[str, int]) -> Cover | None:
        at, over = self.at, ""
        if self.is_matrix and "h" in at and at["m"].ndim == 2:
            over = next((x for x in "mn" if along(at[x], axis) is None), "")
        if not over:
            return None
        terms, head = np.moveaxis(at[over], axis, -1), np.moveaxis(at["h"], axis, -1)
        lane = np.broadcast_to(np.arange(len(terms))[:, None], terms.shape)
        known = (terms >= 0) & (head >= 0)
        counts = np.zeros((len(terms), sizes["h"], sizes[over]), np.int16)
        np.add.at(counts, (lane[known], head[known], terms[known]), 1)
        return Cover(1 - axis, over, counts)


UNKNOWN = Lanes({}, {})


def differ(left: Array, right: Array) -> tuple[int, int] | None:
    """Two known indices that differ; OUTSIDE differs from every element."""
    if left.shape != right.shape:
        try:
            left, right = np.broadcast_arrays(left, right)
        except ValueError:
            return None
    apart = (left != right) & (left != NOWHERE) & (right != NOWHERE)
    if not apart.any():
        return None
    where = apart.argmax()
    return int(left.flat[where]), int(right.flat[where])


def along(index: Array, axis: int) -> Array | None:
    """The index of each lane of the other axes; None where it varies along this."""
    most = index.max(axis, keepdims=True)
    return most.squeeze(axis) if ((index == most) | (index < 0)).all() else None


def varying(index: Array) -> list[int]:
    return [axis for axis in range(index.ndim) if along(index, axis) is None]


def without_tail(at: dict[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Without lanes behind the last row or key, which are the next head's."""
    behind: Any = False
    for x in at.keys() & {"m", "n"}:
        last = at[x] == sizes[x] - 1
        for axis in range(last.ndim):
            behind = behind | (np.maximum.accumulate(last, axis) & ~last)
    return {x: np.where(behind, NOWHERE, index) for x, index in at.items()}


def is_block(at: Mapping[str, Array]) -> bool:
    """Whether it was read inside its tensor, with one axis a letter but a distance's."""
    is_apart = any(x != "w" and len(varying(index)) > 1 for x, index in at.items())
    return not is_apart and not any((index == OUTSIDE).any() for index in at.values())


def indices_at(
    elements: Elements, letters: str, sizes: Mapping[str, int], offsets: Array
) -> dict[str, Array]:
    """By letter, the index at each offset in elements; "(bh)md" where two were made one, 1 for one of nothing."""
    axes: list[tuple[int, str, int]] = []
    words = re.findall(r"\(\w+\)|\w", letters)
    for word, size, step in zip(words, elements.shape, elements.strides, strict=True):
        inner = 1
        for letter in reversed(word.strip("()")):
            axes.append((step * inner, letter, size if len(word) == 1 else sizes[letter]))
            inner *= axes[-1][2]
    rest = offsets.astype(np.int64)
    inside = elements.hold(rest * elements.itemsize, elements.itemsize)
    found: dict[str, Any] = {}
    for step, letter, length in sorted(axes, reverse=True):
        if step or length == 1:
            found[letter] = np.clip(rest // max(step, 1), 0, length - 1)
            rest = rest - found[letter] * step
        elif not inside.all():  # nothing is known of it but what is none of its elements
            found[letter] = NOWHERE
    found.pop("1", None)
    if "h" in found:
        found["g"] = found["h"] // (sizes["h"] // sizes["g"])
    is_known, others = inside & (rest == 0), np.where(inside, NOWHERE, OUTSIDE)
    return {x: np.where(is_known, index, others).astype(np.int32) for x, index in found.items()}
