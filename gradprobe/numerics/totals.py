"""Totals: dBias, dTau and dSink, to which all rows of all batches add, and what they are allowed at least."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from ..model.case import Case
from ..reference.attention import BY_HEAD
from ..reference.softmax import sink_weight
from ..runtime.trace import expected_shapes
from .blocks import Block
from .budget import Error
from .least import Least, of_operands, sizes, weight
from .precision import TINY, U32, U_FUNCTION, Precision, like_bias, long_sum

TOTALS = ("dBias", *BY_HEAD)
# What squares and products of a few float32 numbers may be too large by.
SURELY = 1 - 2.0**-18


def _dbias(of: Least, case: Case) -> Error:
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


def _dtau(of: Least, case: Case) -> Error:
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


def _dsink(of: Least, case: Case) -> Error:
    """By delta, LSE and the exponential of each row, and what adds the rows up."""
    sinks, lse, delta = of.x.sinks, of.values["LSE"], of.values["delta"]
    assert sinks is not None
    sink, share = sinks[of.tile.heads, None], sink_weight(of.x, of.tile, lse)
    argument = ((sink - lse).abs() + 2 * sink.abs()).nan_to_num(posinf=0.0)
    relative = of.common[..., 0] + U32 * (argument + 3) + U_FUNCTION
    squares = (share * of.delta[..., 0]) ** 2 + (share * delta * relative) ** 2
    return squares.sum(-1), U32 * long_sum(case.batch * case.seqlen_q) * (share * delta).abs().sum(-1)


_SHARES = {"dBias": _dbias, "dTau": _dtau, "dSink": _dsink}


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
            shares = (of.values[name], *_SHARES[name](of, self.case))
            for whole, share in zip((self.expected, self._squares, self._sums), shares, strict=True):
                part = block.of(whole[name], self.case.axes(name))
                part = of.x.bias_part(part, of.tile) if name == "dBias" else part[of.tile.heads]
                part.add_(share)

    def bound(self, name: str, precision: Precision) -> Tensor:
        """What each element is allowed at least, once all tiles are added."""
        own = self._squares[name].nan_to_num(0.0, 0.0, 0.0).sqrt() + self._sums[name].nan_to_num(0.0, 0.0, 0.0)
        return own + (2 * precision.operand + 2 * U32) * self.expected[name].abs() + TINY
