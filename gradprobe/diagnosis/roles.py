"""Roles: which intermediate the value of a tile is, by comparison with the reference at the indices of its lanes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..frontends.triton.interpreter.dataflow import Lanes, Role
from ..inputs.memory import Array
from ..model.case import Case
from ..model.intermediates import PRODUCTS, SUBEXPRESSIONS, TABLE, unscaled
from ..reference import Attention, Tile, evaluate
from .tolerances import rounded, tolerances

# Of the tensors that kernels read.
_AXES = {"q": "bhmd", "k": "bgnd", "v": "bgne", "do": "bhme", "o": "bhme", "LSE": "bhm", "delta": "bhm"}
_UNKNOWN, _TOO_SMALL = Role(""), Role("", "too small to tell")
# What is taken the exponential of: masked where it is far below what is seen. exp(-100) vanishes beside 1.
_LOGITS, _VANISHING = ("Q K^T", "S", "S - LSE"), 100.0


@dataclass(frozen=True)
class _Form:
    """One thing that a tile may be: an intermediate, or what kernels make on the way to one."""

    name: str
    values: Array
    """[B, H, M, N], [B, H, M] or, of what is summed, the matrix that is summed."""
    is_zero_where_masked: bool = False
    """Whether masked entries count too, and are 0."""
    times: str = ""
    """Of a sum: the input that the matrix is multiplied by, "" for a sum of the matrix itself."""

    @cached_property
    def largest(self) -> float:
        return _largest(self.values)


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
        yield from ((_AXES[form.name], form.values) for form in self._wholes)
        if self.case.heads > self.case.kv_heads:
            yield "bhnd", self._of_heads(self._inputs["k"])
            yield "bhne", self._of_heads(self._inputs["v"])

    # --- what tiles are compared with

    @cached_property
    def _batches(self) -> list[tuple[Tile, Mapping[str, torch.Tensor]]]:
        """Each batch as one tile, with the reference's values on it."""
        x = self.x
        tiles = [Tile(batch, slice(0, x.n_heads), slice(0, x.n_query)) for batch in range(x.n_batch)]
        return [(tile, evaluate(x, tile)) for tile in tiles]

    @cached_property
    def _tolerances(self) -> dict[str, float]:
        found = tolerances(self.x, self._batches, self._dtype)
        return found | {"o": found["O"]}

    @cached_property
    def parts(self) -> dict[str, Array]:
        """Every matrix and row of the reference, [B, H, M, N] and [B, H, M]."""
        found: dict[str, list[Array]] = {}
        for tile, on_it in self._batches:
            q, k, _, _ = self.x.tensors(tile)
            values = {**on_it, "QK": q @ k.mT}
            values["valid"] = values["valid"].expand(values["QK"].shape)
            for name in ("QK", "S", "P", "PE", "Z", "dPE", "dP", "dS", "LSE", "delta", "valid"):
                if name in values:
                    found.setdefault(name, []).append(values[name].double().cpu().numpy())
        return {name: np.stack(values) for name, values in found.items()}

    @cached_property
    def valid(self) -> Array:
        """[B, H, M, N] bool."""
        return self.parts["valid"] > 0

    @cached_property
    def _multiplied(self) -> Array:
        """What stands for P in its products."""
        return self.parts.get("PE", self.parts["P"])

    @cached_property
    def _matrices(self) -> list[_Form]:
        parts = self.parts
        qk, s, p, dp = parts["QK"], parts["S"], parts["P"], parts["dP"]
        lse, spread = parts["LSE"][..., None], dp - parts["delta"][..., None]
        forms = [
            _Form("Q K^T", qk), _Form("S", s), _Form("P", p, True), _Form("dP", parts["dPE"]),
            _Form("dS", parts["dS"], True), _Form("dP - delta", spread),
            _Form("S - LSE", np.where(np.isfinite(lse), s - lse, 0.0)),
        ]  # fmt: skip
        if self.x.softcap is not None:
            squared = np.tanh(qk * self.x.scale / self.x.softcap) ** 2
            forms += [_Form("tanh^2", squared), _Form("1 - tanh^2", 1 - squared), _Form("dT", p * spread, True)]
        if self.case.family == "lazy":
            forms += [_Form("P + tau / (i + 1)", parts["Z"]), _Form("relu(P + tau / (i + 1))", parts["PE"], True)]
            forms += [_Form("P * dP", p * dp, True), _Form("dP", dp, True)]
        elif not np.array_equal(self._multiplied, p):
            forms.append(_Form("P after dropout", self._multiplied, True))
        return forms

    @cached_property
    def _sums(self) -> dict[tuple[str, str], list[_Form]]:
        """By what is summed over and the letter of the columns: the matrices and inputs that products sum."""
        parts = self.parts
        count = np.arange(1.0, self.case.seqlen_q + 1)[:, None]  # by which lazy divides tau
        of_rows = [_Form("delta", parts["P"] * parts["dP"]), _Form("sum of dP / (i + 1)", parts["dP"] / count)]
        found = {("n", ""): of_rows}
        for name, product in PRODUCTS.items():
            matrix = self._multiplied if product.matrix == "P" else parts[product.matrix]
            form = _Form(unscaled(name), matrix, times=product.other)
            found["m" if product.is_transposed else "n", self.case.axes(name)[-1]] = [form]
        return found

    @cached_property
    def _wholes(self) -> list[_Form]:
        """What kernels read, and keep from one to another."""
        values = {**self._inputs, "o": self._multiplied @ self._of_heads(self._inputs["v"]), **self.parts}
        return [_Form(name, values[name]) for name in _AXES if name in values]

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
        for form in sorted(self._matrices, key=lambda form: form.name != self._last):
            role = self._fit(form, unmasked, form.values[where])
            if role is None or role is _TOO_SMALL:
                found = role or found
                continue
            is_open = self._is_open(form, unmasked, masked)
            if form.is_zero_where_masked and is_open:
                partly = partly or replace(role, is_masked=False, is_open=True)
                continue
            self._last = form.name
            beyond = data[(lanes.at["n"] < 0) & (lanes.at["m"] >= 0)]  # behind the last key, in rows that there are
            return replace(role, is_open=is_open or self._is_open(form, unmasked, beyond.astype(np.float64)))
        return partly or self._while_running(got, seen, index) or found

    def _is_open(self, form: _Form, seen: Array, others: Array) -> bool:
        """Whether entries that no row sees hold what a sum, or of scores a maximum, would take for right."""
        if not others.size:
            return False
        if form.name in _LOGITS:
            return bool((others > seen.max() - _VANISHING).any())
        return not np.abs(others).max() <= self._allowed(form.name, form.largest)

    def _while_running(self, got: Array, seen: Array, index: tuple[Array, ...]) -> Role | None:
        """A tile of the forward while the maximum is running: P times a factor a row, or S less a number a row."""
        b, h, m, _ = index
        rows = (b.astype(np.int64) * self.case.heads + h) * self.case.seqlen_q + m
        row, actual, masked = rows[seen], got[seen], got[~seen & np.isin(rows, rows[seen])]
        for name, words, by in _WHILE_RUNNING:
            want = self.parts[name][index][seen] * self.constants("S")[words]
            form = _Form(name, self.parts[name])
            if self._is_one_a_row(form, row, actual, want, is_factor=name == "P"):
                is_open = self._is_open(_Form(name, actual), actual, masked)
                return Role(f"{name}, {by}", words, is_open=is_open, is_by_row=True)
        return None

    def _is_one_a_row(self, form: _Form, row: Array, actual: Array, want: Array, *, is_factor: bool) -> bool:
        rows, row = np.unique(row, return_inverse=True)
        most = form.largest or 1.0
        if not np.isfinite(actual).all() or not np.isfinite(want).all() or len(rows) == len(row):
            return False
        if is_factor:
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
        return bool(np.abs(actual - expected).max() <= by * self._allowed(form.name, most))

    # --- rows, sums and inputs

    def _of_whole(self, data: Array, lanes: Lanes) -> Role | None:
        """A tile of an input, of O, LSE or delta, perhaps multiplied."""
        letters, found = lanes.at.keys(), list[Role | None]()
        for form in self._wholes:
            axes = {*_AXES[form.name]}
            if axes <= letters <= axes | {"h", "g"}:
                index, known = _index(lanes, _AXES[form.name])
                want = form.values[index]
                finite = np.isfinite(want)
                found.append(self._fit(form, data[known].astype(np.float64)[finite], want[finite]))
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
        columns = np.moveaxis(at[column], cover.axis, 0)[inside] if column else None
        if not column and cover.letter == "n":
            role = _first_known(self._running(rows, batch, index, counts > 0))
            role = role if role.name else self._of_whole(data, lanes) or role
            if role.is_known:
                return role
        # [lanes, heads, terms] of each form: what is summed.
        lane = (batch, slice(None), index) if cover.letter == "n" else (batch, slice(None), slice(None), index)
        terms = [(form, np.where(np.isfinite(form.values[lane]), form.values[lane], 0.0) * counts) for form in forms]
        return _first_known(self._of_terms(form, each, batch, rows, columns) for form, each in terms)

    def _of_terms(self, form: _Form, weights: Array, batch: Array, rows: Array, columns: Array | None) -> Role | None:
        """The role of sums of [lanes, heads, terms], or of these times an input's rows in some columns."""
        if columns is None or not form.times:
            want = weights.sum((1, 2))
            return self._fit(form, rows.reshape(-1), want, most=_largest(want))
        known = columns >= 0
        want = np.einsum("lhx,lhxd->ld", weights, self._of_heads(self._inputs[form.times])[batch])
        want, got = np.take_along_axis(want, np.where(known, columns, 0), 1)[known], rows[known]
        role = self._fit(form, got, want, most=_largest(want))
        if role is None and form.name == "O" and len(got):  # of which any factor of a row is divided out later
            lane = np.broadcast_to(np.arange(len(rows))[:, None], rows.shape)[known]
            whole = next(each for each in self._wholes if each.name == "o")
            if self._is_one_a_row(whole, lane, got, want, is_factor=True):
                return Role("O, times a factor of its row", is_by_row=True)
        return role

    def _running(self, got: Array, batch: Array, index: Array, covered: Array) -> Iterator[Role | None]:
        """The maximum of the scores so far, or the sum of their exponentials less that."""
        for name, matrix in (("S", self.parts["S"]), ("Q K^T", self.parts["QK"])):
            visible = covered & self.valid[batch, :, index, :] if name == "S" else covered
            scores = np.where(visible, matrix[batch, :, index, :], -np.inf)
            most = scores.max((1, 2))
            live = np.isfinite(most)
            if not live.any():
                return
            maximum = _Form(f"maximum of {name} so far", most)
            yield self._fit(maximum, got[live], most[live])
            if name == "S":
                sums = np.exp(scores[live] - most[live, None, None]).sum((1, 2))
                yield self._fit(_Form("sum of exp(S - maximum) so far", sums), got[live], sums)

    # --- fitting

    def _fit(self, form: _Form, got: Array, want: Array, most: float | None = None) -> Role | None:
        """The role where values are those wanted times a constant that kernels multiply by.

        A tile may differ by the largest tolerance of its form. One whose values are less than twice that may differ by
        the same share of them; where it differs by more, within the tolerance, it tells nothing.

        Args:
            most: the largest value of the form, where `form.values` does not hold it.
        """
        if not got.size or not np.isfinite(got).all() or not np.isfinite(want).all():
            return None
        square, here = float(want @ want), _largest(want)
        factor = float(got @ want) / square if square else 1.0
        words, constant = min(self.constants(form.name).items(), key=lambda each: abs(factor - each[1]))
        off = float(np.abs(got - constant * want).max()) / abs(constant)
        most = form.largest if most is None else most
        allowed = self._allowed(form.name, most)
        share = 1.0 if here > 2 * allowed else min(1.0, here / most) if most > 2 * allowed else 0.0
        if off <= allowed * share:
            return Role(form.name, words)
        return _TOO_SMALL if off <= self._allowed(form.name, here) else None

    def _allowed(self, name: str, most: float) -> float:
        """By how much values of up to `most` may differ from a form."""
        return rounded(self._tolerances.get(name, 0.0), most, self._dtype)


# A form, its constant, and what a running maximum makes of it.
_WHILE_RUNNING = (
    ("P", "", "times a factor of its row"),
    ("S", "", "less a maximum of its row"),
    ("S", "log2(e)", "less a maximum of its row"),
)


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
