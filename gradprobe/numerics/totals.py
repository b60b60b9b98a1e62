"""Totals, to which all rows of all batches add: what they sum, and what they are allowed, at most and at least."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile
from ..reference.lazy import sum_by_distance
from ..reference.softmax import sink_weight
from ..runtime.trace import expected_shapes
from .block import Block
from .bounds import Chain
from .least import Least, of_operands, sizes, weight
from .precision import TINY, U32, U_FUNCTION, Precision, long_sum

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


def _by_position(x: Attention, tile: Tile, values: Mapping[str, Tensor], matrix: Tensor) -> Tensor:
    """[h] a matrix [h, m, N] summed as dTau sums dP."""
    return (matrix / (x.positions(tile)[0] + 1)).sum((-2, -1))


def _by_sink(x: Attention, tile: Tile, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """[h] numbers of rows [h, m] summed as dSink sums delta."""
    return -(sink_weight(x, tile, values["LSE"]) * rows).sum(-1)


def by_row(of: Chain, ds: Tensor) -> Tensor:
    return of.i_ds + (of.p * of.i_delta) ** 2 + (ds * of.common) ** 2


def _dbias(of: Chain) -> Error:
    """The sum of dT, which is dS before softcap's derivative."""
    x = of.x
    assert x.bias is not None
    dt = of.ds if x.softcap is None else of.p * (of.dp - of.delta)
    if x.family == "lazy":
        addends, along_rows = x.n_batch * x.n_query, False
    else:
        addends = x.n_batch * x.n_heads * x.n_query * x.n_key // x.bias.numel()
        along_rows = x.n_key > 1 and (x.bias.dim() == 0 or x.bias.shape[-1] == 1)
    squares = by_row(of, dt)
    if along_rows:  # the errors of a row's delta and its LSE add up as they are
        p, row = of.p.sum(-1, keepdim=True), dt.sum(-1, keepdim=True)
        squares = of.i_ds.sum(-1, keepdim=True) + (p * of.i_delta) ** 2 + (row * of.common) ** 2
    sums = of.kink_ds + U32 * long_sum(addends) * dt.abs()
    cut = like_bias(x, of.tile, of.p * of.cut_delta).abs()
    return like_bias(x, of.tile, squares), like_bias(x, of.tile, sums) + cut


def _dtau(of: Chain) -> Error:
    """Each row's sum errs on its own, by its terms; what adds the rows up errs by their sums."""
    x, (i, _) = of.x, of.x.positions(of.tile)
    rows = U32 * long_sum(x.n_batch * x.n_query)
    of_terms = U32 * long_sum(x.n_key) * (of.dp.abs() + of.flip).sum(-1, keepdim=True) / (i + 1)
    of_rows = rows * of.dp.sum(-1, keepdim=True).abs() / (i + 1)
    squares = ((of.i_dp / (i + 1)) ** 2).sum(-1, keepdim=True) + of_terms**2
    flips = (of.flip / (i + 1)).sum(-1, keepdim=True) * (1 + rows)
    return squares.sum((-2, -1)), (of_rows + flips).sum((-2, -1))


def _dsink(of: Chain) -> Error:
    """-sum of w * delta with w = exp(sink - LSE), which errs by LSE's whole error and as an exponential does."""
    x = of.x
    assert x.sinks is not None
    sink, lse, delta = x.sinks[of.tile.heads, None], of.values["LSE"], of.values["delta"]
    weight = sink_weight(x, of.tile, lse)
    argument = ((sink - lse).abs() + 2 * sink.abs()).nan_to_num(posinf=0.0)
    # One rounding each: the product with delta, its sign or scale, and what sums a block of rows.
    relative = of.e_lse[..., 0] + U32 * (argument + 3) + U_FUNCTION
    share = (weight * delta).abs()
    squares = (weight * of.e_delta[..., 0] + share * relative) ** 2
    cut = (weight * of.cut_delta[..., 0]).sum(-1).abs()
    return squares.sum(-1), U32 * long_sum(x.n_batch * x.n_query) * share.sum(-1) + cut


def _least_dbias(of: Least, case: Case) -> Error:
    """By what a row's delta errs, and what rounds each term or their sum; softcap's derivative makes no term larger.

    Where all keys share a bias the errors of a row add up as they are; but not what LSE errs by, as dS sums to 0.
    """
    bias = of.x.bias
    assert bias is not None
    is_of_rows = case.family == "softmax" and of.x.n_key > 1 and bias.shape[-1] == 1
    p, by = (of.values["P"].sum(-1, keepdim=True).float(), U_FUNCTION) if is_of_rows else (of.p, of.common.float())
    terms = of.ds * weight(of.precision, 1) ** 2 if of.power == 2 else (of.ds * by).square_()
    if case.family == "softmax":  # a bias may be of few terms each, or of one
        terms.add_((of.p * sizes(of.dp)).square_())
    terms = terms.sum(-1, keepdim=True, dtype=torch.double) if is_of_rows else terms
    of_delta = p.square().mul_(sizes(of.delta, 2))
    squares = SURELY * like_bias(of.x, of.tile, (of_delta + terms).double().nan_to_num_(0.0, 0.0, 0.0))
    return squares, SURELY * like_bias(of.x, of.tile, _as_they_are(of, case, bias).nan_to_num(0.0, 0.0, 0.0))


def _as_they_are(of: Least, case: Case, bias: Tensor) -> Tensor:
    """The errors of dT that add up as they are: what flips on the ReLU's kink, and the additions of float32."""
    if of.power == 2:
        sums = of.values["P"].new_zeros(()).expand_as(of.p)
    else:
        sums = of.ds.double() * (U32 * long_sum(_addends(case, bias)))
    if of.kink is not None:
        sums = (sums + of.p * of.kink.delta).index_put_(of.kink.at, of.kink.ds, accumulate=True)
    return sums


def _addends(case: Case, bias: Tensor) -> int:
    if case.family == "lazy":
        return case.batch * case.seqlen_q
    return case.scores // max(1, torch.Size(expected_shapes(case)["dBias"]).numel())


def _least_dtau(of: Least, case: Case) -> Error:
    """By each row's sum of dP, what adds the rows up, and what flips there on the ReLU's kink."""
    i, dp = of.x.positions(of.tile)[0] + 1, of.values["dP"]
    rows = U32 * long_sum(case.batch * case.seqlen_q)
    of_terms = U32 * long_sum(of.x.n_key) * torch.linalg.vector_norm(dp, 1, dim=-1, keepdim=True) / i
    squares, sums = of_terms.square(), rows * dp.sum(-1, keepdim=True).abs() / i
    if of.precision.operand:
        of_dp = of_operands(of.do, of.v, of.precision) * of.values["valid"]
        squares = squares + of_dp.square_().sum(-1, keepdim=True) / i**2
    if of.kink is not None:
        sums = sums + of.kink.over_keys / i
    return squares.sum((-2, -1)), sums.sum((-2, -1))


def _least_dsink(of: Least, case: Case) -> Error:
    """By delta, LSE and the exponential of each row, and what adds the rows up."""
    sinks, lse, delta = of.x.sinks, of.values["LSE"], of.values["delta"]
    assert sinks is not None
    sink, share = sinks[of.tile.heads, None], sink_weight(of.x, of.tile, lse)
    argument = ((sink - lse).abs() + 2 * sink.abs()).nan_to_num(posinf=0.0)
    relative = of.common[..., 0] + U32 * (argument + 3) + U_FUNCTION
    squares = (share * of.delta[..., 0]) ** 2 + (share * delta * relative) ** 2
    return squares.sum(-1), U32 * long_sum(case.batch * case.seqlen_q) * (share * delta).abs().sum(-1)


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
    least: Callable[[Least, Case], Error]


TOTALS = {
    "dBias": Total("bias", "dT", lambda x, tile, values, dt: like_bias(x, tile, dt), _dbias, _least_dbias),
    "dTau": Total("tau", "dP", _by_position, _dtau, _least_dtau),
    "dSink": Total("sinks", "delta", _by_sink, _dsink, _least_dsink),
}


def totals_of(x: Attention, tile: Tile, values: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By how much errors of dT, dP and delta move a tile's shares of the totals that a problem has."""
    exist = {name: one for name, one in TOTALS.items() if one.of in given and getattr(x, one.needs) is not None}
    return {name: one.summed(x, tile, values, given[one.of]).abs() for name, one in exist.items()}


class Totals:
    """What of these a trace has, added up block by block and tile by tile."""

    def __init__(self, case: Case, names: Collection[str], like: Tensor) -> None:
        self.case = case
        shapes = {name: shape for name, shape in expected_shapes(case).items() if name in TOTALS and name in names}
        self.expected, self._squares, self._sums = (
            {name: torch.zeros(shape, dtype=torch.double, device=like.device) for name, shape in shapes.items()}
            for _ in range(3)
        )

    def add(self, block: Block, of: Least) -> None:
        """Adds a tile of a block."""
        for name in self.expected:
            shares = (of.values[name], *TOTALS[name].least(of, self.case))
            for whole, share in zip((self.expected, self._squares, self._sums), shares, strict=True):
                part = block.of(whole[name], self.case.axes(name))
                part = of.x.bias_part(part, of.tile) if name == "dBias" else part[of.tile.heads]
                part.add_(share)

    def bound(self, name: str, precision: Precision) -> Tensor:
        """What each element is allowed at least, once all tiles are added."""
        own = self._squares[name].nan_to_num(0.0, 0.0, 0.0).sqrt() + self._sums[name].nan_to_num(0.0, 0.0, 0.0)
        return own + (2 * precision.operand + 2 * U32) * self.expected[name].abs() + TINY
