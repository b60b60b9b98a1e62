"""Roles: which intermediate a tile is."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from operator import ne
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
_AXES = {"q": "bhmd", "k": "bgnd", "v": "bgne", "do": "bhme", "o": "bhme"}
_AXES |= dict.fromkeys(("LSE", "delta"), "bhm")
# In this order tiles of scores are compared with them.
_SCORES = (
    *("Q K^T", "S", "P", "dP", "dS", "dP - delta", "S - LSE", "tanh^2", "1 - tanh^2", "dT"),
    *("P + tau / (i + 1)", "relu(P + tau / (i + 1))", "P * dP", "dP, masked", "P after dropout"),
)
# What is taken the exponential of: masked where it is far below what is seen. exp(-100) vanishes beside 1.
_LOGITS, _VANISHING = ("Q K^T", "S", "S - LSE"), 100.0
# A form, its constant, and what a running maximum makes of it.
_WHILE_RUNNING = (
    ("P", "", "times a factor of its row"),
    ("S", "", "less a maximum of its row"),
    ("S", "log2(e)", "less a maximum of its row"),
)
_UNKNOWN = Role("")


# A name, what came, what is due, and the largest value of the intermediate in any lane.
Expectation = tuple[str, Array, Array, float]


class Roles:
    def __init__(self, case: Case, x: Attention, inputs: Mapping[str, Any]) -> None:
        self.case, self.x, self._dtype = case, x, getattr(torch, case.dtype)
        self._inputs = dict[str, Array]()
        for name, value in inputs.items():
            self._inputs[name] = value.detach().double().cpu().numpy()
        self._constants = _constants(x)
        # The scores that were met last, which are tried first.
        self._last = ""

    def __call__(self, data: Array, lanes: Lanes) -> Role | None:
        """None where it cannot be told."""
        letters = lanes.at.keys()
        if {*"bhmn"} <= letters and not letters & {"d", "e"}:
            return self._of_scores(data, lanes)
        roles = list[Role | None]()
        for each in self.expectations(data, lanes):
            roles.append(role := self._fit(*each))
            if role is not None and role.is_known:
                return role
        return roles[-1] if roles and None not in roles else None

    def constants(self, name: str) -> Mapping[str, float]:
        found = self._constants.get(name, self._constants[""])
        if name not in ("LSE", "delta"):
            return found
        return {**found, **{f"-{words or 1}": -constant for words, constant in found.items()}}

    def whole(self) -> Iterator[tuple[str, Array]]:
        """(axes, values) of what host code makes and kernels read."""
        for name, values in self._wholes.items():
            yield _AXES[name], values
        for name, axes in (("k", "bhnd"), ("v", "bhne")):
            if self.case.heads > self.case.kv_heads:
                yield axes, self._of_heads(name)

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
    def _scores(self) -> dict[str, bool]:
        """By name, whether it is 0 where it is masked."""
        values = self.forms.values
        return {name: not values[name][~self.valid].any() for name in _SCORES if name in values}

    @cached_property
    def _wholes(self) -> dict[str, Array]:
        values = {**self._inputs, "o": self.forms.values["O"], **self.forms.values}
        return {name: np.ascontiguousarray(values[name]) for name in _AXES if name in values}

    @cached_property
    def _most(self) -> dict[str, float]:
        values = {**self.forms.values, **self._wholes}
        return dict(zip(values, map(_largest, values.values()), strict=True))

    @cached_property
    def _sums(self) -> dict[tuple[str, str], list[tuple[str, Array, str]]]:
        values = self.forms.values
        dp = values.get("dP, masked", values["dP"] * self.valid)
        count = np.arange(1.0, self.case.seqlen_q + 1)[:, None]  # by which lazy divides tau
        of_rows = [("delta", values["P"] * dp, ""), ("sum of dP / (i + 1)", dp / count, "")]
        found = {("n", ""): of_rows}
        for name, product in PRODUCTS.items():
            matrix = [values[form] for form in in_place_of(product.matrix) if form in values][-1]
            over = "m" if product.is_transposed else "n"
            matrix = matrix.swapaxes(2, 3) if product.is_transposed else matrix
            found[over, self.case.axes(name)[-1]] = [(unscaled(name), matrix, product.other)]
        return found

    def _of_heads(self, name: str) -> Array:
        tensor = self._inputs[name]
        return np.repeat(tensor, self.case.heads // tensor.shape[1], 1)

    def expectations(self, data: Array, lanes: Lanes) -> Iterator[Expectation]:
        cover, summed = lanes.cover, lanes.of_sum()
        column = "d" if "d" in lanes.at else "e" if "e" in lanes.at else ""
        if cover is None or "b" not in lanes.at:
            yield from self._of_tensors(data, lanes)
            return
        if summed is None or data.ndim != 1 + len(column) or lanes.at["b"].shape != data.shape:
            return
        _, batch, index, counts = summed
        inside = (batch >= 0) & (index >= 0)
        batch, index, counts = batch[inside], index[inside], counts[inside]
        if not counts.any():
            return
        if not column and cover.letter == "n":
            yield from self._running(data[inside], batch, index, counts > 0)
            yield from self._of_tensors(data, lanes)
        rows = np.moveaxis(data, cover.axis, 0)[inside]
        known = np.moveaxis(lanes.at[column], cover.axis, 0)[inside] if column else None
        for name, scores, other in self._sums.get((cover.letter, column), ()):
            terms = np.nan_to_num(scores[batch, :, index], posinf=0.0, neginf=0.0) * counts
            if known is None:
                got, want = rows, terms.sum((1, 2))
            else:
                whole = np.einsum("lhx,lhxd->ld", terms, self._of_heads(other)[batch])
                whole, is_known = np.take_along_axis(whole, known.clip(0), 1), known >= 0
                got, want = rows[is_known], whole[is_known]
            yield name, got.astype(np.float64), want, _largest(want)

    def _of_tensors(self, data: Array, lanes: Lanes) -> Iterator[Expectation]:
        for name, values in self._wholes.items():
            axes = {*_AXES[name]}
            if axes <= lanes.at.keys() <= axes | {"h", "g"}:
                index, known = elements(lanes.at, _AXES[name], values.shape)
                want = values.ravel()[index]
                finite = np.isfinite(want)
                got = data[known][finite].astype(np.float64)
                if known.any():
                    yield name, got, want[finite], self._most[name]

    def _running(
        self, data: Array, batch: Array, index: Array, covered: Array
    ) -> Iterator[Expectation]:
        for name in ("S", "Q K^T"):
            visible = covered & self.valid[batch, :, index] if name == "S" else covered
            scores = np.where(visible, self.forms.values[name][batch, :, index], -np.inf)
            most = scores.max((1, 2))
            live = np.isfinite(most)
            if not live.any():
                return
            got, most, scores = data[live].astype(np.float64), most[live], scores[live]
            yield f"maximum of {name} so far", got, most, _largest(most)
            if name == "S":
                sums = np.exp(scores - most[:, None, None]).sum((1, 2))
                yield "sum of exp(S - maximum) so far", got, sums, _largest(sums)

    # --- scores

    def _of_scores(self, data: Array, lanes: Lanes) -> Role | None:
        index, known = elements(lanes.at, "bhmn", self.valid.shape)
        got, seen = data[known].astype(np.float64), self.valid.ravel()[index]
        if not seen.any():
            return None
        visible, masked, at = got[seen], got[~seen], index[seen]
        found: Role | None = _UNKNOWN
        partly: Role | None = None
        for form in sorted(self._scores, key=partial(ne, self._last)):
            want, most = self.forms.values[form].ravel()[at], self._most[form]
            role = self._fit(form.partition(",")[0], visible, want, most)
            if role is None or not role.is_known:
                found = found and role
                continue
            is_open = self._is_open(role.name, most, visible, masked)
            if is_open and self._scores[form] and role.name not in _LOGITS:
                partly = partly or replace(role, is_masked=False, is_open=True)
                continue
            self._last = form
            # Behind the last key, in rows that there are.
            beyond = data[(lanes.at["n"] < 0) & (lanes.at["m"] >= 0)]
            is_open = is_open or self._is_open(role.name, most, visible, beyond)
            return replace(role, is_open=is_open)
        return partly or self._while_running(got, seen, index) or found

    def _is_open(self, name: str, most: float, seen: Array, others: Array) -> bool:
        if name in _LOGITS:
            return bool((others > seen.max() - _VANISHING).any())
        return bool(others.size) and not np.abs(others).max() <= self._allowed(name, most)

    def _while_running(self, got: Array, seen: Array, index: Array) -> Role | None:
        every, actual = index // self.valid.shape[-1], got[seen]
        rows, row = np.unique(every[seen], return_inverse=True)
        if len(rows) == len(row) or not np.isfinite(actual).all():
            return None
        for name, words, by in _WHILE_RUNNING:
            want = self.forms.values[name].ravel()[index[seen]] * self.constants("S")[words]
            most = self._most[name] or 1.0
            if name == "P":
                squares = np.bincount(row, want * want)
                factors = np.bincount(row, want * actual) / np.where(squares > 0, squares, 1.0)
                if (factors[squares > 0] <= 0).any():
                    continue
                expected = want * factors[row]
                share = _largest(expected) / most  # what has a factor errs by it as well
            else:
                expected = want + (np.bincount(row, actual - want) / np.bincount(row))[row]
                share = max(1.0, _largest(want) / most)
            if np.abs(actual - expected).max() <= share * self._allowed(name, most):
                masked = got[~seen & np.isin(every, rows)]
                is_open = self._is_open(name, _largest(actual), actual, masked)
                return Role(f"{name}, {by}", words, is_open=is_open, is_by_row=True)
        return None

    # --- fitting

    def _fit(self, name: str, got: Array, want: Array, most: float) -> Role | None:
        if not got.size or not np.isfinite(got).all() or not np.isfinite(want).all():
            return _UNKNOWN
        square, here = float(want @ want), _largest(want)
        factor = float(got @ want) / square if square else 1.0
        constants = self.constants(name).items()
        words, constant = min(constants, key=lambda each: abs(factor - each[1]))
        off = float(np.abs(got - constant * want).max()) / abs(constant)
        # A tile may differ by the largest tolerance of its form. One whose values are less than twice that may differ
        # by the same share of them; where it differs by more, within the tolerance, it tells nothing.
        allowed = self._allowed(name, most)
        share = min(1.0, here / most) if most > 2 * allowed else 0.0
        share = 1.0 if here > 2 * allowed else share
        if off <= allowed * share:
            return Role(name, words)
        return None if off <= self._allowed(name, here) else _UNKNOWN

    def _allowed(self, name: str, most: float) -> float:
        return rounded(self.forms.tolerances.get(name, 0.0), most, self._dtype)


def elements(
    lanes: Mapping[str, Array], axes: str, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    at = np.stack([*map(lanes.__getitem__, axes)])
    known = (at >= 0).all(0)
    return np.ravel_multi_index(tuple(at[:, known]), shape), known


def _constants(x: Attention) -> dict[str, dict[str, float]]:
    log2e, scale = math.log2(math.e), x.scale
    scores = {"": 1.0, "scale": scale, "log2(e)": log2e, "scale * log2(e)": scale * log2e}
    scores |= {"1 / scale": 1 / scale}
    inputs = scores | {
        "sqrt(scale)": scale**0.5,
        "sqrt(scale * log2(e))": (scale * log2e) ** 0.5,
    }
    if x.softcap is not None:
        scores |= {"1 / softcap": 1 / x.softcap, "softcap": x.softcap}
        scores |= {"softcap * log2(e)": x.softcap * log2e, "scale / softcap": scale / x.softcap}
    kept = 1 - x.dropout
    others = {"": 1.0} | ({"1 / (1 - p)": 1 / kept, "(1 - p)": kept} if x.dropout else {})
    gradients = others | {"scale": scale}
    kinds = {"scores": scores, "products": scores | {"ln(2)": 1 / log2e}, "gradients": gradients}
    found = {"": others, "q": inputs, "k": inputs} | dict.fromkeys(("do", "v", "o"), gradients)
    rows = (*TABLE, *SUBEXPRESSIONS)
    return found | {row.name: kinds.get(row.constants, others) for row in rows}


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0, where=np.isfinite(values)))
