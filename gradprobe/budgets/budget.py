"""The error allowed to each element, derived from the arithmetic that a kernel declares.

First-order error analysis with independent roundings. Every rounding that the contract allows is a relative error of at
most u; errors of separate roundings are added in quadrature and multiplied by LAMBDA, errors that share one cause are
added as they are. A bound is evaluated for every element from the magnitudes that meet in it, so it scales with
lengths, dims and data, and does not vanish where large terms cancel.

Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), chapter 3, for sums of products; Higham and Mary,
A New Approach to Probabilistic Rounding Error Analysis (2019), for sqrt(n) in place of n in long sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..reference import Attention, Tile
from .chain import Chain
from .precision import TINY, U32, Precision
from .sums import errors_of_sums

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TileBudget:
    """The allowed errors on one tile."""

    rows: Mapping[str, Tensor]
    """Whole bounds of what belongs to the tile's rows: LSE, P, O, dP, delta, dS, dQ."""
    squares: Mapping[str, Tensor]
    """This tile's share of the squared independent errors of what is summed over rows, in the shapes on the tile."""
    sums: Mapping[str, Tensor]
    """This tile's share of the errors that are added as they are."""
    unmasked_dp: Tensor
    """[h, m, N] the bound of dO V^T before any mask."""
    undecided: Tensor
    """[h, m, N] bool: entries on the ReLU's kink, where rounding alone decides whether dP is 0 or dO V^T."""


def tile_budget(
    x: Attention,
    tile: Tile,
    values: Mapping[str, Tensor],
    precision: Precision,
    shift: Mapping[str, Tensor] | None = None,
) -> TileBudget:
    """The allowed errors of every intermediate on a tile, from the values on it.

    Args:
        values: what `reference.evaluate` gives, with a target's own values in place of some where its results are
            judged by their own parents.
        shift: from `rounding_shift`, for arithmetics that need it.
    """
    chain = Chain(x, tile, values, precision)
    errors = dict(errors_of_sums(chain))
    squares, sums = ({name: _known(error[which]) for name, error in errors.items()} for which in (0, 1))
    rows = {name: _known(bound) for name, bound in chain.rows().items()}
    budget = TileBudget(rows, squares, sums, chain.unmasked_dp, chain.undecided)
    return _widened(budget, shift) if shift else budget


def _known(bound: Tensor) -> Tensor:
    """A bound, infinite where it is not known: scores of 1e30 may err by more than float64 squares."""
    return bound.nan_to_num(float("inf"), float("inf"))


def _widened(budget: TileBudget, shift: Mapping[str, Tensor]) -> TileBudget:
    if "dPE" in shift:
        decided = (budget.rows["dP"] > 0) & ~budget.undecided
        shift = {**shift, "dP": shift["dPE"] * decided}
    rows = {name: bound + shift.get(name, 0.0) for name, bound in budget.rows.items()}
    sums = {name: bound + shift.get(name, 0.0) for name, bound in budget.sums.items()}
    return replace(budget, rows=rows, sums=sums, unmasked_dp=budget.unmasked_dp + shift.get("dPE", 0.0))


def summed_bound(name: str, expected: Tensor, squares: Tensor, sums: Tensor, precision: Precision) -> Tensor:
    """The bound of a sum over all tiles, from the tiles' shares of it.

    Where all of P, or of dS, are nearly alike, they round alike, and dV and dK are off by as much as each of them.
    """
    shared = max(2 * precision.operand, precision.matrix if name in ("dK", "dV") else 0.0)
    return squares.sqrt() + sums + (shared + 2 * U32) * expected.abs() + TINY
