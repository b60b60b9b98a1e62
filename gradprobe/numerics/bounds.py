"""What scores may err by: the dot, softcap's tanh, and what is added before the exponential."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..model.number import LAMBDA
from ..reference import Attention, Tile
from ..reference.problem import kept_share
from ..reference.softmax import distance, sink_weight
from .declared_precision import (
    TINY,
    U32,
    U_FUNCTION,
    U_TENSOR_CORE,
    Precision,
    dot_error,
    long_sum,
)

# tanh of a GPU's special function unit (PTX ISA, tanh.approx.f32), which FlashAttention's softcap uses.
U_TANH = 2.0**-11


def score_error(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
) -> Tensor:
    """[h, m, N] the bound of each score's error, 0 where no key is seen; what is rounded to 16 bits is apart.

    The scale, the unit of the logarithm and softcap's factor round a score once each. Each addition rounds the sum so
    far; before it, the unit of the logarithm rounds a bias, and that and the product with the distance round alibi.
    """
    q, k, _, _ = x.tensors(tile)
    raw = x.scale * q @ k.mT
    error = (
        abs(x.scale) * dot_error(q, k.mT, precision, unit=precision.operand) + 3 * U32 * raw.abs()
    )
    so_far = raw.abs()
    if x.softcap is not None:
        # By way of exp (2 sigmoid(2 z) - 1 is common) tanh errs by two units in the last place of 1, not of itself.
        so_far = x.softcap * (raw / x.softcap).tanh().abs()
        error = error + x.softcap * U_FUNCTION + hardware_tanh_error(x, tile, precision)
    for term, roundings in _added(x, tile, values, raw):
        so_far = so_far + term
        error = error + U32 * (so_far + roundings * term)
    return error * values["valid"]


def score_roundings(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
) -> tuple[Tensor | float, Tensor | float]:
    """[h, m, N] what scores in 16 bits may err by, added up and in quadrature; (0, 0) where they are float32.

    The product is rounded, again when it is scaled and in the unit of the logarithm, and softcap's tanh and its factor;
    then the sum with each term, and last the difference from the row's maximum.
    """
    if not (unit := precision.roundings("S")):
        return 0.0, 0.0
    q, k, _, _ = x.tensors(tile)
    raw, valid = x.scale * q @ k.mT, values["valid"]
    so_far = raw.abs()
    rounded = [so_far, so_far]
    if x.softcap is not None:
        so_far = x.softcap * (so_far / x.softcap).tanh()
        rounded += [so_far, so_far]
    for term, _ in _added(x, tile, values, raw):
        so_far = so_far + term
        rounded += [term, so_far]
    final = values["S"].masked_fill(~valid, 0.0)
    most = values["S"].amax(-1, keepdim=True).clamp(min=-torch.finfo(torch.float32).max)
    rounded += [final, (final - most).abs()]
    once = [unit * one.expand_as(valid) * valid for one in rounded]
    return torch.stack(once).sum(0), torch.stack(once).square().sum(0).sqrt()


def hardware_tanh_error(x: Attention, tile: Tile, precision: Precision) -> Tensor | float:
    """[h, m, N] what the hardware's tanh may cost a capped score, in kernels whose products are coarser than float32.

    It is at most this, as a single rounding is, so in quadrature it counts LAMBDA times.
    """
    if x.softcap is None or not precision.matrix:
        return 0.0
    q, k, _, _ = x.tensors(tile)
    return U_TANH * x.softcap * (x.scale * q @ k.mT / x.softcap).tanh().abs()


def _added(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], raw: Tensor
) -> Iterator[tuple[Tensor, int]]:
    """The size of each term that is added to a score, and how often it was rounded before."""
    if (
        x.family == "lazy"
    ):  # bias is read by distance: what the reference added is what is no score
        if x.bias is not None:
            yield (values["S"].masked_fill(~values["valid"], 0.0) - raw).abs(), 1
        return
    if x.bias is not None:
        yield x.bias_part(x.bias, tile).abs().nan_to_num(posinf=0.0), 1
    if x.alibi is not None:
        # A row's probabilities do not depend on what all its scores share, so slope * j does as well as
        # slope * distance in a causal kernel, and is up to N slopes large.
        yield x.alibi[tile.heads, None, None].abs() * distance(x, tile).clamp(min=x.n_key), 2


# Where scores err by as much, nothing about P is bounded any more.
UNBOUNDED = 50.0


class Chain:
    """The error analysis of one tile, intermediate after intermediate.

    `e_` are bounds of whole errors; `i_` of the independent part of a matrix's error, which sums in quadrature.
    """

    def __init__(
        self, x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
    ) -> None:
        self.x, self.tile, self.precision = x, tile, precision
        self.q, self.k, self.v, self.do = x.tensors(tile)
        self.valid, self.dpe = values["valid"], values["dPE"]
        self.p, self.dp, self.ds = values["P"], values["dP"], values["dS"]
        self.delta, self.lse = values["delta"][..., None], values["LSE"][..., None]
        self.values = values
        share = kept_share(x, tile)
        # keep / (1 - p) as dropout has it, of which 1 / (1 - p) and the product with it round once each.
        self.share = (
            share if share is not None else torch.ones((), dtype=torch.float64, device=x.q.device)
        )
        self.u_drop = 2 * U32 if x.dropout else 0.0
        # TF32 rounds both operands of the dots over rows, 16-bit kernels only the computed one.
        self.operands = 2**0.5 if precision.operand else 1.0
        exact, (added, independent) = (
            score_error(x, tile, values, precision),
            score_roundings(x, tile, values, precision),
        )
        self.e_s = exact + added
        self.i_s = (
            exact
            + (LAMBDA - 1) * hardware_tanh_error(x, tile, precision) * self.valid
            + LAMBDA * independent
        )
        self._normalisation()
        self._probabilities()
        self._gradients_of_probabilities()
        self._gradients_of_scores()

    def rows(self) -> dict[str, Tensor]:
        """The whole bounds of what belongs to the tile's rows."""
        rows = {"LSE": self.e_lse[..., 0], "P": self.e_p, "O": self.e_o, "dP": self.e_dp}
        return {**rows, "delta": self.e_delta[..., 0], "dS": self.e_ds, "dQ": self._dq()}

    def _normalisation(self) -> None:
        """LSE's own error, and what all entries of a row share after normalisation."""
        x = self.x
        lse = self.lse.masked_fill(self.lse == -float("inf"), 0.0)
        own = U32 * (lse.abs() + 2 + long_sum(x.n_key)) + U_FUNCTION
        if (
            x.alibi is not None
        ):  # LSE is rounded as it is kept, with what alibi adds to the whole row
            own = own + U32 * x.alibi[self.tile.heads, None, None].abs() * x.n_key
        of_scores = (self.p * self.e_s).sum(-1, keepdim=True)
        # Independent errors of the scores average out in LSE.
        shared = ((self.p * self.i_s) ** 2).sum(-1, keepdim=True).sqrt()
        if x.sinks is not None:
            # The sink is one more term of the sum; its logit is rounded into another unit, and its distance from LSE.
            sink = x.sinks[self.tile.heads, None, None]
            weight = sink_weight(x, self.tile, self.values["LSE"])[..., None].clamp(max=1.0)
            away = (sink - lse).abs().nan_to_num(posinf=0.0)
            own = own + weight * (
                U32 * (2 * sink.abs().nan_to_num(posinf=0.0) + away) + U_FUNCTION
            )
            # What all scores err by alike cancels in P only against a sum of these scores, not against a sink.
            shared = shared + weight * of_scores / self.p.sum(-1, keepdim=True).clamp(min=TINY)
        self.e_lse, self.common = of_scores + own, shared + own

    def _probabilities(self) -> None:
        lse = self.lse.masked_fill(self.lse == -float("inf"), 0.0)
        argument = self.values["S"].masked_fill(~self.valid, 0.0) - lse
        r_p = (U32 * argument.abs() + U_FUNCTION) * self.valid
        self.i_p = self.p * (self.i_s + r_p + LAMBDA * self.precision.roundings("P"))
        # A finite number keeps 0 * bound at 0.
        relative = (
            (self.e_s + r_p + self.e_lse + self.precision.roundings("P"))
            .clamp(max=UNBOUNDED)
            .expm1()
        )
        self.e_p = (self.p.abs() * relative + TINY) * self.valid
        self.live, self.undecided = self.valid, torch.zeros_like(self.valid)
        self.e_z, self.weight = torch.zeros_like(self.p), self.p.abs()
        if self.x.family == "lazy":
            self._lazy_mask()
        unit, floor = self.precision.matrix, self.precision.floor
        pe = self.values["PE"]
        # A kernel may round P before it is divided by 1 - p: its floor then grows with it.
        rounding = (self.operands * LAMBDA * unit * pe) ** 2 + (
            LAMBDA * floor * self.share
        ) ** 2 * self.valid
        dropping = (self.u_drop * pe) ** 2
        self.i_pe = rounding + (self.share * self.i_p) ** 2 * self.live + self.e_z**2 + dropping
        self.s_pe = (self.share * self.p * self.common).abs() * self.live
        tiles = self.tile_roundings(pe @ self.v, pe**2 @ self.v**2, self.x.n_key)
        self.e_o = (
            (self.i_pe @ self.v**2 + tiles).sqrt()
            + self.s_pe @ self.v.abs()
            + dot_error(pe, self.v, self.precision, terms=self.x.n_key)
        )

    def _lazy_mask(self) -> None:
        """Which entries the ReLU lets through, and where rounding alone decides."""
        assert self.x.tau is not None
        i, _ = self.x.positions(self.tile)
        floor = (self.x.tau[self.tile.heads, None, None] / (i + 1)).abs()
        # The division tau / (i + 1) of a GPU is good to two units in the last place, as its functions are.
        self.e_z = (U_FUNCTION * floor + U32 * (self.p.abs() + floor)) * self.valid
        z = self.p + self.x.tau[self.tile.heads, None, None] / (i + 1)
        self.live = self.valid & (z >= -(self.e_p + self.e_z))
        self.undecided = self.live & (z <= self.e_p + self.e_z)
        self.e_z = self.e_z * self.live
        self.weight = self.p.abs().maximum(self.values["PE"])

    def _gradients_of_probabilities(self) -> None:
        # dP itself is held to either of the two values that a flip leaves, so its own bound needs no room for one.
        dot = dot_error(self.do, self.v.mT, self.precision, unit=self.precision.operand)
        exact = self.share * dot + self.u_drop * self.dpe.abs()
        # dO V^T is rounded, and what dropout makes of it.
        rounded = (
            (2.0 if self.x.dropout else 1.0) * self.precision.roundings("dP") * self.dpe.abs()
        )
        self.unmasked_dp, self.e_dp = exact + rounded, (exact + rounded) * self.valid
        self.i_dp = (exact + LAMBDA * rounded) * self.valid
        # What a flip moves is the kernel's own rounded dO V^T, at the kernel's own P: where all of a row flips, the
        # expected sums are 0 and their roundings show in nothing else.
        self.flip = self.undecided * (self.dpe.abs() + self.unmasked_dp)
        # delta: from P and dP, or from dO and the rounded O = PE V, less tau's share; either is within what is allowed
        # here. In lazy the larger of P and PE bounds the terms of both. Under dropout PE dO V^T is P dP, term by term.
        pe, o, weight = self.values["PE"], self.values["O"], self.weight
        dp = self.dp.abs().maximum(self.flip)
        terms, d_terms = weight * dp, (self.do * o).abs()
        unit = self.precision.matrix if self.precision.matrix > 0 else U32
        of_dp = self.precision.roundings("dP")  # of the products that are summed, and of the sum
        floor = self.precision.floor * self.valid.any(-1, keepdim=True)
        of_pe = self.i_p**2 + self.e_z**2 + (LAMBDA * self.precision.floor) ** 2 * self.valid
        independent = of_pe * dp**2 + (weight * self.i_dp) ** 2
        rounded = (terms**2).sum(-1, keepdim=True) + (d_terms**2).sum(-1, keepdim=True)
        of_o = dot_error(
            pe, self.v, self.precision, unit=self.precision.operand, terms=self.x.n_key
        )
        products = (self.do * of_o) ** 2
        self.flip_growth = 1 + 2 * unit + U32 * (long_sum(self.x.n_key) + 3)
        self.k_delta = ((self.p.abs() + self.e_p) * self.flip).sum(
            -1, keepdim=True
        ) * self.flip_growth
        self.i_delta = (
            independent.sum(-1, keepdim=True).sqrt()
            + products.sum(-1, keepdim=True).sqrt()
            + LAMBDA * math.hypot(unit, of_dp) * rounded.sqrt()
            + LAMBDA * floor * (self.do**2).sum(-1, keepdim=True).sqrt()
            # tau / (i + 1) is one number for the row.
            + (self.e_z * self.dp).sum(-1, keepdim=True).abs()
            + (self.e_z * self.flip).sum(-1, keepdim=True)
            + self.common * self.delta.abs()
            + U32 * long_sum(self.x.n_key) * terms.sum(-1, keepdim=True)
            + U32 * long_sum(d_terms.shape[-1]) * d_terms.sum(-1, keepdim=True)
            + of_dp * self.delta.abs()
        )
        self.e_delta = self.i_delta + self.k_delta
        self.cut_delta = self._cut(self.do * o, self.x.n_key)

    def _cut(self, products: Tensor, terms: int) -> Tensor:
        """What tensor cores take off delta in every row alike: they add towards zero, so O comes out smaller."""
        share = (
            self.precision.accumulate * long_sum(terms)
            if self.precision.accumulate >= U_TENSOR_CORE
            else 0.0
        )
        return share * products.sum(-1, keepdim=True)

    def _gradients_of_scores(self) -> None:
        p, spread = self.p.abs(), (self.dp - self.delta).abs()
        # dP may flip here in the kernel of dK and dV and not in that of delta, where P came of another dot: what either
        # flip moves is added, over every undecided entry of the row and this entry's own.
        self.kink_ds = (p + self.e_p) * (self.k_delta + self.flip) * self.flip_growth
        subtraction = 3 * U32 * p * (self.dp.abs() + self.delta.abs()) * self.valid
        cap = self._softcap_slope(self.e_s) * p * spread
        i_cap = self._softcap_slope(self.i_s) * p * spread
        # A kernel may round scale * dS: dS then has the floor of what is so much smaller.
        unit, least = self.precision.matrix, min(1.0, abs(self.x.scale) or 1.0)
        floor = self.precision.floor / (1 - self.x.dropout) / least
        # What is rounded is dS as it came out, with the errors of delta and the flips: the operand of the products, and
        # where that is declared dP - delta, and dS before and after it is scaled, and before softcap's derivative.
        came = self.ds.abs() + p * self.i_delta + self.kink_ds
        more = 1 + bool(self.precision.roundings("dP")) + 3 * bool(self.precision.roundings("dS"))
        rounding = more * (
            (self.operands * LAMBDA * unit * came) ** 2 + (LAMBDA * floor) ** 2 * self.valid
        )
        flushed = TINY * spread * self.valid
        self.i_ds = (
            rounding
            + (p * self.i_dp) ** 2
            + (self.i_p * spread) ** 2
            + subtraction**2
            + i_cap**2
            + flushed**2
        )
        of_operands = p * (self.e_dp + self.i_delta) + self.kink_ds + self.e_p * spread
        self.e_ds = (
            of_operands
            + subtraction
            + cap
            + more * (unit * self.ds.abs() + floor * self.valid)
            + flushed
        )

    def tile_roundings(self, total: Tensor, squares: Tensor, terms: int) -> Tensor | float:
        """The squared error of a sum that is rounded to 16 bits after every tile; 0 of one in float32.

        Of terms in any order, the sum after a share f of them is f times the whole one, and off that as a Brownian
        bridge is, by f (1 - f) of the sum of their squares: on average a third of its square and a sixth of those.
        """
        if not self.precision.tile:
            return 0.0
        tiles = (LAMBDA * self.precision.matrix) ** 2 * terms / self.precision.tile
        return tiles * (total**2 / 3 + squares / 6)

    def _softcap_slope(self, e_s: Tensor) -> Tensor:
        """|d/dS of the softcap's derivative| times the error of S, at most 2 / c of it, and its own rounding."""
        return e_s * (2.0 / self.x.softcap) + 2 * U32 if self.x.softcap else e_s * 0

    def _dq(self) -> Tensor:
        k = self.k
        squares = self.i_ds @ k**2 + self.tile_roundings(
            self.ds @ k, self.ds**2 @ k**2, self.x.n_key
        )
        error = (
            squares.sqrt() + self.i_delta * (self.p @ k).abs() + self.common * (self.ds @ k).abs()
        )
        error = (
            error
            + self.kink_ds @ k.abs()
            + dot_error(self.ds, k, self.precision, terms=self.x.n_key)
        )
        return abs(self.x.scale) * (error + 2 * U32 * (self.ds @ k).abs())
