"""A library of forms: which of them an array is, times a constant, in any order of axes and whichever part of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from .formulas import Array, Form

# What is lower stands for minus infinity in scores.
HIDDEN = -1e4
# Fewer numbers than these may be anything.
FEWEST = 4


Match = tuple[Form, float]
"""A form, and the factor that it is multiplied by."""


class FormLibrary:
    """Forms of one problem, and which of them an array is.

    Args:
        sizes: by the letter of each axis.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._forms: list[Form] = []
        self._shelves: dict[tuple[int, ...], tuple[list[Form], Array, int]] = {}
        """By a shape: the forms that arrays of it may be a part of, a row each, and how many forms stand in it."""
        self._fewest: dict[tuple[str, str, int], int] = {}
        self._known: dict[tuple[tuple[int, ...], str], list[tuple[str, ...]]] = {}

    def add(self, forms: Iterable[Form]) -> None:
        """Further forms; one whose values are another's of its kind, with as few mistakes, is left out."""
        for form in forms:
            key = form.kind, form.axes, hash(np.round(_finite(form.values), 9).tobytes())
            if len(form.mistakes) < self._fewest.get(key, 99):
                self._fewest[key] = len(form.mistakes)
                self._forms.append(form)

    def matches(self, array: Array, tolerance: float) -> list[Match]:
        """What an array is, that with the fewest mistakes first."""
        flat = _finite(array).reshape(-1)
        length = float(np.linalg.norm(flat))
        forms, rows = self._shelf(tuple(size for size in array.shape if size != 1))
        if np.count_nonzero(flat) < FEWEST or not length or not forms:
            return []
        products, norms = rows @ flat, np.linalg.norm(rows, axis=1)
        may = (np.abs(products) >= (1 - 4 * tolerance) * norms * length) & (norms > 0)
        found: dict[int, Match] = {}
        for at in np.flatnonzero(may):
            factor = float(products[at] / norms[at] ** 2)
            if np.abs(flat - factor * rows[at]).max() <= tolerance * np.abs(flat).max():
                found.setdefault(id(forms[at]), (forms[at], factor))
        return sorted(found.values(), key=_simplest)

    def _shelf(self, shape: tuple[int, ...]) -> tuple[list[Form], Array]:
        size = math.prod(shape)
        forms, rows, until = self._shelves.get(shape, ([], np.zeros((0, size)), 0))
        added = [rows]
        for form in self._forms[until:]:
            for part in self._parts(form, shape):
                added.append(np.ascontiguousarray(part).reshape(-1, size))
                forms += [form] * len(added[-1])
        rows = np.concatenate(added)
        self._shelves[shape] = forms, rows, len(self._forms)
        return forms, rows

    def _parts(self, form: Form, shape: tuple[int, ...]) -> Iterator[Array]:
        """The parts of a form that have a shape, the axes that they lack first."""
        values = _finite(form.values)
        axes = "".join(letter for letter, size in zip(form.axes, values.shape, strict=True) if size != 1)
        if (shape, axes) not in self._known:
            self._known[shape, axes] = [*self._orders(shape, axes)]
        for order in self._known[shape, axes]:
            own = "".join(order)
            others = [letter for letter in axes if letter not in own]
            moved = values.squeeze().transpose([axes.index(letter) for letter in (*others, *own)])
            yield from self._tiles(moved, order, shape, len(others))

    def _orders(self, shape: tuple[int, ...], axes: str) -> Iterator[tuple[str, ...]]:
        """Which axes each dimension of a shape may be: one, or two neighbours that are merged into it.

        Where no axes fit, one dimension may be a tile of the query rows or of the keys.
        """
        known = [*axes, *(pair for pair in ("bh", "hd", "he") if set(pair) <= set(axes))]
        whole = [[letters for letters in known if self._length(letters) == size] for size in shape]
        found = list(itertools.product(*whole))
        if not found:
            for at, size in enumerate(shape):
                tiles = [letter for letter in "mn" if letter in axes and 1 < size < self._length(letter)]
                found += itertools.product(*whole[:at], tiles, *whole[at + 1 :])
        for order in found:
            letters = "".join(order)
            if len(set(letters)) == len(letters):
                yield order

    def _tiles(self, moved: Array, order: tuple[str, ...], shape: tuple[int, ...], before: int) -> Iterator[Array]:
        """The whole, or where one dimension is shorter than its axis, each tile of that length."""
        cut = next((at for at, letters in enumerate(order) if self._length(letters) != shape[at]), None)
        if cut is None:
            yield moved
            return
        axis, size = before + sum(map(len, order[:cut])), shape[cut]
        last = moved.shape[axis] - size
        for start in dict.fromkeys([*range(0, last + 1, size), last]):
            yield moved.take(range(start, start + size), axis)

    def _length(self, letters: str) -> int:
        return math.prod(self._sizes[letter] for letter in letters)


def _finite(array: Array) -> Array:
    """The array with 0 for what is no number, or stands for minus infinity."""
    return np.where(np.isfinite(array) & (array > HIDDEN), array, 0.0)


def _simplest(match: Match) -> tuple[int, bool, bool]:
    """The order of what an array may be: few mistakes first, and last among them that there is no softmax at all."""
    form, mistakes = match[0], match[0].mistakes
    return len(mistakes), not form.kind, any(mistake.key == "softmax/scores" for mistake in mistakes)
