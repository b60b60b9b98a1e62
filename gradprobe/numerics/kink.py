"""Kink: entries of a tile of which rounding surely decides whether the lazy family's ReLU lets them through.

`bounds.Chain` widens what a flip there may move. These are some of the entries that it counts, so what they widen is
never kinder; a kernel rarely flips others, since their threshold is most of the whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..reference import Attention, Tile
from .bounds import UNBOUNDED
from .declared_precision import U32, U_FUNCTION

# Entries of one tile that are counted. Where all of a tile lie on the kink the whole budget is asked.
MOST = 1 << 14
# So that a threshold is below the whole budget's however both are rounded.
BELOW = 1 - 2.0**-20


@dataclass(frozen=True)
class Kink:
    """Some entries, n of them, and what a flip of each moves at least."""

    at: tuple[Tensor, Tensor, Tensor]
    """The head, row and key of each on the tile."""
    other: Tensor
    """[n] the value that dP may have there beside the expected one: dO V^T where that is 0, else 0."""
    flip: Tensor
    """[n] |dO V^T|."""
    ds: Tensor
    """[n] what its own flip moves dS by."""
    delta: Tensor
    """[h, m, 1] what flips move delta by."""
    count: int
    """How many entries lie there, those beyond MOST included."""

    def of_products(self, k: Tensor) -> Tensor:
        """[h, m, D]: what flips at single entries move dS K by."""
        head, row, key = self.at
        into = k.new_zeros(*self.delta.shape[:2], k.shape[-1])
        return into.index_put_((head, row), self.ds[:, None] * k[head, key].abs(), accumulate=True)

    @property
    def over_keys(self) -> Tensor:
        """[h, m, 1]: what flips move the sum of a row's dP by."""
        return torch.zeros_like(self.delta[..., 0]).index_put_(self.at[:2], self.flip, accumulate=True)[..., None]

    def nearer(self, expected: Tensor, came: Tensor) -> Tensor:
        """dP as expected, with the other value where that is nearer to what came."""
        known, there = expected[self.at], came[self.at].double()
        nearer = (there - self.other).abs() < (there - known).abs()
        return expected.index_put(self.at, self.other.where(nearer, known))


def kink_of(x: Attention, tile: Tile, values: Mapping[str, Tensor], relative: Tensor) -> Kink | None:
    """The entries of a tile; None where there are none, as in softmax.

    Args:
        values: what `reference.evaluate` gives of the tile.
        relative: [h, m, 1] or [h, m, n], at most the relative error that P is allowed.
    """
    if x.tau is None:
        return None
    p, (low, high) = values["P"], _around(x, tile, relative)
    every = ((p >= low) & (p <= high)).nonzero()
    if not len(every):
        return None
    head, row, key = at = every[:MOST].unbind(1)
    dpe, of_p = values["dPE"][at], p[at]
    ds = of_p * dpe.abs()
    delta = p.new_zeros(p.shape[:2]).index_put_((head, row), ds, accumulate=True)
    other = dpe.masked_fill(values["dP"][at] != 0, 0.0)
    return Kink((head, row, key), other, dpe.abs(), ds, delta[..., None], len(every))


def _around(x: Attention, tile: Tile, relative: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest P of which |P + tau / (i + 1)| is within its error, tau below 0."""
    assert x.tau is not None
    floor = -x.tau[tile.heads, None, None] / (x.positions(tile)[0] + 1)
    relative = (relative.clamp(max=UNBOUNDED) + U32) * BELOW
    absolute = (U_FUNCTION + U32) * floor * BELOW
    low = (floor - absolute) / (1 + relative)
    high = ((floor + absolute) / (1 - relative)).masked_fill(relative >= 1, torch.inf)
    return low.masked_fill(floor <= 0, torch.inf), high
