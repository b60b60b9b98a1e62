"""Spread: how far roundings to 16 bits scatter the rows of O, dQ, dK and dV.

A rounding errs by anything within half a spacing: its variance is a third of the square of that. What it adds to a
gradient follows by first order, as in `bounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..reference import Attention, Tile
from ..reference.attention import BY_KEY
from .declared_precision import TINY, Precision, nearest

RESULTS = ("O", "dQ", "dK", "dV")

Parts = dict[str, Tensor]
"""By what is rounded: the variance that it adds to each row, summed over its elements, or to each element."""


_EXPONENT = 0x7FF << 52
"""The bits of float64 that hold the exponent: alone, they are the power of two below a number."""


def rounding(precision: Precision, values: Tensor) -> Tensor:
    """The variance of rounding values [float64] to 16 bits, whatever their last bits are: a third of the square of half
    a spacing.
    """
    power = (values.contiguous().view(torch.int64) & _EXPONENT).view(torch.float64)
    return (power * precision.matrix).clamp_(min=precision.floor).square_().mul_((power > 0) / 3)


@dataclass
class TileShare:
    """A tile's share of what scatters one result."""

    parts: Parts
    """[h, r, 1] each, or [h, r, C] by element. "product": the rounding of P or dS for the product, whatever
    their last bits are; "exactly": of just these P or dS (a P of nearly 1 rounds to 1), and "late": of P before it is
    divided by the row's sum; "operand": of q or k before the scores; "S", "shifted", "P", "dP" and "spread": of
    scores, of these less the row's maximum, of P, dP, and dP - delta; "delta": of delta, O and P dP."""
    terms: Tensor
    """[h, r] how many terms each row sums."""
    shared: Tensor | None = None
    """[h, m, N] of dK and dV: the squares of what each query row adds by errors that it has for all keys, of delta and
    LSE."""


def tile_parts(
    x: Attention,
    tile: Tile,
    values: Mapping[str, Tensor],
    precision: Precision,
    *,
    by_element: bool = False,
) -> dict[str, TileShare]:
    """What scatters each of RESULTS on a tile, row by row or element by element.

    Args:
        values: what `reference.evaluate` gives.
    """
    q, k, v, do = x.tensors(tile)
    p, pe, dp, ds = (values[name] for name in ("P", "PE", "dP", "dS"))
    delta, score = values["delta"][..., None], values["S"].masked_fill(~values["valid"], 0.0)
    q2, k2, do2 = (one.square().sum(-1, keepdim=True) for one in (q, k, do))
    of_rounding = partial(rounding, precision)
    # What moves a score moves its own P, the whole row by LSE, and delta.
    of_q, of_k = (of_rounding(one).sum(-1, keepdim=True) for one in (q, k))
    shifted = (score - values["S"].amax(-1, keepdim=True)).masked_fill(~values["valid"], 0.0)
    moved = {"S": of_rounding(score), "shifted": of_rounding(shifted)}
    moved["operand"] = x.scale**2 * (of_q * k2.mT).maximum(q2 * of_k.mT) / q.shape[-1]
    by_lse = {name: (p**2 * one).sum(-1, keepdim=True) for name, one in moved.items()}
    by_delta = {
        name: ((p * (dp - delta)) ** 2 * one).sum(-1, keepdim=True) for name, one in moved.items()
    }
    of_o = (do**2 * of_rounding(values["O"])).sum(-1, keepdim=True)
    of_dp = p**2 * of_rounding(dp)
    by_delta["delta"] = of_dp.sum(-1, keepdim=True) + of_o + of_rounding(delta)

    def squares(rows: Tensor) -> Tensor:
        return rows.square() if by_element else rows.square().sum(-1, keepdim=True)

    def of(matrix: Tensor) -> Parts:
        rounded = {
            "product": of_rounding(matrix),
            "exactly": (nearest(precision, matrix) - matrix) ** 2,
        }
        return rounded | {name: matrix**2 * (one + by_lse[name]) for name, one in moved.items()}

    largest = pe.amax(-1, keepdim=True).clamp(min=TINY)
    late = largest**2 * (nearest(precision, pe / largest) - pe / largest) ** 2
    of_pe, of_ds = of(pe) | {"late": late}, of(ds) | {"dP": of_dp}
    of_ds |= {"P": (dp - delta) ** 2 * of_rounding(p), "spread": p**2 * of_rounding(dp - delta)}
    # delta's error is one for the row: of dQ it meets the row of P K, of dK each P.
    by_keys = of_ds | {name: of_ds.get(name, 0.0) + p**2 * one for name, one in by_delta.items()}
    dq, row = _times(of_ds, squares(k), x.scale), x.scale**2 * squares(p @ k)
    dq |= {name: dq.get(name, 0.0) + row * one for name, one in by_delta.items()}
    terms = {axis: values["valid"].sum(axis).expand(len(q), -1).double() for axis in (-1, -2)}
    from_lse, from_delta = sum(by_lse.values()), sum(by_delta.values())
    to_dk, to_dv = (
        x.scale**2 * q2 * (ds**2 * from_lse + p**2 * from_delta),
        do2 * pe**2 * from_lse,
    )
    return {
        "O": TileShare(_times(of_pe, squares(v)), terms[-1]),
        "dQ": TileShare(dq, terms[-1]),
        "dK": TileShare(
            _times({name: one.mT for name, one in by_keys.items()}, squares(q), x.scale),
            terms[-2],
            to_dk,
        ),
        "dV": TileShare(
            _times({name: one.mT for name, one in of_pe.items()}, squares(do)), terms[-2], to_dv
        ),
    }


def _times(matrices: Parts, squares: Tensor, scale: float = 1.0) -> Parts:
    return {name: scale**2 * one @ squares for name, one in matrices.items()}


@dataclass
class Scatter:
    """What scatters one result of a problem, put together from tiles."""

    parts: Parts
    """[B, H, R, 1] each, or [B, H, R, C] by element."""
    terms: Tensor
    """[B, H, R]."""
    shared: Tensor
    """[B, H, R] the squares of what query rows have in common."""
    queries: Tensor
    """[2, B, H] these summed by query row, and the squares of that."""

    def with_stored(self, stored: Tensor) -> Parts:
        """All parts, with what storing the result adds, and what a sum that is kept in 16 bits."""
        return self.parts | {
            "stored": stored,
            "sums": (stored + self.parts["product"]) * self.terms[..., None],
        }


class Spread:
    """What scatters the results of a problem."""

    def __init__(self, x: Attention) -> None:
        self.x = x
        self.of: dict[str, Scatter] = {}

    def add(self, tile: Tile, shares: Mapping[str, TileShare]) -> None:
        for result, tile_values in shares.items():
            scatter = self.of.setdefault(result, self._nothing(result, tile_values))
            for name, part in tile_values.parts.items():
                self._add(result, scatter.parts[name], tile, part)
            self._add(result, scatter.terms, tile, tile_values.terms)
            if tile_values.shared is not None:
                self._add(result, scatter.shared, tile, tile_values.shared.sum(-2))
                of_queries = tile_values.shared.sum(-1)
                of_heads = torch.stack([of_queries.sum(-1), of_queries.square().sum(-1)])
                scatter.queries[:, tile.batch].index_add_(1, self.x.kv_heads(tile), of_heads)

    def _nothing(self, result: str, tile_values: TileShare) -> Scatter:
        rows = (self.x.k if result in BY_KEY else self.x.q).shape[:-1]
        zeros = self.x.q.new_zeros
        parts = {name: zeros(*rows, part.shape[-1]) for name, part in tile_values.parts.items()}
        return Scatter(parts, zeros(rows), zeros(rows), zeros(2, *rows[:2]))

    def _add(self, result: str, whole: Tensor, tile: Tile, part: Tensor) -> None:
        if result in BY_KEY:
            whole[tile.batch, :, tile.keys].index_add_(0, self.x.kv_heads(tile), part)
        else:
            whole[tile.batch, tile.heads, tile.rows] += part
