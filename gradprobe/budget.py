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

from .precision import LAMBDA, TINY, U32, U_FUNCTION, Precision, long_sum
from .reference import Attention, Tile
from .roundings import like_bias

if TYPE_CHECKING:
    from torch import Tensor


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
        # dP itself is held to either of the two values that a flip leaves, so its own bound needs no room for one.
        self.unmasked_dp = self.dot(self.do, self.v.mT, unit=self.precision.operand)
        self.i_dp = self.unmasked_dp * self.valid
        # What a flip moves is the kernel's own rounded dO V^T, at the kernel's own P: where all of a row flips, the
        # expected sums are 0 and their roundings show in nothing else.
        self.flip = self.undecided * (self.dpe.abs() + self.unmasked_dp)
        # delta: from P and dP, or from dO and the rounded O = PE V, less tau's share; either is within what is allowed
        # here. The larger of P and PE bounds the terms of both.
        pe, o = self.values["PE"], self.values["O"]
        weight = self.p.abs().maximum(pe)
        dp = self.dp.abs().maximum(self.flip)
        terms, d_terms = weight * dp, (self.do * o).abs()
        unit = self.precision.matrix if self.precision.matrix > 0 else U32
        floor = self.precision.floor * self.valid.any(-1, keepdim=True)
        independent = ((self.p * self.r_p) ** 2 + self.e_z**2) * dp**2 + (weight * self.i_dp) ** 2
        rounded = (terms**2).sum(-1, keepdim=True) + (d_terms**2).sum(-1, keepdim=True)
        products = (self.do * self.dot(pe, self.v, unit=self.precision.operand)) ** 2
        self.flip_growth = 1 + 2 * unit + U32 * (long_sum(terms.shape[-1]) + 3)
        self.k_delta = ((self.p.abs() + self.e_p) * self.flip).sum(-1, keepdim=True) * self.flip_growth
        self.i_delta = (
            independent.sum(-1, keepdim=True).sqrt()
            + products.sum(-1, keepdim=True).sqrt()
            + LAMBDA * unit * rounded.sqrt()
            + LAMBDA * floor * (self.do**2).sum(-1, keepdim=True).sqrt()
            # tau / (i + 1) is one number for the row.
            + (self.e_z * self.dp).sum(-1, keepdim=True).abs()
            + (self.e_z * self.flip).sum(-1, keepdim=True)
            + self.common * self.delta.abs()
            + U32 * long_sum(terms.shape[-1]) * terms.sum(-1, keepdim=True)
            + U32 * long_sum(d_terms.shape[-1]) * d_terms.sum(-1, keepdim=True)
        )
        self.e_delta = self.i_delta + self.k_delta

    def _gradients_of_scores(self) -> None:
        p, spread = self.p.abs(), (self.dp - self.delta).abs()
        # dP may flip here in the kernel of dK and dV and not in that of delta, where P came of another dot: what either
        # flip moves is added, over every undecided entry of the row and this entry's own.
        self.kink_ds = (p + self.e_p) * (self.k_delta + self.flip) * self.flip_growth
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
        """Each row's sum errs on its own, by its terms; what adds the rows up errs by their sums."""
        i, j = self.x.positions(self.tile)
        of_terms = U32 * long_sum(j.shape[-1]) * (self.dp.abs() + self.flip).sum(-1, keepdim=True) / (i + 1)
        of_rows = U32 * long_sum(self.x.n_batch * self.x.n_query) * self.dp.sum(-1, keepdim=True).abs() / (i + 1)
        squares = ((self.i_dp / (i + 1)) ** 2).sum(-1, keepdim=True) + of_terms**2
        flips = (self.flip / (i + 1)).sum(-1, keepdim=True) * (1 + U32 * long_sum(self.x.n_batch * self.x.n_query))
        return squares.sum((-2, -1)), (of_rows + flips).sum((-2, -1))
