"""Spread: how far roundings to 16 bits scatter the rows of O, dQ, dK and dV.

One rounding of x has a variance of ROUNDING squares of u x (`evenness`). What it adds to a gradient follows by first
order, as in `bounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..reference import Attention, Tile
from ..reference.attention import BY_KEY

RESULTS = ("O", "dQ", "dK", "dV")

Parts = dict[str, Tensor]
"""By what is rounded: the squares that it adds to those of each row's errors, in squares of the unit roundoff."""


@dataclass
class OfTile:
    """A tile's share of what scatters one result."""

    parts: Parts
    """[h, r] each. "product": the rounding of P or dS for the product; "operand": of q or k before the scores; "S" and
    "dP": of these; "delta": of delta, O and P dP."""
    terms: Tensor
    """[h, r] how many terms each row sums."""
    shared: Tensor | None = None
    """[h, r] of dK and dV, the squares of what whole query rows have in common: errors of delta and of LSE."""
    of_queries: Tensor | None = None
    """[h, m] the same by query row."""


def tile_parts(x: Attention, tile: Tile, values: Mapping[str, Tensor]) -> dict[str, OfTile]:
    """What scatters each of RESULTS on a tile.

    Args:
        values: what `reference.evaluate` gives.
    """
    q, k, v, do = x.tensors(tile)
    p, pe, dp, ds = (values[name] for name in ("P", "PE", "dP", "dS"))
    delta, score = values["delta"][..., None], values["S"].masked_fill(~values["valid"], 0.0)
    q2, k2, v2, do2 = (one.square().sum(-1) for one in (q, k, v, do))
    # What moves a score moves its own P, the whole row by LSE, and delta.
    moved = {"S": score.square(), "operand": x.scale**2 * q2[..., None] * k2[..., None, :] / q.shape[-1]}
    by_lse = {name: (p**2 * one).sum(-1, keepdim=True) for name, one in moved.items()}
    by_delta = {name: ((p * (dp - delta)) ** 2 * one).sum(-1, keepdim=True) for name, one in moved.items()}
    of_o = ((do * values["O"]) ** 2).sum(-1, keepdim=True)
    by_delta["delta"] = ((p * dp) ** 2).sum(-1, keepdim=True) + of_o + delta**2

    def of(matrix: Tensor, other: Tensor, along: int, meets: Tensor | None = None, scale: float = 1.0) -> OfTile:
        """Of a product with an operand whose rows have these squares; `meets` is what errors of delta are times."""
        squares = {"product": matrix**2} | {name: matrix**2 * (one + by_lse[name]) for name, one in moved.items()}
        parts = {name: (one * other).sum(along) for name, one in squares.items()}
        in_common = matrix**2 * sum(by_lse.values()) * other
        if meets is not None:
            parts["dP"] = ((p * dp) ** 2 * other).sum(along)
            for name, one in by_delta.items():
                parts[name] = parts.get(name, 0.0) + (one * meets).sum(along)
            in_common = in_common + sum(by_delta.values()) * meets
        parts = {name: scale**2 * part for name, part in parts.items()}
        terms = values["valid"].sum(along).expand_as(parts["product"]).double()
        if along == -1:
            return OfTile(parts, terms)
        return OfTile(parts, terms, scale**2 * in_common.sum(-2), scale**2 * in_common.sum(-1))

    # delta's error is one for the row, so of dQ it meets the row of P K.
    row = (p @ k).square().sum(-1, keepdim=True)
    return {
        "O": of(pe, v2[:, None], -1),
        "dQ": of(ds, k2[:, None], -1, row, x.scale),
        "dK": of(ds, q2[..., None], -2, p**2 * q2[..., None], x.scale),
        "dV": of(pe, do2[..., None], -2),
    }


@dataclass
class Scatter:
    """What scatters one result of a problem, put together from tiles."""

    parts: Parts
    """[B, H, R] each."""
    terms: Tensor
    shared: Tensor
    queries: Tensor
    """[2, B, H] the sum of what query rows have in common, and of its squares."""

    def with_stored(self, expected: Tensor) -> Parts:
        """All parts, with what storing the result adds, and what a sum that is kept in 16 bits."""
        stored = expected.square().sum(-1)
        return self.parts | {"stored": stored, "sums": (stored + self.parts["product"]) * self.terms}


class Spread:
    """What scatters the results of a problem."""

    def __init__(self, x: Attention) -> None:
        self.x = x
        self.of: dict[str, Scatter] = {}

    def add(self, tile: Tile, found: Mapping[str, OfTile]) -> None:
        for result, one in found.items():
            scatter = self.of.setdefault(result, self._nothing(result, one))
            for name, part in one.parts.items():
                self._add(result, scatter.parts[name], tile, part)
            self._add(result, scatter.terms, tile, one.terms)
            if one.shared is not None and one.of_queries is not None:
                self._add(result, scatter.shared, tile, one.shared)
                of_heads = torch.stack([one.of_queries.sum(-1), one.of_queries.square().sum(-1)])
                scatter.queries[:, tile.batch].index_add_(1, self.x.kv_heads(tile), of_heads)

    def _nothing(self, result: str, one: OfTile) -> Scatter:
        rows = (self.x.k if result in BY_KEY else self.x.q).shape[:-1]
        zeros = self.x.q.new_zeros
        parts = {name: zeros(rows) for name in one.parts}
        return Scatter(parts, zeros(rows), zeros(rows), zeros(2, *rows[:2]))

    def _add(self, result: str, whole: Tensor, tile: Tile, part: Tensor) -> None:
        if result in BY_KEY:
            whole[tile.batch, :, tile.keys].index_add_(0, self.x.kv_heads(tile), part)
        else:
            whole[tile.batch, tile.heads, tile.rows] += part
