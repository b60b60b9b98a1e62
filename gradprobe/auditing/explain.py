"""The first wrong formula: what each value of a watched call is, by its numbers, and which mistake explains results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..frontends import Event
from ..model.intermediates import PRODUCTS, symbol
from ..model.mechanisms import door
from ..model.report import Where
from ..reference import Attention
from .formulas import DUE, RESULTS, Array, Form, Formulas, Mistake

# How far a value may be from a form, as a share of its largest number: sums of a few dozen numbers err by far less.
# These were chosen, and only name what the budgets of `compare` have found wrong.
_TOLERANCES = {"float64": 1e-7, "float32": 1e-4}
_COARSE = 3e-2
_NEAR = 1e-3
# What is lower stands for minus infinity in scores.
_HIDDEN = -1e4
# Fewer numbers than these may be anything.
_FEWEST = 4

Match = tuple[Form, float]
"""A form, and the factor that it is multiplied by."""


@dataclass(frozen=True)
class Located:
    """A mistake, and where it first shows."""

    mistake: Mistake
    at: Where | None = None
    """None where no value of the function shows it."""
    results: tuple[str, ...] = ()
    """The results that it makes wrong."""
    is_late: bool = False
    """Whether it shows in a result alone, and not where it is made."""


@dataclass(frozen=True)
class AuditExplanation:
    """Why a call gave wrong results."""

    located: tuple[Located, ...] = ()
    """In the order of the formulas."""
    unexplained: tuple[str, ...] = ()
    """The wrong results that no known mistake gives."""


@door("audit/explain", lambda x, values, results, wrong, **_: AuditExplanation(unexplained=tuple(wrong)))
def explain(
    x: Attention,
    values: Iterable[Event],
    results: Mapping[str, Array],
    wrong: Iterable[str],
    *,
    by_autograd: bool = False,
) -> AuditExplanation:
    """Why some results are wrong.

    Args:
        values: what the function's expressions held.
        results: what it returned, by intermediate, in [B, H, L, D].
        wrong: the names of those that are.
        by_autograd: whether its gradients are those of its O, so that they inherit what is wrong in that.
    """
    located, unexplained = dict[Mistake, Located](), list[str]()
    with np.errstate(all="ignore"):
        search = _FormSearch(x)
        for value in values:
            search.see(value)
        for name in wrong:
            reasons = search.reasons(name, results[name], by_autograd=by_autograd)
            if not reasons:
                unexplained.append(name)
            for reason in reasons:
                before = located.get(reason.mistake, reason)
                located[reason.mistake] = replace(before, results=(*before.results, name))
    order = [*DUE]
    found = sorted(located.values(), key=lambda each: order.index(each.mistake.of) if each.mistake.of in order else 99)
    return AuditExplanation(tuple(found), tuple(unexplained))


class _FormSearch:
    """The forms of one problem, and which of them were seen where."""

    def __init__(self, x: Attention) -> None:
        b, h, m, d = x.q.shape
        self._x, self._formulas = x, Formulas(x)
        self._library = _FormLibrary({"b": b, "h": h, "m": m, "n": x.n_key, "d": d, "e": x.v.shape[-1]})
        for form in (*self._formulas.due(), *self._formulas.mistaken()):
            self._library.add(form)
        self._sights: list[tuple[Where, Form, float]] = []
        self._narrow: Event | None = None

    def see(self, value: Event) -> None:
        """Notes what a value is."""
        if self._narrow is None and value.dtype not in _TOLERANCES:
            self._narrow = value
        hidden = ~(value.array > _HIDDEN)
        if hidden.any() and not np.isnan(value.array).any():
            mistake = self._formulas.mask_of(hidden)
            if mistake is not None:
                self._sights.append((value.at, Form("S", "", value.array, mistake), 1.0))
            return
        for form, factor in self._library.matches(value.array, _TOLERANCES.get(value.dtype, _COARSE)):
            self._sights.append((value.at, form, factor))

    def reasons(self, name: str, array: Array, *, by_autograd: bool) -> list[Located]:
        """What makes a result wrong, and where; nothing where nothing known does."""
        narrow = self._narrow
        for form, factor in self._library.matches(array, _COARSE):
            if narrow is not None and form.kind == name and form.mistake is None and abs(factor - 1) < _COARSE:
                came = f"it computes in {narrow.dtype}, and has its rounding errors"
                return [Located(Mistake("", "precision", came, "compute in float64"), narrow.at)]
        matches = self._library.matches(array, _TOLERANCES["float32"])
        own = [match for match in matches if match[0].kind == name]
        if own:
            form, factor = min(own, key=lambda match: not _is(match[1], 1.0))
            return self._located(form) + ([] if _is(factor, 1.0) else [self._of_factor(name, factor)])
        for form, _ in matches:
            if form.kind or form.product is not None:
                return [*self._located(form), self._of_other(name, form)]
        of_o = [form for _, form, _ in self._sights if form.kind == "O"]
        return self._located(of_o[-1]) if by_autograd and of_o else []

    def _of_factor(self, name: str, factor: float) -> Located:
        scale, at = self._x.scale, self._first(name, factor)
        known = [(-1.0, "sign", f"{name} has the wrong sign", "")]
        if name in ("dQ", "dK"):
            ignored = f"the scale that is given is not used in {name}, but 1 / sqrt(head dim)"
            known += [
                (self._x.q.shape[-1] ** -0.5 / scale, "scale/ignored", ignored, "use it"),
                (scale, "scale/twice", f"the scale is applied to {name} twice", f"multiply {name} by it once"),
                (1 / scale, "scale/left-out", f"the scale is left out of {name}", f"multiply {name} by the scale"),
            ]
            if not _is(factor * scale, 1.0):  # where dS has that factor already
                at = self._first("dS", factor * scale) or at
        known.append((factor, "factor", f"all of {name} is {factor:.4g} times what the formula gives", ""))
        words = next(words for usual, *words in known if _is(factor, usual))
        return Located(Mistake(name, *words), at)

    def _of_other(self, name: str, form: Form) -> Located:
        """A result that is another one, or a product of other things."""
        product, due = form.product, PRODUCTS[name]
        if form.kind or product is None:
            came = f"what is returned as {name} is {symbol(form.kind)}"
            return Located(Mistake(name, "order", came, "return it under its own name"))
        key = "transposed" if product == due.turned else "operand"
        at = next((at for at, other, _ in self._sights if other.product == product), None)
        return Located(Mistake(name, key, f"{name} is made of {product.formula}, not of {due.formula}"), at)

    def _first(self, kind: str, factor: float) -> Where | None:
        """Where a kind was first seen times a factor, of rounded values too."""
        for at, form, by in self._sights:
            if form.kind == kind and f"{by:.3g}" == f"{factor:.3g}":
                return at
        return None

    def _located(self, form: Form) -> list[Located]:
        """Where the mistake of a result is made."""
        mistake = form.mistake
        if mistake is None:
            return []
        for at, sight, _ in self._sights:
            if sight.mistake == mistake:
                is_late = sight.kind in RESULTS and mistake.of not in RESULTS
                return [Located(mistake, at, is_late=is_late)]
        return [Located(mistake, is_late=True)]


def _is(factor: float, known: float) -> bool:
    return abs(factor - known) <= _NEAR * abs(known)


class _FormLibrary:
    """Forms of one problem, and which of them an array is, in any order of axes and whichever part of it.

    Args:
        sizes: by the letter of each axis.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._forms: list[Form] = []
        self._shelves: dict[tuple[int, ...], tuple[list[Form], Array]] = {}
        """By a shape: the forms that arrays of it may be a part of, a row each."""
        self._known: set[tuple[str, str, int]] = set()

    def add(self, form: Form) -> None:
        """A further form; one whose values another has is left out, but for a result that is another's."""
        values = hash(np.round(_finite(form.values), 9).tobytes())
        key = form.kind if form.kind in RESULTS or form.is_exact else "", form.axes, values
        if key not in self._known:
            self._known.add(key)
            self._forms.append(form)

    def matches(self, array: Array, tolerance: float) -> list[Match]:
        """What an array is, what is right first."""
        flat = _finite(array).reshape(-1)
        length = float(np.linalg.norm(flat))
        forms, rows = self._shelf(tuple(size for size in array.shape if size != 1))
        if np.count_nonzero(flat) < _FEWEST or not length or not forms:
            return []
        products, norms = rows @ flat, np.linalg.norm(rows, axis=1)
        may = (np.abs(products) >= (1 - 4 * tolerance) * norms * length) & (norms > 0)
        found: dict[int, Match] = {}
        for at in np.flatnonzero(may):
            form, factor = forms[at], float(products[at] / norms[at] ** 2)
            is_another = form.is_exact and not _is(factor, 1.0)
            if not is_another and np.abs(flat - factor * rows[at]).max() <= tolerance * np.abs(flat).max():
                found.setdefault(id(form), (form, factor))
        return sorted(found.values(), key=lambda match: (match[0].mistake is not None, not match[0].kind))

    def _shelf(self, shape: tuple[int, ...]) -> tuple[list[Form], Array]:
        if shape not in self._shelves:
            size, forms = math.prod(shape), list[Form]()
            rows = [np.zeros((0, size))]
            for form in self._forms:
                for part in self._parts(form, shape):
                    rows.append(np.ascontiguousarray(part).reshape(-1, size))
                    forms += [form] * len(rows[-1])
            self._shelves[shape] = forms, np.concatenate(rows)
        return self._shelves[shape]

    def _parts(self, form: Form, shape: tuple[int, ...]) -> Iterator[Array]:
        """The parts of a form that have a shape, the axes that they lack first; also each tile of rows or keys."""
        values = _finite(form.values)
        axes = "".join(letter for letter, size in zip(form.axes, values.shape, strict=True) if size != 1)
        for order, cut in self._orders(shape, axes):
            others = [letter for letter in axes if letter not in order]
            moved = values.squeeze().transpose([axes.index(letter) for letter in (*others, *order)])
            if cut is None:
                yield moved
                continue
            axis, size = len(others) + cut, shape[cut]
            last = moved.shape[axis] - size
            for start in dict.fromkeys([*range(0, last + 1, size), last]):
                yield moved.take(range(start, start + size), axis)

    def _orders(self, shape: tuple[int, ...], axes: str) -> list[tuple[tuple[str, ...], int | None]]:
        """Which axis each dimension of a shape may be; where none fits whole, with the one that is a tile."""
        whole, tiled = list[tuple[tuple[str, ...], int | None]](), list[tuple[tuple[str, ...], int | None]]()
        for order in itertools.permutations(axes, len(shape)):
            short = [at for at, letter in enumerate(order) if shape[at] != self._sizes[letter]]
            if not short:
                whole.append((order, None))
            elif len(short) == 1 and order[short[0]] in "mn" and shape[short[0]] < self._sizes[order[short[0]]]:
                tiled.append((order, short[0]))
        return whole or tiled


def _finite(array: Array) -> Array:
    """The array with 0 for what is no number, or stands for minus infinity."""
    return np.where(np.isfinite(array) & (array > _HIDDEN), array, 0.0)
