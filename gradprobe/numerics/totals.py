"""Totals, to which all rows of all batches add: what they sum, and what they are allowed, at most and at least."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, Tile
from ..reference.lazy import sum_by_distance
from ..reference.softmax import distance, sink_weight
from ..runtime.run import expected_shapes
from .bounds import Chain
from .declared_precision import TINY, U32, U_FUNCTION, Precision, Tensors, long_sum

if TYPE_CHECKING:
    from .least import LowerBounds

Error = tuple[Tensor, Tensor]
"""What a tile adds to the squares of independent errors, and what it adds as it is."""
# What squares and products of a few float32 numbers may be too large by.
SURELY = 1 - 2.0**-18


def like_bias(x: Attention, tile: Tile, matrix: Tensor) -> Tensor:
    """A matrix [h, m, N] summed as dBias sums dT, in the shape of the tile's part of the bias."""
    assert x.bias is not None
    if x.family == "lazy":
        i, j = x.positions(tile)
        return sum_by_distance(matrix, i - j, x.bias.shape[1])
    return matrix.sum_to_size(x.bias_part(x.bias, tile).shape)


def _by_position(x: Attention, tile: Tile, values: Tensors, matrix: Tensor) -> Tensor:
    """[h] a matrix [h, m, N] summed as dTau sums dP."""
    return (matrix / (x.positions(tile)[0] + 1)).sum((-2, -1))


def _by_sink(x: Attention, tile: Tile, values: Tensors, rows: Tensor) -> Tensor:
    """[h] numbers of rows [h, m] summed as dSink sums delta."""
    return -(sink_weight(x, tile, values["LSE"]) * rows).sum(-1)


def _by_distance(x: Attention, tile: Tile, values: Tensors, matrix: Tensor) -> Tensor:
    """[h] a matrix [h, m, N] summed as dAlibi sums dT."""
    return -(distance(x, tile) * matrix).sum((-2, -1))


def by_row(chain: Chain, ds: Tensor) -> Tensor:
    return chain.i_ds + (chain.p * chain.i_delta) ** 2 + (ds * chain.common) ** 2


def _dt(chain: Chain) -> Tensor:
    """dS before softcap's derivative."""
    return chain.ds if chain.x.softcap is None else chain.p * (chain.dp - chain.delta)


def _dbias(chain: Chain) -> Error:
    """The sum of dT."""
    x, dt = chain.x, _dt(chain)
    assert x.bias is not None
    along_rows, addends = False, x.n_batch * x.n_query
    if x.family == "softmax":
        addends = addends * x.n_heads * x.n_key // x.bias.numel()
        along_rows = x.n_key > 1 and (x.bias.dim() == 0 or x.bias.shape[-1] == 1)
    squares = by_row(chain, dt)
    if along_rows:  # the errors of a row's delta and its LSE add up as they are
        p, row, own = (one.sum(-1, keepdim=True) for one in (chain.p, dt, chain.i_ds))
        squares = own + (p * chain.i_delta) ** 2 + (row * chain.common) ** 2
    sums = like_bias(x, chain.tile, chain.kink_ds + U32 * long_sum(addends) * dt.abs())
    cut = like_bias(x, chain.tile, chain.p * chain.cut_delta).abs()
    return like_bias(x, chain.tile, squares), sums + cut


def _dtau(chain: Chain) -> Error:
    """Each row's sum errs on its own, by its terms; what adds the rows up errs by their sums."""
    x, i = chain.x, chain.x.positions(chain.tile)[0] + 1
    rows, of_key = U32 * long_sum(x.n_batch * x.n_query), U32 * long_sum(x.n_key)
    of_terms = of_key * (chain.dp.abs() + chain.flip).sum(-1, keepdim=True) / i
    of_rows = rows * chain.dp.sum(-1, keepdim=True).abs() / i
    squares = ((chain.i_dp / i) ** 2).sum(-1, keepdim=True) + of_terms**2
    flips = (chain.flip / i).sum(-1, keepdim=True) * (1 + rows)
    return squares.sum((-2, -1)), (of_rows + flips).sum((-2, -1))


def _sink_error(
    x: Attention, tile: Tile, values: Tensors, e_lse: Tensor, e_delta: Tensor, addends: int
) -> Error:  # fmt: skip
    """-sum of w * delta, with w = exp(sink - LSE), which errs by what LSE does [h, m] and as an exponential does.

    One rounding each: the product with delta, its sign or scale, and what sums a block of rows.
    """
    assert x.sinks is not None
    sink, lse = x.sinks[tile.heads, None], values["LSE"]
    argument = ((sink - lse).abs() + 2 * sink.abs()).nan_to_num(posinf=0.0)
    w, relative = sink_weight(x, tile, lse), e_lse + U32 * (argument + 3) + U_FUNCTION
    share = (w * values["delta"]).abs()
    squares = (w * e_delta + share * relative) ** 2
    return squares.sum(-1), U32 * long_sum(addends) * share.sum(-1)


def _dsink(chain: Chain) -> Error:
    x, e_lse, e_delta = chain.x, chain.e_lse[..., 0], chain.e_delta[..., 0]
    addends = x.n_batch * x.n_query
    squares, sums = _sink_error(x, chain.tile, chain.values, e_lse, e_delta, addends)
    cut = sink_weight(x, chain.tile, chain.values["LSE"]) * chain.cut_delta[..., 0]
    return squares, sums + cut.sum(-1).abs()


def _dalibi(chain: Chain) -> Error:
    """-sum of |diagonal - j| * dT. The errors of a row's delta and its LSE add up as they are.

    As of dTau, each row's sum errs on its own, by its terms; what adds the rows up errs by their sums.
    """
    x, far, dt = chain.x, distance(chain.x, chain.tile), _dt(chain)
    p, row = (far * chain.p).sum(-1), (far * dt).sum(-1)
    # The product with the distance is one rounding more.
    of_terms = U32 * (long_sum(x.n_key) + 1) * (far * dt.abs()).sum(-1)
    squares = (far**2 * chain.i_ds).sum(-1) + of_terms**2
    squares = squares + (p * chain.i_delta[..., 0]) ** 2 + (row * chain.common[..., 0]) ** 2
    of_rows = U32 * long_sum(x.n_batch * x.n_query) * row.abs()
    return squares.sum(-1), of_rows.sum(-1) + (p * chain.cut_delta[..., 0]).sum(-1).abs()


def _least_dbias(bounds: LowerBounds, case: Case) -> Error:
    """By what a row's delta errs, and what rounds each term or their sum; softcap's derivative makes no term larger.

    Where all keys share a bias the errors of a row add up as they are; but not what LSE errs by, as dS sums to 0. What
    flips on the ReLU's kink, and the additions of float32, add up as they are.
    """
    from .least import finite, sizes, weight

    x, tile, is_softmax = bounds.x, bounds.tile, case.family == "softmax"
    assert x.bias is not None
    is_of_rows = is_softmax and x.n_key > 1 and x.bias.shape[-1] == 1
    p, by = bounds.p, bounds.common.float()
    if is_of_rows:
        p, by = bounds.values["P"].sum(-1, keepdim=True).float(), by.new_tensor(U_FUNCTION)
    if bounds.power == 2:
        terms = bounds.ds * weight(bounds.precision, 1) ** 2
        sums = bounds.values["P"].new_zeros(bounds.p.shape)
    else:
        terms = (bounds.ds * by).square_()
        addends = case.scores // max(1, math.prod(expected_shapes(case)["dBias"]))
        addends = addends if is_softmax else case.batch * case.seqlen_q
        sums = bounds.ds.double() * (U32 * long_sum(addends))
    if is_softmax:  # a bias may be of few terms each, or of one
        terms.add_((bounds.p * sizes(bounds.dp)).square_())
    terms = terms.sum(-1, keepdim=True, dtype=torch.double) if is_of_rows else terms
    squares = finite((p.square() * sizes(bounds.delta, 2) + terms).double())
    if (kink := bounds.kink) is not None:
        sums = (sums + bounds.p * kink.delta).index_put_(kink.at, kink.ds, accumulate=True)
    squares, sums = (SURELY * like_bias(x, tile, one) for one in (squares, finite(sums)))
    return squares, sums


def _least_dtau(bounds: LowerBounds, case: Case) -> Error:
    """By each row's sum of dP, what adds the rows up, and what flips there on the ReLU's kink."""
    i, dp = bounds.x.positions(bounds.tile)[0] + 1, bounds.values["dP"]
    size = torch.linalg.vector_norm(dp, 1, dim=-1, keepdim=True)
    squares = (U32 * long_sum(bounds.x.n_key) * size / i).square()
    sums = U32 * long_sum(case.batch * case.seqlen_q) * dp.sum(-1, keepdim=True).abs() / i
    if bounds.precision.operand:
        from .least import of_operands

        of_dp = of_operands(bounds.do, bounds.v, bounds.precision) * bounds.values["valid"]
        squares = squares + of_dp.square_().sum(-1, keepdim=True) / i**2
    if bounds.kink is not None:
        sums = sums + bounds.kink.over_keys / i
    return squares.sum((-2, -1)), sums.sum((-2, -1))


def _least_dsink(bounds: LowerBounds, case: Case) -> Error:
    e_lse, e_delta = bounds.common[..., 0], bounds.delta[..., 0]
    about = bounds.x, bounds.tile, bounds.values
    return _sink_error(*about, e_lse, e_delta, case.batch * case.seqlen_q)


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
    summed: Callable[[Attention, Tile, Tensors, Tensor], Tensor]
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


def totals_of(x: Attention, tile: Tile, values: Tensors, given: Tensors) -> dict[str, Tensor]:
    """By how much errors of dT, dP and delta move a tile's shares of the totals that a problem has."""
    return {
        name: one.summed(x, tile, values, given[one.of]).abs()
        for name, one in TOTALS.items()
        if one.of in given and getattr(x, one.needs) is not None
    }


# Elements of a block's results that are held at once in float64.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Block:
    """One batch, some key heads, and the query heads that read them: what can be judged apart from all else."""

    batch: int
    kv_heads: slice
    heads: slice

    def of(self, tensor: Tensor, axes: str) -> Tensor:
        """A tensor's part, a view of it, with a batch axis of 1; `axes` as in the table of intermediates."""
        parts = {"b": slice(self.batch, self.batch + 1), "h": self.heads, "g": self.kv_heads}
        place = tuple(parts.get(letter, slice(None)) for letter in axes)
        return tensor[place] if axes else tensor

    def inputs(self, case: Case, values: Tensors) -> dict[str, Tensor]:
        return {name: self.of(value, case.input_axes(name)) for name, value in values.items()}

    def case(self, case: Case) -> Case:
        """The case of a block's tensors."""
        sizes = (part.stop - part.start for part in (self.heads, self.kv_heads))
        return replace(case.with_heads(*sizes), batch=1)


def block_at(case: Case, batch: int, kv_head: int, kv_heads: int = 1) -> Block:
    """The block of some key heads."""
    group, end = case.heads // case.kv_heads, kv_head + kv_heads
    return Block(batch, slice(kv_head, end), slice(kv_head * group, end * group))


def blocks(case: Case, kv_heads: int = 0) -> Iterator[Block]:
    """A case cut into blocks of at most so many key heads; 0 for as many as fit."""
    longest, dim = max(case.seqlen_q, case.seqlen_k), max(case.head_dim, case.head_dim_v)
    kv_heads = kv_heads or max(1, _AT_ONCE * case.kv_heads // (longest * dim * case.heads))
    for batch in range(case.batch):
        for first in range(0, case.kv_heads, kv_heads):
            yield block_at(case, batch, first, min(kv_heads, case.kv_heads - first))


class Totals:
    """What of these a trace has, added up block by block and tile by tile."""

    def __init__(self, case: Case, names: Collection[str], like: Tensor) -> None:
        self.case = case
        shapes = {name: shape for name, shape in expected_shapes(case).items() if name in names}
        self.expected, self._squares, self._sums = (
            {
                name: like.new_zeros(shapes[name], dtype=torch.double)
                for name in TOTALS
                if name in shapes
            }
            for _ in range(3)
        )

    def add(self, block: Block, bounds: LowerBounds) -> None:
        """Adds a tile of a block."""
        for name, expected in self.expected.items():
            wholes = expected, self._squares[name], self._sums[name]
            shares = bounds.values[name], *TOTALS[name].least(bounds, self.case)
            for whole, share in zip(wholes, shares, strict=True):
                part = block.of(whole, self.case.axes(name))
                if name == "dBias":
                    bounds.x.bias_part(part, bounds.tile).add_(share)
                else:
                    part[bounds.tile.heads].add_(share)

    def bound(self, name: str, precision: Precision) -> Tensor:
        """What each element is allowed at least, once all tiles are added."""
        squares, sums = (
            of[name].nan_to_num(0.0, 0.0, 0.0) for of in (self._squares, self._sums)
        )
        common = 2 * precision.operand + 2 * U32
        return squares.sqrt() + sums + common * self.expected[name].abs() + TINY
