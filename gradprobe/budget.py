"""The error allowed to each element, derived from the arithmetic that a kernel declares.

First-order error analysis with independent roundings. Every rounding that the contract allows is a relative error of at
most u; errors of separate roundings are added in quadrature and multiplied by LAMBDA, errors that share one cause are
added as they are. A bound is evaluated for every element from the magnitudes that meet in it, so it scales with
lengths, dims and data, and does not vanish where large terms cancel.

Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), chapter 3, for sums of products; Higham and Mary,
A New Approach to Probabilistic Rounding Error Analysis (2019), for sqrt(n) in place of n in long sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .reference import Attention, Tile, evaluate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Roundings are at most u each, about u / sqrt(3) in the mean square, so four bounds in quadrature stand near seven
# standard deviations: over 10^9 elements none is expected outside.
LAMBDA = 4.0
# float32 arithmetic, a half unit in the last place.
U32 = 2.0**-24
# exp and log of a GPU's special function unit: two units in the last place of float32 (CUDA programming guide).
U_FUNCTION = 2.0**-22
# Tensor cores add with truncation, a whole unit in the last place instead of half of one (Fasi, Higham, Mikaitis and
# Pranesh, 2021).
U_TENSOR_CORE = 2.0**-23
# The smallest normal float32: below it GPUs may flush to zero.
TINY = 2.0**-126


@dataclass(frozen=True)
class Precision:
    """What a kernel declares of its arithmetic."""

    name: str
    operand: float
    """Relative error of an operand of the first dots (q, k, v, do) as the multiplier sees it: TF32's 2^-10, else 0. It
    truncates, so errors share a sign."""
    matrix: float
    """Relative error of P and dS when they are rounded for the second dots."""
    floor: float
    """Absolute error of that rounding among subnormal numbers, which GPUs may flush to zero in float32 and bfloat16."""
    accumulate: float
    """Relative error of one addition inside a dot."""


def precision_of(dtype: str, dots: str) -> Precision:
    """The contract that a kernel of a dtype is held to: P, dS and O rounded to the inputs' dtype, sums in float32.

    Args:
        dtype: float32, float16 or bfloat16, of q, k, v and dO.
        dots: "ieee" or "tf32", which only float32 feels.
    """
    if dtype == "float32":
        tf32 = 2.0**-10 if dots == "tf32" else 0.0
        return Precision(f"float32, {dots} dots", tf32, tf32, TINY, U_TENSOR_CORE if tf32 else U32)
    # Unit roundoff; and half the smallest subnormal, or where subnormals may be flushed, the smallest normal number.
    unit, floor = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, TINY)}[dtype]
    return Precision(f"{dtype}, float32 sums", 0.0, unit, floor, U_TENSOR_CORE)


def long_sum(terms: float) -> float:
    """By how much the roundings of a sum of so many terms exceed one: LAMBDA sqrt(n), and never more than n.

    Times the unit roundoff and the sum of absolute values this bounds the error: the second always, the first for
    roundings that are independent (Higham and Mary, 2019, theorem 2.4).
    """
    return min(terms, LAMBDA * math.sqrt(terms))


def output_rounding(expected: Tensor, bound: Tensor, dtype: torch.dtype) -> Tensor:
    """What storing a value in a dtype may cost: its unit roundoff, relative, and half its smallest subnormal.

    The value stored is the one computed, which may be off by `bound`.
    """
    import torch

    info = torch.finfo(dtype)
    return (expected.abs() + bound) * (info.eps / 2) + info.tiny * info.eps / 2


@dataclass(frozen=True)
class TileBudget:
    """The allowed errors on one tile."""

    rows: Mapping[str, Tensor]
    """Whole bounds of what belongs to the tile's rows: LSE, P, O, dP, delta, dS, dQ."""
    squares: Mapping[str, Tensor]
    """This tile's share of the squared independent errors of dK, dV, dBias, dTau, in their shapes on the tile."""
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
    budget = _Chain(x, tile, values, precision).budget()
    return _widened(budget, shift) if shift else budget


def rounding_shift(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
) -> dict[str, Tensor] | None:
    """By how much every value moves when operands are rounded as the contract says; None for IEEE float32.

    Roundings are not independent where data repeats: TF32 truncates an element of q, k, v and dO in the same way
    wherever it is used; and rows of P or dS that differ by less than a unit in the last place round to the same
    numbers, which loses all that tells them apart. An evaluation with rounded operands shows how far that goes; twice
    as much is allowed, on top of what is independent.
    """
    if not precision.matrix:
        return None
    shift = _shift_of_products(x, tile, values, precision)
    if precision.operand:
        moved = [_moved(x, tile, values, narrow) for narrow in (_truncated, _to_nearest)]
        for name in moved[0]:
            shift[name] = shift.get(name, 0.0) + 2 * moved[0][name].maximum(moved[1][name])
    return shift


def _moved(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], narrow: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    coarse = replace(x, q=narrow(x.q), k=narrow(x.k), v=narrow(x.v), do=narrow(x.do))
    moved = evaluate(coarse, tile)
    names = {"LSE", "P", "O", "dPE", "delta", "dS", "dQ", "dK", "dV", "dBias", "dTau"} & values.keys()
    return {name: (moved[name] - values[name]).abs().nan_to_num(0.0) for name in names}


def _shift_of_products(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
) -> dict[str, Tensor]:
    """By how much values move when PE, dS and O are rounded, in whichever way a kernel comes by delta."""
    import torch

    q, k, v, do = x.tensors(tile)
    narrow = _truncated if precision.operand else _Nearest(precision)
    by_pe = narrow(values["PE"]) - values["PE"]
    o = values["O"] + by_pe @ v
    moved = {"O": (by_pe @ v).abs(), "dV": (by_pe.mT @ do).abs()}
    # delta from P and dP, from O as it is computed, and from O as it is stored: dS then rounds otherwise.
    stored = o if precision.operand else _Nearest(precision)(o)
    for by_o in (None, o - values["O"], stored - values["O"]):
        by_delta = torch.zeros_like(values["delta"]) if by_o is None else (do * by_o).sum(-1)
        by_dt = -values["P"] * by_delta[..., None]
        by_ds = by_dt * _slope(x, q, k)
        by_product = narrow(values["dS"] + by_ds) - values["dS"]
        found = {
            "delta": by_delta, "dS": by_ds,
            "dQ": x.scale * by_product @ k, "dK": x.scale * by_product.mT @ q,
        }  # fmt: skip
        if "dBias" in values:
            found["dBias"] = like_bias(x, tile, by_dt)
        for name, value in found.items():
            moved[name] = value.abs().maximum(moved.get(name, value.abs()))
    return {name: 2 * value for name, value in moved.items()}


def _slope(x: Attention, q: Tensor, k: Tensor) -> Tensor | float:
    """The softcap's derivative."""
    return 1.0 if x.softcap is None else 1 - (x.scale * q @ k.mT / x.softcap).tanh() ** 2


@dataclass(frozen=True)
class _Nearest:
    """Rounds to the nearest numbers of a contract's 16-bit dtype, in float64."""

    precision: Precision

    def __call__(self, matrix: Tensor) -> Tensor:
        import torch

        _, exponent = torch.frexp(matrix)
        unit = torch.full_like(matrix, self.precision.matrix)
        spacing = torch.ldexp(unit, exponent).clamp(min=2 * self.precision.floor)
        return (matrix / spacing).round() * spacing


def _truncated(tensor: Tensor) -> Tensor:
    """float64 holding float32 values -> the same with the 13 last bits of float32's significand cut off."""
    return _cut(tensor, 0)


def _to_nearest(tensor: Tensor) -> Tensor:
    """The same rounded to nearest, as the kernels do that convert before they multiply."""
    return _cut(tensor, 0x1000)


def _cut(tensor: Tensor, added: int) -> Tensor:
    import torch

    return ((tensor.float().view(torch.int32) + added) & ~0x1FFF).view(torch.float32).double()


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


class _Chain:
    """The error analysis of one tile, intermediate after intermediate.

    `e_` are bounds of whole errors; `i_` of the independent part of a matrix's error, which sums in quadrature.
    """

    def __init__(self, x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision) -> None:
        self.x, self.tile, self.precision = x, tile, precision
        self.q, self.k, self.v, self.do = x.tensors(tile)
        self.valid, self.dpe = values["valid"], values["dPE"]
        self.p, self.dp, self.ds = values["P"], values["dP"], values["dS"]
        self.delta, self.lse = values["delta"][..., None], values["LSE"][..., None]
        self.values = values
        # TF32 rounds both operands of the dots over rows, 16-bit kernels only the computed one.
        self.operands = 2**0.5 if precision.operand else 1.0

    def dot(self, a: Tensor, b: Tensor, *, unit: float = 0.0) -> Tensor:
        """The error of a @ b: operands off by `unit` with a common sign, and float32 (or tensor core) sums."""
        error = self.precision.accumulate * long_sum(a.shape[-1]) * (a.abs() @ b.abs())
        if unit:
            error = error + LAMBDA * unit * (2 * (a**2) @ (b**2)).sqrt() + 2 * unit * (a @ b).abs()
        return error

    def budget(self) -> TileBudget:
        self._scores()
        self._probabilities()
        self._gradients_of_probabilities()
        self._gradients_of_scores()
        rows = {
            "LSE": self.e_lse, "P": self.e_p, "O": self.e_o, "dP": self.i_dp,
            "delta": self.e_delta, "dS": self.e_ds, "dQ": self._dq(),
        }  # fmt: skip
        rows = {name: bound[..., 0] if name in ("LSE", "delta") else bound for name, bound in rows.items()}
        squares, sums = self._sums_over_rows()
        return TileBudget(rows, squares, sums, self.unmasked_dp, self.undecided)

    def _scores(self) -> None:
        x, unit = self.x, self.precision.operand
        raw = x.scale * self.q @ self.k.mT
        e_s = abs(x.scale) * self.dot(self.q, self.k.mT, unit=unit) + 3 * U32 * raw.abs()
        if x.bias is not None:
            e_s = e_s + 2 * U32 * (self.values["S"].masked_fill(~self.valid, 0.0) - raw).abs()
        self.e_s = e_s * self.valid

    def _probabilities(self) -> None:
        lse = self.lse.masked_fill(self.lse == -float("inf"), 0.0)
        own = U32 * (lse.abs() + 2 + long_sum(self.valid.shape[-1])) + U_FUNCTION
        self.e_lse = (self.p * self.e_s).sum(-1, keepdim=True) + own
        # What all entries of a row share after normalisation: independent errors of the scores average out in LSE.
        self.common = ((self.p * self.e_s) ** 2).sum(-1, keepdim=True).sqrt() + own
        argument = self.values["S"].masked_fill(~self.valid, 0.0) - lse
        self.r_p = (self.e_s + U32 * argument.abs() + U_FUNCTION) * self.valid
        # Past e^50 nothing is bounded any more; a finite number keeps 0 * bound at 0.
        relative = (self.r_p + self.e_lse).clamp(max=50.0).expm1()
        self.e_p = (self.p.abs() * relative + TINY) * self.valid
        self._lazy_mask() if self.x.family == "lazy" else self._softmax_mask()
        unit, floor = self.precision.matrix, self.precision.floor
        pe = self.values["PE"]
        rounding = (self.operands * LAMBDA * unit * pe) ** 2 + (LAMBDA * floor) ** 2 * self.valid
        self.i_pe = rounding + (self.p * self.r_p) ** 2 * self.live + self.e_z**2
        self.s_pe = (self.p * self.common).abs() * self.live
        self.e_o = (self.i_pe @ self.v**2).sqrt() + self.s_pe @ self.v.abs() + self.dot(pe, self.v)

    def _softmax_mask(self) -> None:
        import torch

        self.live, self.e_z = self.valid, torch.zeros_like(self.p)
        self.undecided = torch.zeros_like(self.valid)

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

    def _gradients_of_probabilities(self) -> None:
        kink = self.undecided * self.dpe.abs()
        # dP itself is held to either of the two values that a flip leaves, so its own bound needs no room for one.
        self.unmasked_dp = self.dot(self.do, self.v.mT, unit=self.precision.operand)
        self.i_dp = self.unmasked_dp * self.valid
        # delta: from P and dP, or from dO and the rounded O = PE V, less tau's share; either is within what is allowed
        # here. The larger of P and PE bounds the terms of both.
        pe, o = self.values["PE"], self.values["O"]
        weight = self.p.abs().maximum(pe)
        dp = self.dp.abs().maximum(kink)
        terms, d_terms = weight * dp, (self.do * o).abs()
        unit = self.precision.matrix if self.precision.matrix > 0 else U32
        floor = self.precision.floor * self.valid.any(-1, keepdim=True)
        independent = ((self.p * self.r_p) ** 2 + self.e_z**2) * dp**2 + (weight * self.i_dp) ** 2
        rounded = (terms**2).sum(-1, keepdim=True) + (d_terms**2).sum(-1, keepdim=True)
        products = (self.do * self.dot(pe, self.v, unit=self.precision.operand)) ** 2
        self.k_delta = (self.p.abs() * kink).sum(-1, keepdim=True)
        self.i_delta = (
            independent.sum(-1, keepdim=True).sqrt()
            + products.sum(-1, keepdim=True).sqrt()
            + LAMBDA * unit * rounded.sqrt()
            + LAMBDA * floor * (self.do**2).sum(-1, keepdim=True).sqrt()
            # tau / (i + 1) is one number for the row.
            + (self.e_z * self.dp).sum(-1, keepdim=True).abs()
            + (self.e_z * kink).sum(-1, keepdim=True)
            + self.common * self.delta.abs()
            + U32 * long_sum(terms.shape[-1]) * terms.sum(-1, keepdim=True)
            + U32 * long_sum(d_terms.shape[-1]) * d_terms.sum(-1, keepdim=True)
        )
        self.e_delta = self.i_delta + self.k_delta

    def _gradients_of_scores(self) -> None:
        p, spread = self.p.abs(), (self.dp - self.delta).abs()
        # A flip at (i, j) moves dS_ik by P_ik (delta_jk - P_ij) dPE_ij; summed here over every undecided j of the row.
        self.kink_ds = p * (self.k_delta + self.undecided * self.dpe.abs() * (1 - 2 * p)).clamp(min=0.0)
        subtraction = 3 * U32 * p * (self.dp.abs() + self.delta.abs()) * self.valid
        cap = self._softcap_slope() * p * spread
        unit, floor = self.precision.matrix, self.precision.floor
        # What is rounded is dS as it came out, with the errors of delta and the flips.
        came = self.ds.abs() + p * self.i_delta + self.kink_ds
        rounding = (self.operands * LAMBDA * unit * came) ** 2 + (LAMBDA * floor) ** 2 * self.valid
        flushed = TINY * spread * self.valid
        self.i_ds = (
            rounding + (p * self.i_dp) ** 2 + (p * self.r_p * spread) ** 2 + subtraction**2 + cap**2 + flushed**2
        )
        self.e_ds = (
            p * (self.i_dp + self.i_delta) + self.kink_ds + self.e_p * spread + subtraction + cap + unit * self.ds.abs()
            + floor * self.valid + flushed
        )  # fmt: skip

    def _softcap_slope(self) -> Tensor:
        """|d/dS of the softcap's derivative| times the error of S; at most 2 / c of it."""
        return self.e_s * (2.0 / self.x.softcap) if self.x.softcap else self.e_s * 0

    def _dq(self) -> Tensor:
        k = self.k
        error = (self.i_ds @ k**2).sqrt() + self.i_delta * (self.p @ k).abs() + self.common * (self.ds @ k).abs()
        error = error + self.kink_ds @ k.abs() + self.dot(self.ds, k)
        return abs(self.x.scale) * (error + 2 * U32 * (self.ds @ k).abs())

    def _sums_over_rows(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """dK, dV, dBias and dTau: each row's delta and LSE err on their own, so over rows they too are independent."""
        x = self.x
        scale = abs(x.scale)
        terms = x.n_query * x.n_heads // x.k.shape[1]
        by_row = self.i_ds + (self.p * self.i_delta) ** 2 + (self.ds * self.common) ** 2
        squares = {"dK": scale**2 * (by_row.mT @ self.q**2)}
        squares["dV"] = (self.i_pe + self.s_pe**2).mT @ self.do**2
        sums = {"dK": scale * (self.kink_ds.mT @ self.q.abs() + self._dot_over_rows(self.ds, self.q, terms))}
        sums["dV"] = self._dot_over_rows(self.values["PE"], self.do, terms)
        for name, step in (("dBias", self._dbias), ("dTau", self._dtau)):
            if name in self.values:
                squares[name], sums[name] = step(by_row)
        return squares, sums

    def _dot_over_rows(self, matrix: Tensor, b: Tensor, terms: int) -> Tensor:
        return self.precision.accumulate * long_sum(terms) * (matrix.abs().mT @ b.abs())

    def _dbias(self, by_row: Tensor) -> tuple[Tensor, Tensor]:
        addends = long_sum(self.x.n_batch * self.x.n_query)
        sums = self.kink_ds + U32 * addends * self.ds.abs()
        return like_bias(self.x, self.tile, by_row), like_bias(self.x, self.tile, sums)

    def _dtau(self, _: Tensor) -> tuple[Tensor, Tensor]:
        i, j = self.x.positions(self.tile)
        addends = long_sum(j.shape[-1]) + long_sum(self.x.n_batch * self.x.n_query)
        kink = self.undecided * self.dpe.abs()
        sums = (kink + U32 * addends * self.dp.abs()) / (i + 1)
        return ((self.i_dp / (i + 1)) ** 2).sum((-2, -1)), sums.sum((-2, -1))


def like_bias(x: Attention, tile: Tile, matrix: Tensor) -> Tensor:
    """A matrix [h, m, N] summed as dBias sums dS, in the shape of the tile's part of the bias."""
    from .reference.lazy import sum_by_distance

    assert x.bias is not None
    if x.family == "lazy":
        i, j = x.positions(tile)
        return sum_by_distance(matrix, i - j, x.bias.shape[1])
    return matrix.sum_to_size(x.bias_part(x.bias, tile).shape)
