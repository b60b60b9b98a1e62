"""Formulas: the values of a right attention backward, whole, from its inputs on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..model.intermediates import PRODUCTS, symbol
from ..reference import Attention, Tile
from .forms import FEATURES, Array, Form, multiplied


class Formulas:
    """The forms of one problem whose query rows are as many as its keys, and each head has a key head of its own."""

    def __init__(self, x: Attention, *, asks_for_mask: bool = True) -> None:
        self.x, self.scale, self._asks_for_mask = x, x.scale, asks_for_mask
        self.inputs = {name: as_numpy(getattr(x, name)) for name in ("q", "k", "v", "do")}
        whole = [Tile(batch, slice(0, x.n_heads), slice(0, x.n_query)) for batch in range(x.n_batch)]
        self.valid = np.stack([as_numpy(x.valid(tile).expand(x.n_heads, -1, -1)) for tile in whole]) > 0
        self.raw = self.inputs["q"] @ self.inputs["k"].swapaxes(-1, -2)
        self.alternates: dict[str, list[Form]] = {}
        self._tau = None if x.tau is None else as_numpy(x.tau)[None, :, None, None] / self._count

    def right(self) -> list[Form]:
        """What a right function may hold."""
        forms = [Form(name, FEATURES[name], self.inputs[name], symbol(name)) for name in self.inputs]
        forms += [Form("S", "bhmn", self.raw, "Q K^T")]
        s = self.logits(self.scale)
        t = np.where(self.valid, s, -np.inf)
        highest, powers = exponentials(t)
        most, lse, p = highest[..., 0], self._lse[..., 0], np.exp(t - self._lse)
        forms += [
            Form("S", "bhmn", s, "S"), Form("", "bhm", most, "the maximum of S"), Form("LSE", "bhm", lse, "LSE"),
            Form("", "bhm", s.max(-1), "the maximum of S without its mask"),
            Form("", "bhmn", powers, "exp(S - max)"), Form("", "bhm", powers.sum(-1), "the sum of exp(S - max)"),
            Form("", "bhmn", np.where(self.valid, np.exp(s), 0), "exp(S)"),
            Form("", "bhmn", np.where(self.valid, t - most[..., None], 0), "S - max"),
            Form("", "bhm", np.exp(t).sum(-1), "the sum of exp(S)"), Form("P", "bhmn", p, "P"),
            Form("", "bhmn", s - s.max(-1)[..., None], "S - max"),
            Form("", "bhmn", s - lse[..., None], "S - LSE"), Form("", "bhmn", s - most[..., None], "S - max"),
        ]  # fmt: skip
        by_kind: dict[str, Form] = {}
        for form in forms:
            by_kind[form.kind] = form
        self.alternates = {"P": [by_kind["P"]], "delta": [], "dP": [], "O": [], "dS": []}
        return [*forms, *self._chain(by_kind["P"])]

    def _chain(self, p: Form) -> Iterator[Form]:
        """What is right from P on."""
        held = self.weighting_v(p.values)
        o = Form("O", "bhme", held @ self.inputs["v"], "O", product=PRODUCTS["O"])
        open_dp = self.inputs["do"] @ self.inputs["v"].swapaxes(-1, -2)
        dp = Form("dP", "bhmn", np.where(self.passes(p.values), open_dp, 0), "dP")
        over = p.values * dp.values
        delta = Form("delta", "bhm", over.sum(-1), "delta")
        rest = dp.values - delta.values[..., None]
        ds = Form("dS", "bhmn", p.values * rest, "dS")
        is_plain = self._tau is None
        yield from (o, Form("dP" if is_plain else "", "bhmn", open_dp, "dP" if is_plain else "dO V^T"), dp, delta, ds)
        yield from (Form("", "bhmn", over, "P * dP"), Form("", "bhmn", rest, "dP - delta"))
        yield Form("", "bhmn", open_dp - delta.values[..., None], "dP - delta")
        yield Form("", "bhmn", p.values * delta.values[..., None], "P * delta")
        yield Form("", "bhme", self.inputs["do"] * o.values, "dO * O")
        if self.x.bias is not None:
            yield from (Form("", "bhmn", self.logits(0.0), "the bias"), Form("S", "bhmn", self.raw * self.scale, "S"))
        if self._tau is not None:
            z, seen = p.values + self._tau, self.valid
            steps = {"PE": held, "Z": z, "Z, masked": np.where(seen, z, 0), "dP": np.where(seen, open_dp, 0)}
            yield from (Form("", "bhmn", values, words) for words, values in steps.items())
        for form in (o, dp, delta, ds):
            self.alternates[form.kind] = [form]
        yield from (self._product(name, ds if name != "dV" else replace(p, values=held)) for name in ("dQ", "dK", "dV"))

    def _product(self, name: str, matrix: Form) -> Form:
        product = PRODUCTS[name]
        made = multiplied(matrix, product, self.inputs[product.other])
        return replace(made, kind=name, values=(self.scale if product.is_scaled else 1.0) * made.values, words=name)

    def logits(self, factor: float) -> Array:
        """Scores before the mask, of another factor than the scale."""
        s = factor * self.raw
        if self.x.softcap is not None:
            s = self.x.softcap * np.tanh(s / self.x.softcap)
        if self.x.bias is not None and self.x.family == "softmax":
            s = s + np.where(np.isfinite(bias := as_numpy(self.x.bias)), bias, 0)
        elif self.x.bias is not None:
            s = s + self._by_distance(as_numpy(self.x.bias))
        return s

    def _by_distance(self, bias: Array) -> Array:
        distance = np.arange(self.x.n_query)[:, None] - np.arange(self.x.n_key)
        inside = (distance >= 0) & (distance < bias.shape[1])
        return np.where(inside, bias[:, np.clip(distance, 0, bias.shape[1] - 1)], 0)[None]

    def weighting_v(self, p: Array) -> Array:
        """What is multiplied by V: P itself, or of the lazy family relu(P + tau / (i + 1))."""
        return p if self._tau is None else np.where(self.valid, np.maximum(p + self._tau, 0), 0)

    def passes(self, p: Array) -> Any:
        """Where dP is that of P: of the lazy family where relu lets it pass."""
        return np.True_ if self._tau is None else (p + self._tau > 0) & self.valid

    @cached_property
    def _lse(self) -> Array:
        """[B, H, M, 1]; 0 of rows that see no key."""
        most, powers = exponentials(np.where(self.valid, self.logits(self.scale), -np.inf))
        return np.asarray(most + np.log(np.maximum(powers.sum(-1, keepdims=True), 1.0)))

    @property
    def _count(self) -> Array:
        """[M, 1] i + 1."""
        return np.arange(1.0, self.x.n_query + 1)[:, None]


def exponentials(t: Array) -> tuple[Array, Array]:
    """The maximum of each row of scores, 0 of one that sees no key, and their exponentials less that, the largest 1."""
    most = t.max(-1, keepdims=True)
    most = np.where(np.isfinite(most), most, 0.0)
    return most, np.exp(t - most)


def as_numpy(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().double().numpy()
