"""Scatter: how far roundings to 16 bits scatter the rows of O, dQ, dK and dV, to first order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ..model.case import Case
from ..model.intermediates import PRODUCTS
from ..reference import Attention, Tile, evaluate
from ..reference.attention import BY_KEY
from .compare import tiles_of
from .declared_precision import TINY, Precision, nearest

Parts = dict[str, Tensor]
"""By what is rounded: the variance that it adds to each row, [h, r, 1] summed over its elements, or to each element.

"product": the rounding of P or dS for the product, whatever their last bits are; "exactly": of just these P or dS (a P
of nearly 1 rounds to 1); "late": of P before it is divided; "operand": of q or k before the scores; "shifted": of
scores less the row's maximum; "spread": of dP - delta; "delta": of delta, O and P dP.
"""


# The bits of float64 that hold the exponent: alone, they are the power of two below a number.
_EXPONENT = 0x7FF << 52


def rounding(precision: Precision, values: Tensor) -> Tensor:
    """The variance of rounding float64 values to 16 bits: a third of the square of half a spacing."""
    power = (values.contiguous().view(torch.int64) & _EXPONENT).view(torch.float64)
    return (power * precision.matrix).clamp_(min=precision.floor).square_().mul_((power > 0) / 3)


@dataclass
class Scatter:
    """What scatters one result of a problem to first order, added up tile by tile."""

    queries: Tensor
    """[2, B, H] what query rows have in common, summed over them, and the squares of that."""
    parts: Parts = field(default_factory=dict)
    """[B, H, R, 1] each, or [B, H, R, C] by element; beside them "terms", how many each row sums, and "shared", the
    squares of what query rows have in common."""

    def add(self, x: Attention, result: str, tile: Tile, parts: Parts) -> None:
        rows = (x.k if result in BY_KEY else x.q).shape[:-1]
        for name, part in parts.items():
            if name not in self.parts:
                self.parts[name] = x.q.new_zeros(*rows, part.shape[-1])
            if result in BY_KEY:
                whole = self.parts[name][tile.batch, :, tile.keys]
                whole.index_add_(0, x.kv_heads(tile), part)
            else:
                self.parts[name][tile.batch, tile.heads, tile.rows] += part

    def with_stored(self, stored: Tensor) -> Parts:
        """All parts, with what storing the result adds, and what a sum that is kept in 16 bits."""
        sums = (stored + self.parts["product"]) * self.parts["terms"]
        own = {
            name: part for name, part in self.parts.items() if name not in ("terms", "shared")
        }
        return own | {"stored": stored, "sums": sums}


def scatter_of(
    case: Case, x: Attention, precision: Precision, *, by_element: bool = False
) -> dict[str, Scatter]:
    """What scatters O, dQ, dK and dV, row by row or element by element."""
    heads = {name: (x.k if name in BY_KEY else x.q).shape[1] for name in PRODUCTS}
    found = {name: Scatter(x.q.new_zeros(2, x.n_batch, heads[name])) for name in PRODUCTS}
    for tile in tiles_of(case, x):
        of_tile = _ScatteredTile(x, tile, evaluate(x, tile), precision, by_element)
        for result, parts in of_tile.parts().items():
            found[result].add(x, result, tile, parts)
        for result, shared in of_tile.in_common().items():
            found[result].add(x, result, tile, {"shared": shared.sum(-2)[..., None]})
            of_queries = shared.sum(-1)
            of_heads = torch.stack([of_queries.sum(-1), of_queries.square().sum(-1)])
            found[result].queries[:, tile.batch].index_add_(1, x.kv_heads(tile), of_heads)
    return found


class _ScatteredTile:
    def __init__(
        self, x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision, by_element: bool
    ) -> None:  # fmt: skip
        self.x, self.values, self.precision, self.by_element = x, values, precision, by_element
        self.q, self.k, self.v, self.do = x.tensors(tile)
        self.p, self.pe, self.ds = (values[name] for name in ("P", "PE", "dS"))
        self.rounding, delta = partial(rounding, precision), values["delta"][..., None]
        self.spread = values["dP"] - delta
        # What moves a score moves its own P, the whole row by LSE, and delta.
        self.moved = self._scores()
        self.by_lse = {name: row_sums(self.p**2 * one) for name, one in self.moved.items()}
        self.of_dp = self.p**2 * self.rounding(values["dP"])
        weights = (self.p * self.spread) ** 2
        self.by_delta = {name: row_sums(weights * one) for name, one in self.moved.items()}
        of_o = row_sums(self.do**2 * self.rounding(values["O"]))
        self.by_delta["delta"] = row_sums(self.of_dp) + of_o + self.rounding(delta)

    def _scores(self) -> Parts:
        """[h, m, N] the variances of scores."""
        s, valid = self.values["S"], self.values["valid"]
        shifted = (s - s.amax(-1, keepdim=True)).masked_fill(~valid, 0.0)
        of_q, of_k = (row_sums(self.rounding(one)) for one in (self.q, self.k))
        q2, k2 = (row_sums(one**2) for one in (self.q, self.k))
        operand = (of_q * k2.mT).maximum(q2 * of_k.mT)
        return {
            "S": self.rounding(s.masked_fill(~valid, 0.0)),
            "shifted": self.rounding(shifted),
            "operand": self.x.scale**2 * operand / self.q.shape[-1],
        }

    def parts(self) -> dict[str, Parts]:
        p, pe, scale = self.p, self.pe, self.x.scale
        largest = pe.amax(-1, keepdim=True).clamp(min=TINY)
        late = (largest * (nearest(self.precision, pe / largest) - pe / largest)) ** 2
        of_pe, of_ds = self._of(pe) | {"late": late}, self._of(self.ds) | {"dP": self.of_dp}
        of_ds |= {"P": self.spread**2 * self.rounding(p)}
        of_ds |= {"spread": p**2 * self.rounding(self.spread)}
        # delta's error is one for the row: of dQ it meets the row of P K, of dK each P.
        row, by_keys = scale**2 * self._squares(p @ self.k), dict(of_ds)
        dq = self._times(of_ds, self.k, scale)
        for name, one in self.by_delta.items():
            by_keys[name] = of_ds.get(name, 0.0) + p**2 * one
            dq[name] = dq.get(name, 0.0) + row * one
        found = {"O": self._times(of_pe, self.v), "dQ": dq}
        found["dK"] = self._times({name: one.mT for name, one in by_keys.items()}, self.q, scale)
        found["dV"] = self._times({name: one.mT for name, one in of_pe.items()}, self.do)
        for result, parts in found.items():
            terms = self.values["valid"].sum(-2 if result in BY_KEY else -1)
            parts["terms"] = terms.expand(len(self.q), -1).double()[..., None]
        return found

    def in_common(self) -> Parts:
        """[h, m, N] of dK and dV: the squares of what each query row adds by errors that it has for all keys."""
        of_rows = (self.by_lse, self.by_delta)
        from_lse, from_delta = (torch.stack([*of.values()]).sum(0) for of in of_rows)
        of_dk = self.ds**2 * from_lse + self.p**2 * from_delta
        of_dv = row_sums(self.do**2) * self.pe**2 * from_lse
        return {"dK": self.x.scale**2 * row_sums(self.q**2) * of_dk, "dV": of_dv}

    def _of(self, matrix: Tensor) -> Parts:
        exactly = (nearest(self.precision, matrix) - matrix) ** 2
        moved = {name: matrix**2 * (one + self.by_lse[name]) for name, one in self.moved.items()}
        return {"product": self.rounding(matrix), "exactly": exactly} | moved

    def _squares(self, rows: Tensor) -> Tensor:
        return rows.square() if self.by_element else row_sums(rows.square())

    def _times(self, matrices: Parts, rows: Tensor, scale: float = 1.0) -> Parts:
        squares = scale**2 * self._squares(rows)
        return {name: one @ squares for name, one in matrices.items()}


def row_sums(of: Tensor) -> Tensor:
    return of.sum(-1, keepdim=True)
