"""Recovery: what reading P and dS out of a black box's gradients adds to the errors allowed to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..reference import Attention, Tile
from .budget import TileBudget, tile_budget
from .precision import U32, Precision

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# What can be recovered of a target that exposes gradients alone.
RECOVERABLE = ("P", "dP", "delta", "dS")


@dataclass(frozen=True)
class Recovery:
    """How P, dS, and from them delta and dP, were read.

    P came as elements of dV, dS as elements of dQ or dK, each the only term of its sum: its operand is rounded as the
    contract says, and the gradient to its own dtype. With g = dS / (P * slope), slope being the softcap's derivative,
    delta = -g at a key without a value, and dP = g + delta.
    """

    of_p: torch.dtype
    """Of dV."""
    of_ds: torch.dtype
    """The coarser one of dQ and dK."""
    factor: float
    """What dS was multiplied by in them."""
    zero_key: Tensor
    """[B, H, M] the key at which each row's delta was read; -1 where the row sees none without a value."""
    names: frozenset[str] = frozenset(RECOVERABLE)
    """What was read so; what the target exposes itself is not."""
    coarse: frozenset[str] = frozenset()
    """What is held to a coarser arithmetic than the contract's, because the gradient that shows it may be as coarse."""

    def widened(
        self, x: Attention, tile: Tile, values: Mapping[str, Tensor], budget: TileBudget, precision: Precision
    ) -> TileBudget:
        """A tile's budget with what the reading adds to P, dS, delta and dP."""
        budget = self._coarser(x, tile, values, budget, precision)
        rows, valid = dict(budget.rows), values["valid"]
        # A kernel may round dS or scale * dS, whichever it multiplies.
        for name, dtype, factor in (("P", self.of_p, 1.0), ("dS", self.of_ds, min(1.0, abs(x.scale), self.factor))):
            if name in self.names:
                rounded = precision.coarser if name in self.coarse else precision
                rows[name] = rows[name] + _of_reading(values[name], rows[name], dtype, factor, rounded) * valid
        e_g = quotient_error(values, rows, slope_of(x, tile))
        key = self.zero_key[tile.batch, tile.heads, tile.rows, None]
        e_delta = e_g.gather(-1, key.clamp(min=0)).masked_fill(key < 0, float("inf"))
        if "delta" in self.names:
            rows["delta"] = rows["delta"] + e_delta[..., 0]
        if "dP" not in self.names:
            return replace(budget, rows=rows)
        rows["dP"] = rows["dP"] + (e_g + e_delta).masked_fill(~valid, 0.0)
        # Where P is 0 and should be, the quotient is nothing; where it should be 0 and is not, P itself is wrong.
        return replace(budget, rows=rows, unmasked_dp=budget.unmasked_dp.masked_fill(~valid, float("inf")))

    def _coarser(
        self, x: Attention, tile: Tile, values: Mapping[str, Tensor], budget: TileBudget, precision: Precision
    ) -> TileBudget:
        """A tile's budget with what a coarser arithmetic may do to some intermediates."""
        if not self.coarse:
            return budget
        coarse = tile_budget(x, tile, values, precision.coarser)

        def wider(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: bound.maximum(other[name]) if name in self.coarse else bound for name, bound in own.items()}

        return replace(
            budget,
            rows=wider(budget.rows, coarse.rows),
            sums=wider(budget.sums, coarse.sums),
            squares=wider(budget.squares, coarse.squares),
        )


def _of_reading(expected: Tensor, bound: Tensor, dtype: torch.dtype, factor: float, precision: Precision) -> Tensor:
    import torch

    info = torch.finfo(dtype)
    relative = precision.matrix + info.eps / 2 + 4 * U32
    return relative * (expected.abs() + bound) + (precision.floor + info.tiny * info.eps / 2) / factor


def quotient_error(values: Mapping[str, Tensor], rows: Mapping[str, Tensor], slope: Tensor | float) -> Tensor:
    """The error of dS / (P * slope); infinite where P is not known to be above 0."""
    spread = (values["dP"] - values["delta"][..., None]).abs()
    least = values["P"] - rows["P"]
    error = (rows["dS"] + spread * slope * rows["P"]) / (least * slope)
    return error.masked_fill(~(least * slope > 0), float("inf"))


def slope_of(x: Attention, tile: Tile) -> Tensor | float:
    """The softcap's derivative on a tile."""
    if x.softcap is None:
        return 1.0
    q, k, _, _ = x.tensors(tile)
    return 1 - (x.scale * q @ k.mT / x.softcap).tanh() ** 2
