"""A Variant on a whole problem: what a target with that fault would give, and by how much rounding may move it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..budgets.budget import summed_bound, tile_budget
from ..budgets.precision import Precision, output_rounding
from ..faults.variant import Variant
from ..judging.compare import BY_TILE, tile_size
from ..reference import Tile, tiles
from .observed import Observed

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Predicted:
    """What would come, by intermediate."""

    values: Mapping[str, Tensor]
    bounds: Mapping[str, Tensor]
    """The errors allowed to it; empty where they were not asked for."""


def predict(seen: Observed, variant: Variant, buffers: Mapping[str, Tensor], precision: Precision | None) -> Predicted:
    """What a variant gives where the target exposes anything.

    Args:
        buffers: LSE, O and delta as kernels find them, as far as they are no part of the prediction.
        precision: the arithmetic that bounds are derived from; None for no bounds.
    """
    whole = _Whole(seen, variant, precision)
    heads, rows = tile_size(seen.case)
    for tile in tiles(seen.x, rows=rows, heads=heads):
        whole.add(tile, variant.on(tile, buffers))
    return whole.predicted()


class _Whole:
    """Collects tiles."""

    def __init__(self, seen: Observed, variant: Variant, precision: Precision | None) -> None:
        self.seen, self.variant, self.precision = seen, variant, precision
        self.values = {name: actual.new_zeros(actual.shape) for name, actual in seen.actual.items()}
        self.bounds = {name: value.clone() for name, value in self.values.items()} if precision else {}
        self.squares = {name: bound.clone() for name, bound in self.bounds.items() if name not in BY_TILE}

    def add(self, tile: Tile, values: Mapping[str, Tensor]) -> None:
        self._add(tile, self.values, values)
        if self.precision is None:
            return
        budget = tile_budget(self.variant.x, tile, values, self.precision)
        rows = {name: bound.nan_to_num(0.0) for name, bound in budget.rows.items()}
        self._add(tile, self.bounds, {**rows, **budget.sums})
        self._add(tile, self.squares, budget.squares)

    def predicted(self) -> Predicted:
        finished = dict(self.values)
        for finish in self.variant.finishes:
            finished |= finish(finished)
        for name, squares in self.squares.items():
            assert self.precision is not None
            self.bounds[name] = summed_bound(name, self.values[name], squares, self.bounds[name], self.precision)
        dtypes = {name: value.dtype for name, value in self.seen.measured.trace.values.items()}
        bounds = {
            name: bound + output_rounding(self.values[name], bound, dtypes[name]) for name, bound in self.bounds.items()
        }
        return Predicted(finished, bounds)

    def _add(self, tile: Tile, into: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        """Like the reference's `add_tile`, with the variant's own sums over the heads of a group."""
        x = self.seen.x
        for name, whole in into.items():
            if name in BY_TILE:
                whole[tile.batch, tile.heads, tile.rows] = values[name]
            elif name in ("dK", "dV") and self.variant.share is not None:
                share = self.variant.share[:, tile.heads]
                whole[tile.batch] += (share @ values[name].flatten(1)).unflatten(1, values[name].shape[1:])
            elif name in ("dK", "dV"):
                whole[tile.batch].index_add_(0, x.kv_heads(tile), values[name])
            elif name in ("dTau", "dSink"):
                whole[tile.heads] += values[name]
            else:
                x.bias_part(whole, tile).add_(values[name])
