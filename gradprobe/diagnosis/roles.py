"""Roles: which intermediate the value of a tile is, by comparison with the reference at the indices of its lanes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..frontends.triton.interpreter.dataflow import Lanes, Role
from ..inputs.memory import Array
from ..model.case import Case
from ..model.intermediates import PRODUCTS, SUBEXPRESSIONS, TABLE, in_place_of, unscaled
from ..reference import Attention
from .forms import TileForms, forms_of, rounded

# Of the tensors that kernels read.
_AXES = {"q": "bhmd", "k": "bgnd", "v": "bgne", "do": "bhme", "o": "bhme", "LSE": "bhm", "delta": "bhm"}
_UNKNOWN, _TOO_SMALL = Role(""), Role("", "too small to tell")
# What is taken the exponential of: masked where it is far below what is seen. exp(-100) vanishes beside 1.
_LOGITS, _VANISHING = ("Q K^T", "S", "S - LSE"), 100.0
# Those of scores that are 0 where they are masked, where masked entries count too.
_MASKED = ("P", "dS", "dT", "relu(P + tau / (i + 1))", "P * dP", "dP, masked", "P after dropout")
# In this order tiles of scores are compared with them.
_MATRICES = (
    *("Q K^T", "S", "P", "dP", "dS", "dP - delta", "S - LSE", "tanh^2", "1 - tanh^2", "dT", "P + tau / (i + 1)"),
    *_MASKED[3:],
)
# A form, its constant, and what a running maximum makes of it.
_WHILE_RUNNING = (
    ("P", "", "times a factor of its row"),
    ("S", "", "less a maximum of its row"),
    ("S", "log2(e)", "less a maximum of its row"),
)


class Roles:
    """The roles that tiles of one problem may have."""

    def __init__(self, case: Case, x: Attention, inputs: Mapping[str, Any]) -> None:
        self.case, self.x, self._dtype = case, x, getattr(torch, case.dtype)
        self._inputs = {name: value.detach().double().cpu().numpy() for name, value in inputs.items()}
        self._constants = _constants(x)
        self._last = ""
        """The matrix that was met last, which is tried first."""

    def __call__(self, data: Array, lanes: Lanes) -> Role | None:
        """What a tile is; None where its indices do not tell what to compare it with."""
        letters = lanes.at.keys()
        if {*"bhmn"} <= letters and not letters & {"d", "e"}:
            role = self._of_matrix(data, lanes)
        elif lanes.cover is not None and "b" in letters:
            role = self._of_sum(data, lanes)
        else:
            role = self._of_whole(data, lanes)
        return None if role is _TOO_SMALL else role

    def constants(self, name: str) -> Mapping[str, float]:
        """By words, what kernels multiply an intermediate by; some keep LSE or delta with a minus, to add it."""
        found = dict(self._constants.get(name, self._constants[""]))
        if name in ("LSE", "delta"):
            found |= {f"-{words}" if words else "-1": -constant for words, constant in found.items()}
        return found

    def whole(self) -> Iterator[tuple[str, Array]]:
        """(axes, values) of the tensors that host code makes and kernels read."""
        yield from ((_AXES[name], values) for name, values in self._wholes.items())
        if self.case.heads > self.case.kv_heads:
            yield "bhnd", self._of_heads(self._inputs["k"])
            yield "bhne", self._of_heads(self._inputs["v"])

    # --- what tiles are compared with

    @cached_property
    def forms(self) -> TileForms:
        found = forms_of(self.x, self._dtype)
        found.tolerances["o"] = found.tolerances["O"]
        return found

    @cached_property
    def valid(self) -> Array:
        """[B, H, M, N] bool."""
        return self.forms.values["valid"] > 0

    @cached_property
    def _matrices(self) -> dict[str, float]:
        """By name of what scores may be, its largest value."""
        values = self.forms.values
        return {name: _largest(values[name]) for name in _MATRICES if name in values}

    @cached_property
    def _sums(self) -> dict[tuple[str, str], list[tuple[str, Array, str]]]:
        """By what is summed over and the letter of the columns: (name, matrix, input that it is multiplied by)."""
        values = self.forms.values
        dp = values.get("dP, masked", values["dP"] * self.valid)
        count = np.arange(1.0, self.case.seqlen_q + 1)[:, None]  # by which lazy divides tau
        found = {("n", ""): [("delta", values["P"] * dp, ""), ("sum of dP / (i + 1)", dp / count, "")]}
        for name, product in PRODUCTS.items():
            matrix = [values[form] for form in in_place_of(product.matrix) if form in values][-1]
            over = "m" if product.is_transposed else "n"
            found[over, self.case.axes(name)[-1]] = [(unscaled(name), matrix, product.other)]
        return found

    @cached_property
    def _wholes(self) -> dict[str, Array]:
        """What kernels read, and keep from one to another."""
        values = {**self._inputs, "o": self.forms.values["O"], **self.forms.values}
        return {name: values[name] for name in _AXES if name in values}

    def _of_heads(self, tensor: Array) -> Array:
        """What has key heads, for each query head."""
        return np.repeat(tensor, self.case.heads // tensor.shape[1], 1)

    # --- scores

    def _of_matrix(self, data: Array, lanes: Lanes) -> Role | None:
        index, known = _index(lanes, "bhmn")
        got, seen = data[known].astype(np.float64), self.valid[index]
        if not seen.any():
            return None
        found, unmasked, masked = _UNKNOWN, got[seen], got[~seen]
        where = tuple(axis[seen] for axis in index)
        partly: Role | None = None
        for key in sorted(self._matrices, key=lambda key: key != self._last):
            name, most = key.partition(",")[0], self._matrices[key]
            role = self._fit(name, unmasked, self.forms.values[key][where], most)
            if role is None or role is _TOO_SMALL:
                found = role or found
                continue
            is_open = self._is_open(name, most, unmasked, masked)
            if key in _MASKED and is_open:
                partly = partly or replace(role, is_masked=False, is_open=True)
                continue
            self._last = key
            beyond = data[(lanes.at["n"] < 0) & (lanes.at["m"] >= 0)]  # behind the last key, in rows that there are
            return replace(role, is_open=is_open or self._is_open(name, most, unmasked, beyond.astype(np.float64)))
        return partly or self._while_running(got, seen, index) or found

    def _is_open(self, name: str, most: float, seen: Array, others: Array) -> bool:
        """Whether entries that no row sees hold what a sum, or of scores a maximum, would take for right."""
        if not others.size:
            return False
        if name in _LOGITS:
            return bool((others > seen.max() - _VANISHING).any())
        return not np.abs(others).max() <= self._allowed(name, most)

    def _while_running(self, got: Array, seen: Array, index: tuple[Array, ...]) -> Role | None:
        """A tile of the forward while the maximum is running: P times a factor a row, or S less a number a row."""
        b, h, m, _ = index
        rows = (b.astype(np.int64) * self.case.heads + h) * self.case.seqlen_q + m
        row, actual, masked = rows[seen], got[seen], got[~seen & np.isin(rows, rows[seen])]
        for name, words, by in _WHILE_RUNNING:
            want = self.forms.values[name][index][seen] * self.constants("S")[words]
            if self._is_alike_by_row(name, row, actual, want):
                is_open = self._is_open(name, _largest(actual), actual, masked)
                return Role(f"{name}, {by}", words, is_open=is_open, is_by_row=True)
        return None

    def _is_alike_by_row(self, name: str, row: Array, actual: Array, want: Array) -> bool:
        """Whether each row is what is wanted, times a factor of P, or plus a number of S."""
        rows, row = np.unique(row, return_inverse=True)
        most = self._matrices[name] or 1.0
        if not np.isfinite(actual).all() or not np.isfinite(want).all() or len(rows) == len(row):
            return False
        if name == "P":
            squares = np.bincount(row, want * want)
            factors = np.bincount(row, want * actual) / np.where(squares > 0, squares, 1.0)
            expected = want * factors[row]
            # What has a factor errs by it as well, and is at most as much of its largest value.
            by = _largest(expected) / most
            if (factors[squares > 0] <= 0).any():
                return False
        else:
            expected = want + (np.bincount(row, actual - want) / np.bincount(row))[row]
            by = max(1.0, _largest(want) / most)
        return bool(np.abs(actual - expected).max() <= by * self._allowed(name, most))

    # --- rows, sums and inputs

    def _of_whole(self, data: Array, lanes: Lanes) -> Role | None:
        """A tile of an input, of O, LSE or delta, perhaps multiplied."""
        letters, found = lanes.at.keys(), list[Role | None]()
        for name, values in self._wholes.items():
            axes = {*_AXES[name]}
            if axes <= letters <= axes | {"h", "g"}:
                index, known = _index(lanes, _AXES[name])
                want = values[index]
                finite = np.isfinite(want)
                found.append(self._fit(name, data[known].astype(np.float64)[finite], want[finite], _largest(values)))
                if not known.any():
                    return None
        return _first_known(found) if found else None

    def _of_sum(self, data: Array, lanes: Lanes) -> Role | None:
        cover, at, summed = lanes.cover, lanes.at, lanes.of_sum()
        column = next((letter for letter in "de" if letter in at), "")
        forms = self._sums.get((cover.letter, column)) if cover is not None else None
        if not forms or cover is None or summed is None or data.ndim != (2 if column else 1):
            return None
        _, batch, index, counted = summed
        inside = (batch >= 0) & (index >= 0)
        if np.shape(at["b"]) != data.shape or not counted[inside].any():
            return None
        batch, index, counts = batch[inside], index[inside], counted[inside].astype(np.float64)
        rows = np.moveaxis(data, cover.axis, 0)[inside].astype(np.float64)
        if not column and cover.letter == "n":
            role = _first_known(self._running(rows, batch, index, counts > 0))
            role = role if role.name else self._of_whole(data, lanes) or role
            if role.is_known:
                return role
        columns = np.moveaxis(at[column], cover.axis, 0)[inside] if column else None
        lane = (batch, slice(None), index) if cover.letter == "n" else (batch, slice(None), slice(None), index)
        found = []
        for name, values, times in forms:
            # [lanes, heads, terms]: what is summed.
            terms = np.where(np.isfinite(values[lane]), values[lane], 0.0) * counts
            if columns is None:
                want, got = terms.sum((1, 2)), rows.reshape(-1)
                found.append(self._fit(name, got, want, _largest(want)))
                continue
            known = columns >= 0
            want = np.einsum("lhx,lhxd->ld", terms, self._of_heads(self._inputs[times])[batch])
            want = np.take_along_axis(want, np.where(known, columns, 0), 1)[known]
            found.append(self._fit(name, rows[known], want, _largest(want)))
        return _first_known(found)

    def _running(self, got: Array, batch: Array, index: Array, covered: Array) -> Iterator[Role | None]:
        """The maximum of the scores so far, or the sum of their exponentials less that."""
        for name in ("S", "Q K^T"):
            visible = covered & self.valid[batch, :, index, :] if name == "S" else covered
            scores = np.where(visible, self.forms.values[name][batch, :, index, :], -np.inf)
            most = scores.max((1, 2))
            live = np.isfinite(most)
            if not live.any():
                return
            yield self._fit(f"maximum of {name} so far", got[live], most[live], _largest(most))
            if name == "S":
                sums = np.exp(scores[live] - most[live, None, None]).sum((1, 2))
                yield self._fit("sum of exp(S - maximum) so far", got[live], sums, _largest(sums))

    # --- fitting

    def _fit(self, name: str, got: Array, want: Array, most: float) -> Role | None:
        """The role where values are those wanted times a constant that kernels multiply by.

        A tile may differ by the largest tolerance of its form. One whose values are less than twice that may differ by
        the same share of them; where it differs by more, within the tolerance, it tells nothing.

        Args:
            most: the largest value of the form.
        """
        if not got.size or not np.isfinite(got).all() or not np.isfinite(want).all():
            return None
        square, here = float(want @ want), _largest(want)
        factor = float(got @ want) / square if square else 1.0
        words, constant = min(self.constants(name).items(), key=lambda each: abs(factor - each[1]))
        off = float(np.abs(got - constant * want).max()) / abs(constant)
        allowed = self._allowed(name, most)
        share = 1.0 if here > 2 * allowed else min(1.0, here / most) if most > 2 * allowed else 0.0
        if off <= allowed * share:
            return Role(name, words)
        return _TOO_SMALL if off <= self._allowed(name, here) else None

    def _allowed(self, name: str, most: float) -> float:
        """By how much values of up to `most` may differ from a form."""
        return rounded(self.forms.tolerances.get(name, 0.0), most, self._dtype)


def _constants(x: Attention) -> dict[str, dict[str, float]]:
    """By intermediate and words, what kernels multiply it by; by "" of all others."""
    log2e, scale, softcap = math.log2(math.e), x.scale, x.softcap
    both = scale * log2e
    scores = {"": 1.0, "scale": scale, "log2(e)": log2e, "scale * log2(e)": both, "1 / scale": 1 / scale}
    inputs = scores | {"sqrt(scale)": scale**0.5, "sqrt(scale * log2(e))": both**0.5}
    if softcap is not None:
        scores |= {"1 / softcap": 1 / softcap, "softcap": softcap, "softcap * log2(e)": softcap * log2e}
        scores |= {"scale / softcap": scale / softcap}
    dropped = {"1 / (1 - p)": 1 / (1 - x.dropout), "(1 - p)": 1 - x.dropout} if x.dropout else {}
    others = {"": 1.0, **dropped}
    gradients = {"": 1.0, "scale": scale, **dropped}
    kinds = {"scores": scores, "products": scores | {"ln(2)": 1 / log2e}, "gradients": gradients}
    found = {row.name: kinds.get(row.constants, others) for row in (*TABLE, *SUBEXPRESSIONS)}
    return found | {"": others, "q": inputs, "k": inputs, "do": gradients, "v": gradients, "o": gradients}


def _first_known(roles: Iterable[Role | None]) -> Role:
    """The first that is known; else that it is too small to tell, or nothing that is known."""
    found = _UNKNOWN
    for role in roles:
        if role is not None and role is not _TOO_SMALL:
            return role
        found = role or found
    return found


def _largest(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def _index(lanes: Lanes, axes: str) -> tuple[tuple[Array, ...], Array]:
    """The indices of the lanes that are known in all axes, and which lanes these are."""
    known = np.logical_and.reduce([lanes.at[x] >= 0 for x in axes])
    return tuple(lanes.at[x][known] for x in axes), known
