"""A library of forms: which of them an array is, times a constant, in any order of axes and whichever part of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .formulas import Array, Form

# What is lower stands for minus infinity in scores.
HIDDEN = -1e4
# Fewer numbers than these may be anything.
FEWEST = 4


@dataclass(frozen=True)
class Match:
    """An array as a form."""

    form: Form
    factor: float
    """By which the form's values are multiplied."""


class FormLibrary:
    """Forms of one problem, and which of them an array is."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._forms: list[Form] = []
        self._shelves: dict[tuple[int, ...], tuple[list[Form], Array, int]] = {}
        """By a shape: the forms that arrays of it may be a part of, a row each, and how many forms stand in it."""
        self._fewest: dict[tuple[str, str, int], int] = {}
        self._orders: dict[tuple[tuple[int, ...], str], list[tuple[str, ...]]] = {}

    def add(self, forms: Iterable[Form]) -> None:
        """Further forms; one whose values are another's of its kind, with as few mistakes, is left out."""
        for form in forms:
            key = (form.kind, form.axes, hash(np.round(_finite(form.values), 9).tobytes()))
            if len(form.mistakes) < self._fewest.get(key, 99):
                self._fewest[key] = len(form.mistakes)
                self._forms.append(form)

    def matches(self, array: Array, tolerance: float) -> list[Match]:
        """What an array is, that with the fewest mistakes first."""
        flat, (forms, rows) = _finite(array).reshape(-1), self._shelf(array)
        length = float(np.linalg.norm(flat))
        if np.count_nonzero(flat) < FEWEST or not length or not forms:
            return []
        products, norms = rows @ flat, np.linalg.norm(rows, axis=1)
        found: dict[int, Match] = {}
        for at in np.flatnonzero((np.abs(products) >= (1 - 4 * tolerance) * norms * length) & (norms > 0)):
            form, factor = forms[at], float(products[at] / norms[at] ** 2)
            if np.abs(flat - factor * rows[at]).max() <= tolerance * np.abs(flat).max():
                found.setdefault(id(form), Match(form, factor))
        return sorted(found.values(), key=_simplest)

    def knows(self, array: Array) -> bool:
        """Whether any form has a part of an array's shape."""
        return bool(self._shelf(array)[0])

    def _shelf(self, array: Array) -> tuple[list[Form], Array]:
        shape = tuple(size for size in array.shape if size != 1)
        forms, rows, until = self._shelves.get(shape, ([], np.zeros((0, array.size)), 0))
        new = [(form, part) for form in self._forms[until:] for part in self._parts(form, shape)]
        if new:
            rows = np.concatenate([rows, *(part for _, part in new)])
            forms += [form for form, part in new for _ in part]
        self._shelves[shape] = forms, rows, len(self._forms)
        return forms, rows

    def _parts(self, form: Form, shape: tuple[int, ...]) -> Iterator[Array]:
        """The parts of a form that have a shape, [parts, size] for each order of axes."""
        values = _finite(form.values)
        axes = "".join(letter for letter, size in zip(form.axes, values.shape, strict=True) if size != 1)
        values = values.squeeze()
        if (shape, axes) not in self._orders:
            self._orders[shape, axes] = list(self._ordered(shape, axes))
        for kept in self._orders[shape, axes]:
            left = [letter for letter in axes if letter not in "".join(kept)]
            moved = values.transpose([axes.index(letter) for letter in (*left, *"".join(kept))])
            for part in self._tiles(moved, kept, shape, len(left)):
                yield np.ascontiguousarray(part).reshape(-1, math.prod(shape))

    def _tiles(self, moved: Array, kept: tuple[str, ...], shape: tuple[int, ...], before: int) -> Iterator[Array]:
        """The whole, or where one dimension is shorter than its axis, each tile of that length."""
        cut = [at for at, letters in enumerate(kept) if self._length(letters) != shape[at]]
        if not cut:
            yield moved
            return
        # A merged axis is never cut, and stands for one dimension alone.
        axis, size = before + sum(map(len, kept[: cut[0]])), shape[cut[0]]
        length = moved.shape[axis]
        for start in dict.fromkeys([*range(0, length - size + 1, size), length - size]):
            yield moved.take(range(start, start + size), axis)

    def _length(self, letters: str) -> int:
        return math.prod(self._sizes[letter] for letter in letters)

    def _ordered(self, shape: tuple[int, ...], axes: str) -> Iterator[tuple[str, ...]]:
        """Which axes each dimension of a shape may be: one, or two neighbours that are merged into it.

        Where no axes fit, one dimension may be a tile of the query rows or of the keys.
        """
        known = [*axes, *(pair for pair in ("bh", "hd", "he") if set(pair) <= set(axes))]
        whole = [[letters for letters in known if self._length(letters) == size] for size in shape]
        tiles = [[letter for letter in "mn" if letter in axes and 1 < size < self._length(letter)] for size in shape]
        cut = ([*whole[:at], tiles[at], *whole[at + 1 :]] for at in range(len(shape)))
        yield from list(_distinct(whole)) or [one for options in cut for one in _distinct(options)]


def _distinct(options: list[list[str]]) -> Iterator[tuple[str, ...]]:
    """Each choice of one option a dimension in which no axis stands twice."""
    yield from (one for one in itertools.product(*options) if len(set("".join(one))) == len("".join(one)))


def _finite(array: Array) -> Array:
    """The array with 0 for what is no number, or stands for minus infinity."""
    return np.where(np.isfinite(array) & (array > HIDDEN), array, 0.0)


def _simplest(match: Match) -> tuple[int, bool, bool]:
    """The order of what an array may be: few mistakes first, and last among them that there is no softmax at all."""
    mistakes = match.form.mistakes
    return len(mistakes), not match.form.kind, any(mistake.key == "softmax/scores" for mistake in mistakes)
