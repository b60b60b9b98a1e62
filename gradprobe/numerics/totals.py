"""Totals, to which all rows of all batches add: what they sum, and what they are allowed, at most and at least."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile
from ..reference.lazy import sum_by_distance
from ..reference.softmax import distance, sink_weight
from ..runtime.run import expected_shapes
from .block import Block
from .bounds import Chain
from .declared_precision import TINY, U32, U_FUNCTION, Precision, long_sum

if TYPE_CHECKING:
    from .least import LowerBounds

Error = tuple[Tensor, Tensor]
"""What a tile adds to the squares of independent errors, and what it adds as it is."""
# What squares and products of a few float32 numbers may be too large by.
SURELY = 1 - 2.0**-18


def like_bias(x: Attention, tile: Tile, matrix: Tensor) -> Tensor:
    """A matrix [h, m, N] summed as dBias sums dS, in the shape of the tile's part of the bias."""
    assert x.bias is not None
    if x.family == "lazy":
        i, j = x.positions(tile)
        return sum_by_distance(matrix, i - j, x.bias.shape[1])
    return matrix.sum_to_size(x.bias_part(x.bias, tile).shape)


def _by_position(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], matrix: Tensor
) -> Tensor:
    """[h] a matrix [h, m, N] summed as dTau sums dP."""
    return (matrix / (x.positions(tile)[0] + 1)).sum((-2, -1))


def _by_sink(x: Attention, tile: Tile, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """[h] numbers of rows [h, m] summed as dSink sums delta."""
    return -(sink_weight(x, tile, values["LSE"]) * rows).sum(-1)


def _by_distance(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], matrix: Tensor
) -> Tensor:
    """[h] a matrix [h, m, N] summed as dAlibi sums dT."""
    return -(distance(x, tile) * matrix).sum((-2, -1))


def by_row(chain: Chain, ds: Tensor) -> Tensor:
    return chain.i_ds + (chain.p * chain.i_delta) ** 2 + (ds * chain.common) ** 2


def _dt(chain: Chain) -> Tensor:
    """dS before softcap's derivative."""
    return chain.ds if chain.x.softcap is None else chain.p * (chain.dp - chain.delta)


def _dbias(chain: Chain) -> Error:
    """The sum of dT."""
    x = chain.x
    assert x.bias is not None
    dt = _dt(chain)
    if x.family == "lazy":
        addends, along_rows = x.n_batch * x.n_query, False
    else:
        addends = x.n_batch * x.n_heads * x.n_query * x.n_key // x.bias.numel()
        along_rows = x.n_key > 1 and (x.bias.dim() == 0 or x.bias.shape[-1] == 1)
    squares = by_row(chain, dt)
    if along_rows:  # the errors of a row's delta and its LSE add up as they are
        p, row = chain.p.sum(-1, keepdim=True), dt.sum(-1, keepdim=True)
        squares = (
            chain.i_ds.sum(-1, keepdim=True)
            + (p * chain.i_delta) ** 2
            + (row * chain.common) ** 2
        )
    sums = chain.kink_ds + U32 * long_sum(addends) * dt.abs()
    cut = like_bias(x, chain.tile, chain.p * chain.cut_delta).abs()
    return like_bias(x, chain.tile, squares), like_bias(x, chain.tile, sums) + cut


def _dtau(chain: Chain) -> Error:
    """Each row's sum errs on its own, by its terms; what adds the rows up errs by their sums."""
    x, (i, _) = chain.x, chain.x.positions(chain.tile)
    rows = U32 * long_sum(x.n_batch * x.n_query)
    of_terms = (
        U32 * long_sum(x.n_key) * (chain.dp.abs() + chain.flip).sum(-1, keepdim=True) / (i + 1)
    )
    of_rows = rows * chain.dp.sum(-1, keepdim=True).abs() / (i + 1)
    squares = ((chain.i_dp / (i + 1)) ** 2).sum(-1, keepdim=True) + of_terms**2
    flips = (chain.flip / (i + 1)).sum(-1, keepdim=True) * (1 + rows)
    return squares.sum((-2, -1)), (of_rows + flips).sum((-2, -1))


def _dsink(chain: Chain) -> Error:
    """-sum of w * delta with w = exp(sink - LSE), which errs by LSE's whole error and as an exponential does."""
    x = chain.x
    assert x.sinks is not None
    sink, lse, delta = x.sinks[chain.tile.heads, None], chain.values["LSE"], chain.values["delta"]
    weight = sink_weight(x, chain.tile, lse)
    argument = ((sink - lse).abs() + 2 * sink.abs()).nan_to_num(posinf=0.0)
    # One rounding each: the product with delta, its sign or scale, and what sums a block of rows.
    relative = chain.e_lse[..., 0] + U32 * (argument + 3) + U_FUNCTION
    share = (weight * delta).abs()
    squares = (weight * chain.e_delta[..., 0] + share * relative) ** 2
    cut = (weight * chain.cut_delta[..., 0]).sum(-1).abs()
    return squares.sum(-1), U32 * long_sum(x.n_batch * x.n_query) * share.sum(-1) + cut


def _dalibi(chain: Chain) -> Error:
    """-sum of |diagonal - j| * dT. The errors of a row's delta and its LSE add up as they are.

    As of dTau, each row's sum errs on its own, by its terms; what adds the rows up errs by their sums.
    """
    x, far = chain.x, distance(chain.x, chain.tile)
    dt = _dt(chain)
    p, row = (far * chain.p).sum(-1), (far * dt).sum(-1)
    # The product with the distance is one rounding more.
    of_terms = U32 * (long_sum(x.n_key) + 1) * (far * dt.abs()).sum(-1)
    squares = (far**2 * chain.i_ds).sum(-1) + of_terms**2
    squares = squares + (p * chain.i_delta[..., 0]) ** 2 + (row * chain.common[..., 0]) ** 2
    of_rows = U32 * long_sum(x.n_batch * x.n_query) * row.abs()
    return squares.sum(-1), of_rows.sum(-1) + (p * chain.cut_delta[..., 0]).sum(-1).abs()


def _least_dbias(bounds: LowerBounds, case: Case) -> Error:
    """By what a row's delta errs, and what rounds each term or their sum; softcap's derivative makes no term larger.

    Where all keys share a bias the errors of a row add up as they are; but not what LSE errs by, as dS sums to 0.
    """
    from .least import sizes, weight

    bias = bounds.x.bias
    assert bias is not None
    is_of_rows = case.family == "softmax" and bounds.x.n_key > 1 and bias.shape[-1] == 1
    p = bounds.values["P"].sum(-1, keepdim=True).float() if is_of_rows else bounds.p
    by = U_FUNCTION if is_of_rows else bounds.common.float()
    terms = (
        bounds.ds * weight(bounds.precision, 1) ** 2
        if bounds.power == 2
        else (bounds.ds * by).square_()
    )
    if case.family == "softmax":  # a bias may be of few terms each, or of one
        terms.add_((bounds.p * sizes(bounds.dp)).square_())
    terms = terms.sum(-1, keepdim=True, dtype=torch.double) if is_of_rows else terms
    of_delta = p.square().mul_(sizes(bounds.delta, 2))
    squares = SURELY * like_bias(
        bounds.x, bounds.tile, (of_delta + terms).double().nan_to_num_(0.0, 0.0, 0.0)
    )
    sums = _as_they_are(bounds, case).nan_to_num(0.0, 0.0, 0.0)
    return squares, SURELY * like_bias(bounds.x, bounds.tile, sums)


def _as_they_are(bounds: LowerBounds, case: Case) -> Tensor:
    """The errors of dT that add up as they are: what flips on the ReLU's kink, and the additions of float32."""
    if bounds.power == 2:
        sums = bounds.values["P"].new_zeros(()).expand_as(bounds.p)
    else:
        addends = case.scores // max(1, math.prod(expected_shapes(case)["dBias"]))
        if case.family == "lazy":
            addends = case.batch * case.seqlen_q
        sums = bounds.ds.double() * (U32 * long_sum(addends))
    if bounds.kink is not None:
        sums = (sums + bounds.p * bounds.kink.delta).index_put_(
            bounds.kink.at, bounds.kink.ds, accumulate=True
        )
    return sums


def _least_dtau(bounds: LowerBounds, case: Case) -> Error:
    """By each row's sum of dP, what adds the rows up, and what flips there on the ReLU's kink."""
    i, dp = bounds.x.positions(bounds.tile)[0] + 1, bounds.values["dP"]
    rows = U32 * long_sum(case.batch * case.seqlen_q)
    of_terms = (
        U32 * long_sum(bounds.x.n_key) * torch.linalg.vector_norm(dp, 1, dim=-1, keepdim=True) / i
    )
    squares, sums = of_terms.square(), rows * dp.sum(-1, keepdim=True).abs() / i
    if bounds.precision.operand:
        from .least import of_operands

        of_dp = of_operands(bounds.do, bounds.v, bounds.precision) * bounds.values["valid"]
        squares = squares + of_dp.square_().sum(-1, keepdim=True) / i**2
    if bounds.kink is not None:
        sums = sums + bounds.kink.over_keys / i
    return squares.sum((-2, -1)), sums.sum((-2, -1))


def _least_dsink(bounds: LowerBounds, case: Case) -> Error:
    """By delta, LSE and the exponential of each row, and what adds the rows up."""
    sinks, lse, delta = bounds.x.sinks, bounds.values["LSE"], bounds.values["delta"]
    assert sinks is not None
    sink, share = sinks[bounds.tile.heads, None], sink_weight(bounds.x, bounds.tile, lse)
    argument = ((sink - lse).abs() + 2 * sink.abs()).nan_to_num(posinf=0.0)
    relative = bounds.common[..., 0] + U32 * (argument + 3) + U_FUNCTION
    squares = (share * bounds.delta[..., 0]) ** 2 + (share * delta * relative) ** 2
    return squares.sum(-1), U32 * long_sum(case.batch * case.seqlen_q) * (
        share * delta
    ).abs().sum(-1)


def _least_dalibi(bounds: LowerBounds, case: Case) -> Error:
    """By each row's delta, and by the additions of its sum; softcap's derivative makes no term larger."""
    from .least import sizes

    far = distance(bounds.x, bounds.tile)
    of_delta = (far * bounds.p).sum(-1).square() * sizes(bounds.delta, 2)[..., 0]
    of_terms = U32 * long_sum(bounds.x.n_key) * (far * bounds.values["dS"].abs()).sum(-1)
    squares = SURELY * (of_delta + of_terms.square()).sum(-1)
    return squares, torch.zeros_like(squares)


@dataclass(frozen=True)
class Total:
    """One sum over all rows."""

    needs: str
    """The input without which it does not exist."""
    of: str
    """What it sums."""
    summed: Callable[[Attention, Tile, Mapping[str, Tensor], Tensor], Tensor]
    """From that, or what it errs by, and the values on a tile, to the tile's share."""
    budget: Callable[[Chain], Error]
    """In the shape of the tile's share. A row's delta and LSE err for all its entries at once."""
    least: Callable[[LowerBounds, Case], Error]


TOTALS = {
    "dBias": Total(
        "bias", "dT", lambda x, tile, values, dt: like_bias(x, tile, dt), _dbias, _least_dbias
    ),
    "dTau": Total("tau", "dP", _by_position, _dtau, _least_dtau),
    "dAlibi": Total("alibi", "dT", _by_distance, _dalibi, _least_dalibi),
    "dSink": Total("sinks", "delta", _by_sink, _dsink, _least_dsink),
}


def totals_of(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """By how much errors of dT, dP and delta move a tile's shares of the totals that a problem has."""
    exist = {
        name: one
        for name, one in TOTALS.items()
        if one.of in given and getattr(x, one.needs) is not None
    }
    return {name: one.summed(x, tile, values, given[one.of]).abs() for name, one in exist.items()}


class Totals:
    """What of these a trace has, added up block by block and tile by tile."""

    def __init__(self, case: Case, names: Collection[str], like: Tensor) -> None:
        self.case = case
        shapes = {
            name: shape
            for name, shape in expected_shapes(case).items()
            if name in TOTALS and name in names
        }
        self.expected, self._squares, self._sums = (
            {
                name: torch.zeros(shape, dtype=torch.double, device=like.device)
                for name, shape in shapes.items()
            }
            for _ in range(3)
        )

    def add(self, block: Block, bounds: LowerBounds) -> None:
        """Adds a tile of a block."""
        for name in self.expected:
            shares = (bounds.values[name], *TOTALS[name].least(bounds, self.case))
            for whole, share in zip(
                (self.expected, self._squares, self._sums), shares, strict=True
            ):
                part = block.of(whole[name], self.case.axes(name))
                part = (
                    bounds.x.bias_part(part, bounds.tile)
                    if name == "dBias"
                    else part[bounds.tile.heads]
                )
                part.add_(share)

    def bound(self, name: str, precision: Precision) -> Tensor:
        """What each element is allowed at least, once all tiles are added."""
        own = self._squares[name].nan_to_num(0.0, 0.0, 0.0).sqrt() + self._sums[name].nan_to_num(
            0.0, 0.0, 0.0
        )
        return own + (2 * precision.operand + 2 * U32) * self.expected[name].abs() + TINY
