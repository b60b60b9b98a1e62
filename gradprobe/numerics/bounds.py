"""What the intermediates of a tile may err by: scores, and what follows; and next to nothing where all is exact."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..model.number import LAMBDA
from ..reference import Attention, Tile
from ..reference.problem import kept_share
from ..reference.softmax import distance, sink_weight
from .declared_precision import (
    EXACT,
    TINY,
    U32,
    U_FUNCTION,
    U_TENSOR_CORE,
    Precision,
    Tensors,
    dot_error,
    long_sum,
    nearest,
)

# tanh of a GPU's special function unit (PTX ISA, tanh.approx.f32), which FlashAttention's softcap uses.
U_TANH = 2.0**-11
# Where scores err by as much, nothing about P is bounded any more.
UNBOUNDED = 50.0


def score_errors(
    x: Attention, tile: Tile, values: Tensors, precision: Precision
) -> tuple[Tensor, Tensor]:
    """[h, m, N] the bound of each score's error, and the independent part of it; 0 where no key is seen.

    The scale, the unit of the logarithm and softcap's factor round a score once each. Each addition rounds the sum so
    far; before it, the unit of the logarithm rounds a bias, and that and the product with the distance round alibi.
    Scores in 16 bits err by what each of these roundings does, added up or in quadrature.
    """
    (q, k, _, _), valid = x.tensors(tile), values["valid"]
    raw = x.scale * q @ k.mT
    error = abs(x.scale) * dot_error(q, k.mT, precision, unit=precision.operand)
    error = error + 3 * U32 * raw.abs()
    so_far, hardware = raw.abs(), torch.zeros_like(raw)
    rounded = [so_far, so_far]  # the product, and again when it is scaled
    if x.softcap is not None:
        so_far = x.softcap * (raw / x.softcap).tanh().abs()
        # In kernels whose products are coarser than float32, at most this, as a single rounding is.
        hardware = U_TANH * so_far * valid if precision.matrix else hardware
        # By way of exp (2 sigmoid(2 z) - 1 is common) tanh errs by two units in the last place of 1, not of itself.
        error = error + x.softcap * U_FUNCTION + hardware
        rounded += [so_far, so_far]
    for term, roundings in _added(x, tile, values, raw):
        so_far = so_far + term
        error = error + U32 * (so_far + roundings * term)
        rounded += [term, so_far]
    error = error * valid
    independent = error + (LAMBDA - 1) * hardware  # in quadrature it counts LAMBDA times
    if not (unit := precision.roundings("S")):
        return error, independent
    final = values["S"].masked_fill(~valid, 0.0)
    most = values["S"].amax(-1, keepdim=True).clamp(min=-torch.finfo(torch.float32).max)
    rounded += [final, (final - most).abs()]
    once = torch.stack([unit * one.expand_as(valid) * valid for one in rounded])
    return error + once.sum(0), independent + LAMBDA * once.square().sum(0).sqrt()


def _added(
    x: Attention, tile: Tile, values: Tensors, raw: Tensor
) -> Iterator[tuple[Tensor, int]]:
    """The size of each term that is added to a score, and how often it was rounded before."""
    if x.family == "lazy":  # bias is read by distance: it is what the reference added
        if x.bias is not None:
            yield (values["S"].masked_fill(~values["valid"], 0.0) - raw).abs(), 1
        return
    if x.bias is not None:
        yield x.bias_part(x.bias, tile).abs().nan_to_num(posinf=0.0), 1
    if x.alibi is not None:
        # A row's probabilities do not depend on what all its scores share, so slope * j does as well as
        # slope * distance in a causal kernel, and is up to N slopes large.
        yield x.alibi[tile.heads, None, None].abs() * distance(x, tile).clamp(min=x.n_key), 2


def common_error(x: Attention, values: Tensors) -> Tensor:
    """[h, m, 1] what LSE errs by on its own, and with it all entries of a row."""
    lse = values["LSE"][..., None]
    size = lse.masked_fill(lse == -torch.inf, 0.0).abs()
    return U32 * (size + 2 + long_sum(x.n_key)) + U_FUNCTION


def _over_keys(of: Tensor) -> Tensor:
    return of.sum(-1, keepdim=True)


class Chain:
    """The error analysis of one tile, intermediate after intermediate.

    `e_` are bounds of whole errors; `i_` of the independent part of a matrix's error, which sums in quadrature.
    """

    def __init__(self, x: Attention, tile: Tile, values: Tensors, precision: Precision) -> None:
        self.x, self.tile, self.values, self.precision = x, tile, values, precision
        self.q, self.k, self.v, self.do = x.tensors(tile)
        self.valid, self.dpe = values["valid"], values["dPE"]
        self.p, self.dp, self.ds = values["P"], values["dP"], values["dS"]
        self.delta, self.lse = values["delta"][..., None], values["LSE"][..., None]
        self.finite_lse = self.lse.masked_fill(self.lse == -float("inf"), 0.0)
        share = kept_share(x, tile)
        # keep / (1 - p) as dropout has it, of which 1 / (1 - p) and the product with it round once each.
        self.share = self.lse.new_ones(()) if share is None else share
        self.u_drop = 2 * U32 if x.dropout else 0.0
        # TF32 rounds both operands of the dots over rows, 16-bit kernels only the computed one.
        self.operands = 2**0.5 if precision.operand else 1.0
        self.e_s, self.i_s = score_errors(x, tile, values, precision)
        self._normalisation()
        self._probabilities()
        self._gradients_of_probabilities()
        self._delta()
        self._gradients_of_scores()

    def rows(self) -> dict[str, Tensor]:
        """The whole bounds of what belongs to the tile's rows."""
        rows = {"LSE": self.e_lse[..., 0], "P": self.e_p, "O": self.e_o, "dP": self.e_dp}
        return {**rows, "delta": self.e_delta[..., 0], "dS": self.e_ds, "dQ": self._dq()}

    def _normalisation(self) -> None:
        """LSE's own error, and what all entries of a row share after normalisation."""
        x, lse, own = self.x, self.finite_lse, common_error(self.x, self.values)
        if x.alibi is not None:  # LSE is rounded as it is kept, with what alibi adds to the row
            own = own + U32 * x.alibi[self.tile.heads, None, None].abs() * x.n_key
        of_scores = _over_keys(self.p * self.e_s)
        # Independent errors of the scores average out in LSE.
        shared = _over_keys((self.p * self.i_s) ** 2).sqrt()
        if x.sinks is not None:
            # The sink is one more term of the sum; its logit is rounded into another unit, and its distance from LSE.
            sink = x.sinks[self.tile.heads, None, None]
            weight = sink_weight(x, self.tile, self.values["LSE"])[..., None].clamp(max=1.0)
            away, size = ((one).abs().nan_to_num(posinf=0.0) for one in (sink - lse, sink))
            own = own + weight * (U32 * (2 * size + away) + U_FUNCTION)
            # What all scores err by alike cancels in P only against a sum of these scores, not against a sink.
            shared = shared + weight * of_scores / _over_keys(self.p).clamp(min=TINY)
        self.e_lse, self.common = of_scores + own, shared + own

    def _probabilities(self) -> None:
        argument = self.values["S"].masked_fill(~self.valid, 0.0) - self.finite_lse
        r_p = (U32 * argument.abs() + U_FUNCTION) * self.valid
        of_rounding = self.precision.roundings("P")
        self.i_p = self.p * (self.i_s + r_p + LAMBDA * of_rounding)
        # A finite number keeps 0 * bound at 0.
        relative = (self.e_s + r_p + self.e_lse + of_rounding).clamp(max=UNBOUNDED).expm1()
        self.e_p = (self.p.abs() * relative + TINY) * self.valid
        self.live, self.undecided = self.valid, torch.zeros_like(self.valid)
        self.e_z, self.weight = torch.zeros_like(self.p), self.p.abs()
        if self.x.family == "lazy":
            self._lazy_mask()
        unit, floor, pe = self.precision.matrix, self.precision.floor, self.values["PE"]
        # A kernel may round P before it is divided by 1 - p: its floor then grows with it.
        floors = (LAMBDA * floor * self.share) ** 2 * self.valid
        rounding = (self.operands * LAMBDA * unit * pe) ** 2 + floors
        dropping = (self.u_drop * pe) ** 2
        self.i_pe = rounding + (self.share * self.i_p) ** 2 * self.live + self.e_z**2 + dropping
        self.s_pe = (self.share * self.p * self.common).abs() * self.live
        tiles = self.tile_roundings(pe @ self.v, pe**2 @ self.v**2, self.x.n_key)
        dot = dot_error(pe, self.v, self.precision, terms=self.x.n_key)
        self.e_o = (self.i_pe @ self.v**2 + tiles).sqrt() + self.s_pe @ self.v.abs() + dot

    def _lazy_mask(self) -> None:
        """Which entries the ReLU lets through, and where rounding alone decides."""
        assert self.x.tau is not None
        floor = self.x.tau[self.tile.heads, None, None] / (self.x.positions(self.tile)[0] + 1)
        z = self.p + floor
        # The division tau / (i + 1) of a GPU is good to two units in the last place, as its functions are.
        of_floor = U_FUNCTION * floor.abs() + U32 * (self.p.abs() + floor.abs())
        self.e_z = of_floor * self.valid
        self.live = self.valid & (z >= -(self.e_p + self.e_z))
        self.undecided = self.live & (z <= self.e_p + self.e_z)
        self.e_z = self.e_z * self.live
        self.weight = self.p.abs().maximum(self.values["PE"])

    def _gradients_of_probabilities(self) -> None:
        # dP itself is held to either of the two values that a flip leaves, so its own bound needs no room for one.
        dot = dot_error(self.do, self.v.mT, self.precision, unit=self.precision.operand)
        exact = self.share * dot + self.u_drop * self.dpe.abs()
        # dO V^T is rounded, and what dropout makes of it.
        times = 2.0 if self.x.dropout else 1.0
        rounded = times * self.precision.roundings("dP") * self.dpe.abs()
        self.unmasked_dp, self.e_dp = exact + rounded, (exact + rounded) * self.valid
        self.i_dp = (exact + LAMBDA * rounded) * self.valid
        # What a flip moves is the kernel's own rounded dO V^T, at the kernel's own P: where all of a row flips, the
        # expected sums are 0 and their roundings show in nothing else.
        self.flip = self.undecided * (self.dpe.abs() + self.unmasked_dp)

    def _delta(self) -> None:
        """From P and dP, or from dO and the rounded O = PE V, less tau's share; either is within what is allowed here.

        In lazy the larger of P and PE bounds the terms of both. Under dropout PE dO V^T is P dP, term by term.
        """
        precision, n_key = self.precision, self.x.n_key
        pe, o, dp = self.values["PE"], self.values["O"], self.dp.abs().maximum(self.flip)
        terms, d_terms = self.weight * dp, (self.do * o).abs()
        unit = precision.matrix if precision.matrix > 0 else U32
        of_dp = precision.roundings("dP")  # of the products that are summed, and of the sum
        floor = LAMBDA * precision.floor * self.valid.any(-1, keepdim=True)
        of_pe = self.i_p**2 + self.e_z**2 + (LAMBDA * precision.floor) ** 2 * self.valid
        independent = of_pe * dp**2 + (self.weight * self.i_dp) ** 2
        of_o = dot_error(pe, self.v, precision, unit=precision.operand, terms=n_key)
        rounded = _over_keys(terms**2) + _over_keys(d_terms**2)
        self.flip_growth = 1 + 2 * unit + U32 * (long_sum(n_key) + 3)
        self.k_delta = _over_keys((self.p.abs() + self.e_p) * self.flip) * self.flip_growth
        self.i_delta = (
            _over_keys(independent).sqrt()
            + _over_keys((self.do * of_o) ** 2).sqrt()
            + LAMBDA * math.hypot(unit, of_dp) * rounded.sqrt()
            + floor * _over_keys(self.do**2).sqrt()
            # tau / (i + 1) is one number for the row.
            + _over_keys(self.e_z * self.dp).abs()
            + _over_keys(self.e_z * self.flip)
            + self.common * self.delta.abs()
            + U32 * long_sum(n_key) * _over_keys(terms)
            + U32 * long_sum(d_terms.shape[-1]) * _over_keys(d_terms)
            + of_dp * self.delta.abs()
        )
        self.e_delta = self.i_delta + self.k_delta
        # What tensor cores take off delta in every row alike: they add towards zero, so O comes out smaller.
        cuts = precision.accumulate >= U_TENSOR_CORE
        share = precision.accumulate * long_sum(n_key) if cuts else 0.0
        self.cut_delta = share * _over_keys(self.do * o)

    def _gradients_of_scores(self) -> None:
        p, spread = self.p.abs(), (self.dp - self.delta).abs()
        # dP may flip here in the kernel of dK and dV and not in that of delta, where P came of another dot: what either
        # flip moves is added, over every undecided entry of the row and this entry's own.
        self.kink_ds = (p + self.e_p) * (self.k_delta + self.flip) * self.flip_growth
        subtraction = 3 * U32 * p * (self.dp.abs() + self.delta.abs()) * self.valid
        cap, i_cap = (self._softcap_slope(of) * p * spread for of in (self.e_s, self.i_s))
        # A kernel may round scale * dS: dS then has the floor of what is so much smaller.
        unit, least = self.precision.matrix, min(1.0, abs(self.x.scale) or 1.0)
        floor = self.precision.floor / (1 - self.x.dropout) / least
        # What is rounded is dS as it came out, with the errors of delta and the flips: the operand of the products, and
        # where that is declared dP - delta, and dS before and after it is scaled, and before softcap's derivative.
        came = self.ds.abs() + p * self.i_delta + self.kink_ds
        rounds_dp, rounds_ds = (bool(self.precision.roundings(name)) for name in ("dP", "dS"))
        more = 1 + rounds_dp + 3 * rounds_ds
        floors = (LAMBDA * floor) ** 2 * self.valid
        rounding = more * ((self.operands * LAMBDA * unit * came) ** 2 + floors)
        flushed = TINY * spread * self.valid
        of_factors = (p * self.i_dp) ** 2 + (self.i_p * spread) ** 2
        self.i_ds = rounding + of_factors + subtraction**2 + i_cap**2 + flushed**2
        of_operands = p * (self.e_dp + self.i_delta) + self.kink_ds + self.e_p * spread
        once = more * (unit * self.ds.abs() + floor * self.valid)
        self.e_ds = of_operands + subtraction + cap + once + flushed

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
        k, n_key, total = self.k, self.x.n_key, self.ds @ self.k
        squares = self.i_ds @ k**2 + self.tile_roundings(total, self.ds**2 @ k**2, n_key)
        of_rows = self.i_delta * (self.p @ k).abs() + self.common * total.abs()
        dot = dot_error(self.ds, k, self.precision, terms=n_key)
        error = squares.sqrt() + of_rows + self.kink_ds @ k.abs() + dot
        return abs(self.x.scale) * (error + 2 * U32 * total.abs())


# Of what is 1 or more: far above float64's own roundings, and far below those that matter.
_NOTHING = 2.0**-40


def is_exact(x: Attention, tile: Tile, values: Tensors, precision: Precision) -> bool:
    """Whether a right kernel rounds nothing of a tile to 16 bits; O of the lazy family but by what tau adds."""
    free = {"O": _of_tau(x, tile, values) @ x.tensors(tile)[2].abs()}
    for name in ("P", "O", "dP", "delta", "dS"):
        off = (values[name] - nearest(precision, values[name])).abs()
        if not bool((off <= _NOTHING * (1 + values[name].abs()) + free.get(name, 0.0)).all()):
            return False
    return True


def _of_tau(x: Attention, tile: Tile, values: Tensors) -> Tensor:
    """[h, m, N] the part of PE that is not P: tau / (i + 1) where the ReLU lets it through."""
    share = kept_share(x, tile)
    return (values["PE"] - (values["P"] if share is None else values["P"] * share)).abs()


def companions(x: Attention, tile: Tile, values: Tensors) -> dict[str, Tensor]:
    """What each intermediate of a tile, dPE = dO V^T included, may err by where every rounding to 16 bits is exact.

    What is left is float32's. P comes of two functions, log and exp, good to 2^-22 each, and of a few roundings of
    2^-24: it errs by less than 2^-20 of itself. All else is sums of terms in which P is a factor. They round less than
    that: terms of a few bits add up without any rounding until their sum has 24. So a value errs by less than 2^-20 of
    the sum of its terms' absolute values, its companion, and LAMBDA times as much is allowed. Of the lazy family's PE
    all that tau adds to P may be lost, as 16 bits lose it.
    """
    q, k, v, do = (tensor.abs() for tensor in x.tensors(tile))
    p, valid, share = values["P"], values["valid"], kept_share(x, tile)
    dpe = do @ v.mT if share is None else share * (do @ v.mT)
    dp = dpe * (valid if x.tau is None else values["Z"] > 0)
    of_p = EXACT * p + TINY * valid
    of_pe = EXACT * values["PE"].abs() + _of_tau(x, tile, values) + TINY * valid
    delta = (of_p * dp).sum(-1) + (do * (of_pe @ v)).sum(-1)
    ds = of_p * dp + p * delta[..., None]
    lse = EXACT * (1 + values["LSE"].abs().nan_to_num(0.0, 0.0, 0.0))
    found = {"LSE": lse, "P": of_p, "O": of_pe @ v, "dPE": EXACT * dpe, "dP": EXACT * dp}
    found |= {"delta": delta, "dS": ds, "dV": of_pe.mT @ do}
    found |= {"dQ": abs(x.scale) * ds @ k, "dK": abs(x.scale) * ds.mT @ q}
    return found
