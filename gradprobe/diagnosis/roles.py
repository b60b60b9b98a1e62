"""Roles: which intermediate the value of a tile is, by comparison with the reference at the indices of its lanes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..frontends.triton.interpreter.dataflow import Lanes, Node, Role
from ..inputs.memory import Array
from ..model.case import Case
from ..model.intermediates import PRODUCTS, SUBEXPRESSIONS, TABLE, unscaled
from ..reference import Attention, Tile, evaluate
from .tolerances import rounded, tolerances

_UNKNOWN = Role("")
# Of the tensors that kernels read.
_AXES = {"q": "bhmd", "k": "bgnd", "v": "bgne", "do": "bhme", "o": "bhme", "LSE": "bhm", "delta": "bhm"}
_TOO_SMALL = Role("", "too small to tell")
# What is taken the exponential of: masked where it is far below what is seen. exp(-100) vanishes beside 1.
_LOGITS, VANISHING = ("Q K^T", "S", "S - LSE"), 100.0


@dataclass(frozen=True)
class _Form:
    """One thing that a tile may be: an intermediate, or what kernels make on the way to one."""

    name: str
    values: Array
    """[B, H, M, N], [B, H, M] or, of what is summed, the matrix that is summed."""
    zero_where_masked: bool = False
    """Whether masked entries count too, and are 0."""
    with_: str = ""
    """Of a sum: the input that the matrix is multiplied by, "" for a sum of the matrix itself."""
    per_row: bool = False
    """Whether any factor that is one for each row is as right: it is divided out later."""
    axes: str = ""
    """Of what is no matrix."""

    @cached_property
    def largest(self) -> float:
        return _largest(self.values)


class Roles:
    """The roles that tiles of one problem may have."""

    def __init__(self, case: Case, x: Attention, inputs: Mapping[str, Any]) -> None:
        self.case, self.x, self._dtype = case, x, getattr(torch, case.dtype)
        self._inputs = {name: value.detach().double().cpu().numpy() for name, value in inputs.items()}
        log2e = math.log2(math.e)
        scale, both = x.scale, x.scale * log2e
        of_scores = {"": 1.0, "scale": scale, "log2(e)": log2e, "scale * log2(e)": both, "1 / scale": 1 / scale}
        of_inputs = of_scores | {"sqrt(scale)": scale**0.5, "sqrt(scale * log2(e))": both**0.5}
        if x.softcap is not None:
            of_scores |= {"1 / softcap": 1 / x.softcap, "softcap": x.softcap, "softcap * log2(e)": x.softcap * log2e}
            of_scores |= {"scale / softcap": scale / x.softcap}
        kept = {"1 / (1 - p)": 1 / (1 - x.dropout), "(1 - p)": 1 - x.dropout} if x.dropout else {}
        of_products = of_scores | {"ln(2)": 1 / log2e, "log2(e)": log2e}
        of_kinds = {"scores": of_scores, "products": of_products, "gradients": {"": 1.0, "scale": scale, **kept}}
        self._of_others = {"": 1.0, **kept}
        self._factors = {row.name: of_kinds.get(row.constants, self._of_others) for row in (*TABLE, *SUBEXPRESSIONS)}
        self._factors |= dict.fromkeys(("q", "k"), of_inputs) | dict.fromkeys(("do", "v", "o"), of_kinds["gradients"])
        self._last = ""
        """The matrix that was met last, which is tried first."""
        self._most: dict[str, Array] = {}

    def __call__(self, data: Array, lanes: Lanes) -> Role | None:
        """What a tile is; None where its indices do not tell what to compare it with."""
        letters = frozenset(lanes.at)
        if {"b", "h", "m", "n"} <= letters and not letters & {"d", "e"}:
            role = self._of_matrix(data, lanes)
        elif lanes.cover is not None and "b" in letters:
            role = self._of_sum(data, lanes)
        else:
            role = self._of_whole(data, lanes)
        return None if role is _TOO_SMALL else role

    def constants(self, name: str) -> Mapping[str, float]:
        """By words, what kernels multiply an intermediate by; some keep LSE or delta with a minus, to add it."""
        factors = self._factors.get(name, self._of_others)
        negative = {f"-{words}" if words else "-1": -constant for words, constant in factors.items()}
        return factors | negative if name in ("LSE", "delta") else factors

    def gradient(self, name: str, ds: Array) -> Array:
        """dQ or dK of some dS; dV of some P."""
        product = PRODUCTS[name]
        other, matrix = self._inputs[product.other], ds * self.x.scale if product.is_scaled else ds
        if not product.is_transposed:
            return np.asarray(matrix @ self._of_heads(other))
        of_heads = matrix.swapaxes(2, 3) @ other
        return np.asarray(of_heads.reshape(len(ds), self.case.kv_heads, -1, *of_heads.shape[2:]).sum(2))

    # --- what tiles are compared with

    @cached_property
    def _batches(self) -> list[tuple[Tile, Mapping[str, torch.Tensor]]]:
        """Each batch as one tile, with the reference's values on it."""
        x = self.x
        tiles = (Tile(batch, slice(0, x.n_heads), slice(0, x.n_query)) for batch in range(x.n_batch))
        return [(tile, evaluate(x, tile)) for tile in tiles]

    @cached_property
    def _tolerances(self) -> dict[str, Array]:
        return tolerances(self.x, self._batches, self._dtype)

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
    def _matrices(self) -> list[_Form]:
        parts = self.parts
        qk, t, p, dpe, dp = parts["QK"], parts["S"], parts["P"], parts["dPE"], parts["dP"]
        delta, lse = parts["delta"][..., None], parts["LSE"][..., None]
        forms = [
            _Form("Q K^T", qk), _Form("S", t), _Form("P", p, True), _Form("dP", dpe), _Form("dS", parts["dS"], True),
            _Form("dP - delta", dp - delta), _Form("S - LSE", np.where(np.isfinite(lse), t - lse, 0.0)),
        ]  # fmt: skip
        if self.x.softcap is not None:
            squared = np.tanh(qk * self.x.scale / self.x.softcap) ** 2
            forms += [_Form("tanh^2", squared), _Form("1 - tanh^2", 1 - squared), _Form("dT", p * (dp - delta), True)]
        if self.case.family == "lazy":
            forms += [_Form("P + tau / (i + 1)", parts["Z"]), _Form("relu(P + tau / (i + 1))", parts["PE"], True),
                      _Form("P * dP", p * dp, True), _Form("dP", dp, True)]  # fmt: skip
        elif "PE" in parts and not np.array_equal(parts["PE"], p):
            forms += [_Form("P after dropout", parts["PE"], True)]
        return forms

    @cached_property
    def _sums(self) -> dict[tuple[str, str], list[_Form]]:
        """By what is summed over and the letter of the columns: the matrices and inputs that products sum."""
        parts = self.parts
        count = np.arange(1.0, self.case.seqlen_q + 1)[:, None]  # by which lazy divides tau
        of_keys = [_Form("delta", parts["P"] * parts["dP"]), _Form("sum of dP / (i + 1)", parts["dP"] / count)]
        found = {("n", ""): of_keys}
        for name, product in PRODUCTS.items():
            matrix = parts.get("PE", parts["P"]) if product.matrix == "P" else parts[product.matrix]
            form = _Form(unscaled(name), matrix, with_=product.other, per_row=name == "O")
            found["m" if product.is_transposed else "n", self.case.axes(name)[-1]] = [form]
        return found

    @cached_property
    def _wholes(self) -> list[_Form]:
        """What kernels read, and keep from one to another."""
        values = {**self._inputs, "o": self._output, **self.parts}
        return [_Form(name, values[name], axes=axes) for name, axes in _AXES.items() if name in values]

    @cached_property
    def _output(self) -> Array:
        return np.asarray(self.parts.get("PE", self.parts["P"]) @ self._of_heads(self._inputs["v"]))

    def _of_heads(self, tensor: Array) -> Array:
        """What has key heads, for each query head."""
        return np.repeat(tensor, self.case.heads // tensor.shape[1], 1)

    def whole(self) -> Iterator[tuple[str, Array]]:
        """(axes, values) of the tensors that host code makes and kernels read."""
        yield from ((form.axes, form.values) for form in self._wholes)
        repeated = {"k": "bhnd", "v": "bhne"} if self.case.heads > self.case.kv_heads else {}
        yield from ((letters, self._of_heads(self._inputs[name])) for name, letters in repeated.items())

    # --- scores

    def _of_matrix(self, data: Array, lanes: Lanes) -> Role | None:
        index, known = _index(lanes, "bhmn")
        if not known.any():
            return None
        got, seen = data[known].astype(np.float64), self.valid[index]
        if not seen.any():
            return None
        found, partly, masked, unmasked = _UNKNOWN, None, got[~seen], got[seen]
        where = tuple(axis[seen] for axis in index)
        for form in sorted(self._matrices, key=lambda form: form.name != self._last):
            role = self._fit(form, unmasked, form.values[where], where)
            if role is None or role is _TOO_SMALL:
                found = role or found
                continue
            is_open = self._is_open(form, unmasked, masked)
            if form.zero_where_masked and is_open:
                partly = partly or replace(role, is_masked=False, is_open=True)
                continue
            self._last = form.name
            beyond = data[(lanes.at["n"] < 0) & (lanes.at["m"] >= 0)]  # behind the last key, in rows that there are
            return replace(role, is_open=is_open or self._is_open(form, unmasked, beyond.astype(np.float64)))
        return partly or self._row_scaled(got, seen, index) or found

    def _row_scaled(self, got: Array, seen: Array, index: tuple[Array, ...]) -> Role | None:
        """A tile of the forward while the maximum is running: P times a factor a row, or S less a number a row."""
        b, h, m, _ = index
        rows = (b.astype(np.int64) * self.case.heads + h) * self.case.seqlen_q + m
        row, actual, masked = rows[seen], got[seen], got[~seen & np.isin(rows, rows[seen])]
        for name, words in (("P", ""), ("S", ""), ("S", "log2(e)")):
            want = self.parts[name][index][seen] * self.constants("S")[words]
            if self._is_one_a_row(_Form(name, self.parts[name]), row, actual, want, is_factor=name == "P"):
                is_open = bool(masked.size) and self._is_open(_Form(name, actual), actual, masked)
                by = "times a factor of its row" if name == "P" else "less a maximum of its row"
                return Role(f"{name}, {by}", words, is_open=is_open, is_by_row=True)
        return None

    def _is_one_a_row(self, form: _Form, row: Array, actual: Array, want: Array, *, is_factor: bool) -> bool:
        rows, row = np.unique(row, return_inverse=True)
        if not np.isfinite(actual).all() or not np.isfinite(want).all() or len(rows) == len(row):
            return False
        if is_factor:
            sums = np.bincount(row, want * want)
            by_row = np.bincount(row, want * actual) / np.where(sums > 0, sums, 1.0)
            if (by_row[sums > 0] <= 0).any():
                return False
            expected = want * by_row[row]
        else:
            expected = want + (np.bincount(row, actual - want) / np.bincount(row))[row]
        # What has a factor errs by it as well, and is at most as much of its largest value.
        most = form.largest
        by = _largest(expected) / most if is_factor and most else max(1.0, _largest(want) / most if most else 1.0)
        return bool(np.abs(actual - expected).max() <= by * self._allowed(form.name, most))

    def by_row(self, node: Node) -> dict[int, float]:
        """By row, the factor that P has in it, or the number by which S is off; empty where its lanes are not known."""
        role, lanes = node.role, node.lanes
        if role is None or node.value is None or lanes is None or not {*"bhmn"} <= lanes.at.keys():
            return {}
        index, known = _index(lanes, "bhmn")
        seen, is_factor = self.valid[index], role.name.startswith("P")
        want, lse = self.parts["P" if is_factor else "S"][index][seen], self.parts["LSE"][index[:3]][seen]
        got = node.value[known][seen].astype(np.float64) / self.constants("S").get(role.factor, 1.0)
        ways = [got / np.where(want == 0, np.nan, want)] if is_factor else [got - want, got - want + lse]
        # LSE may be taken off already: what is left over is less then.
        off = min(ways, key=lambda way: float(np.nanmax(np.abs(way))))
        rows = index[2][seen]
        return {int(row): float(np.nanmedian(off[rows == row])) for row in np.unique(rows)}

    # --- rows, sums and inputs

    def _of_whole(self, data: Array, lanes: Lanes) -> Role | None:
        """A tile of an input, of O, LSE or delta, perhaps multiplied."""
        letters, found = lanes.at.keys(), list[Role | None]()
        for form in self._wholes:
            if not {*form.axes} <= letters or letters - {*form.axes, "h", "g"}:
                continue
            index, known = _index(lanes, form.axes)
            if not known.any():
                return None
            finite = np.isfinite(form.values[index])
            where = tuple(axis[finite] for axis in index)
            got, is_of_rows = data[known].astype(np.float64)[finite], form.name in self._tolerances
            found.append(self._fit(form, got, form.values[where], where if is_of_rows else None))
        return _first_known(found) if found else None

    def _of_sum(self, data: Array, lanes: Lanes) -> Role | None:
        cover, at, summed = lanes.cover, lanes.at, lanes.of_sum()
        column = next((x for x in "de" if x in at), "")
        forms = self._sums.get((cover.letter, column)) if cover is not None else None
        if not forms or cover is None or summed is None or data.ndim != (2 if column else 1):
            return None
        _, batch, index, counted = summed
        inside = (batch >= 0) & (index >= 0)
        if np.shape(at["b"]) != data.shape or not inside.any() or not counted[inside].any():
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
        at_lanes = (batch, slice(None), index) if cover.letter == "n" else (batch, slice(None), slice(None), index)
        terms = ((form, form.values[at_lanes]) for form in forms)
        weights = ((form, np.where(np.isfinite(each), each, 0.0) * counts) for form, each in terms)
        return _first_known(self._of_terms(form, each, batch, rows, columns) for form, each in weights)

    def _of_terms(self, form: _Form, weights: Array, batch: Array, rows: Array, columns: Array | None) -> Role | None:
        """The role of sums of [lanes, heads, terms], or of these times an input's rows in some columns."""
        if columns is None or not form.with_:
            want, got = weights.sum((1, 2)), rows.reshape(-1)
            return self._fit(form, got, want, most=_largest(want))
        want, known = np.einsum("lhx,lhxd->ld", weights, self._of_heads(self._inputs[form.with_])[batch]), columns >= 0
        want, got = np.take_along_axis(want, np.where(known, columns, 0), 1)[known], rows[known]
        role = self._fit(form, got, want, most=_largest(want))
        lane = np.broadcast_to(np.arange(len(rows))[:, None], rows.shape)[known]
        of_rows = _Form("O", self._output)
        if role is None and form.per_row and len(got) and self._is_one_a_row(of_rows, lane, got, want, is_factor=True):
            return Role(f"{form.name}, times a factor of its row", is_by_row=True)
        return role

    def _running(self, got: Array, batch: Array, index: Array, covered: Array) -> Iterator[Role | None]:
        """The maximum of the scores so far, or the sum of their exponentials less that."""
        for name, matrix in (("S", self.parts["S"]), ("Q K^T", self.parts["QK"])):
            scores = matrix[batch, :, index, :]
            visible = covered & self.valid[batch, :, index, :] if name == "S" else covered
            most = np.where(visible, scores, -np.inf).max((1, 2))
            live = np.isfinite(most)
            if not live.any():
                return
            forms = [(f"maximum of {name} so far", most)]
            if name == "S":
                sums = np.where(visible, np.exp(scores - np.where(live, most, 0.0)[:, None, None]), 0.0).sum((1, 2))
                forms.append(("sum of exp(S - maximum) so far", sums))
            yield from (self._fit(_Form(form, want), got[live], want[live]) for form, want in forms)

    # --- fitting

    def _fit(
        self,
        form: _Form,
        got: Array,
        want: Array,
        where: tuple[Array, ...] | None = None,
        most: float | None = None,
    ) -> Role | None:
        """The role where values are those wanted times a constant that kernels multiply by.

        A tile may differ by the largest tolerance of its form. One whose values are less than twice that may differ by
        the same share of them; where it differs by more, within the tolerance of each element, it tells nothing.

        Args:
            where: the indices of each element in the form; None where its largest tolerance is that of all.
            most: the largest value of the form, where `form.values` does not hold it.
        """
        if not got.size or not np.isfinite(got).all() or not np.isfinite(want).all():
            return None
        factors = self.constants(form.name)
        square, here = float(want @ want), _largest(want)
        factor = float(got @ want) / square if square else 1.0
        words, constant = min(factors.items(), key=lambda each: abs(factor - each[1]))
        most = form.largest if most is None else most
        off, allowed = np.abs(got - constant * want) / abs(constant), self._allowed(form.name, most)
        share = min(1.0, here / most) if most > 2 * allowed else 0.0
        if off.max() <= allowed * (1.0 if here > 2 * allowed else share):
            return Role(form.name, words)
        tolerance = self._most_of(form.name)
        if off.max() > rounded(tolerance, np.float64(here), self._dtype):  # as no element may, whatever its tolerance
            return None
        tolerance = tolerance if where is None else self._tolerances[form.name][where]
        return _TOO_SMALL if (off <= rounded(tolerance, want, self._dtype)).all() else None

    def _allowed(self, name: str, most: float) -> float:
        """By how much values of up to `most` may differ from a form."""
        return float(rounded(self._most_of(name), np.float64(most), self._dtype))

    def _most_of(self, name: str) -> Array:
        """The largest tolerance of a form, for what has no index in it."""
        if name not in self._most:
            self._most[name] = np.max(self._tolerances.get("O" if name == "o" else name, 0.0))
        return self._most[name]

    def _is_open(self, form: _Form, seen: Array, others: Array) -> bool:
        """Whether entries that no row sees hold what a sum, or of scores a maximum, would take for right."""
        if not others.size:
            return False
        if form.name in _LOGITS:
            return bool((others > seen.max() - VANISHING).any())
        return not np.abs(others).max() <= self._allowed(form.name, form.largest)


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
