"""What the budget allows at least, told by one or two of its terms.

Every bound of `bounds` and `budget` is a sum of terms of which none is negative, so some of them alone are never kinder
than the whole. Those that are taken here need a product or two of float32 where the whole needs twenty of float64:
of kernels that round P and dS, the quadrature of these roundings; of float32's, the sums of absolute values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..model.number import LAMBDA
from ..reference import Attention, Tile
from ..reference.attention import add_transposed
from ..reference.problem import kept_share
from .bounds import UNBOUNDED, common_error
from .declared_precision import TINY, U32, U_FUNCTION, Precision, long_sum

# Factors below this count as 0, so that float32 holds every product of four of them with all its bits.
SMALLEST = 2.0**-30
# Of a sum of float32 products: each operand is rounded twice, on a GPU to TF32 at last; and each addition rounds.
ROUNDINGS = {"cpu": 2.0**-18, "cuda": 2.0**-8}
ADDITION = 2.0**-22
# What a product of float32 numbers may lose among subnormal ones, for as many terms as there ever are.
TINIEST = 2.0**-100
# No more than any error that is not 0, so that its ratio to this is 1 at least, and more once a share is taken off.
NEARLY_0 = {torch.float: 2.0**-149, torch.double: 2.0**-1000}
# Entries of one tile that are counted. Where all of a tile lie on the kink the whole budget is asked.
MOST = 1 << 14
# So that a threshold is below the whole budget's however both are rounded.
BELOW = 1 - 2.0**-20


@contextmanager
def tf32() -> Iterator[None]:
    """Products of float32 on a GPU in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def finite(tensor: Tensor) -> Tensor:
    """In place, 0 for what overflowed, which bounds nothing."""
    return tensor.nan_to_num_(0.0, 0.0, 0.0)


def sizes(matrix: Tensor, power: int = 1) -> Tensor:
    """|matrix| or matrix^2 in float32, 0 where an element is below SMALLEST."""
    narrow = matrix.float()
    narrow = narrow.square_() if power == 2 else narrow.abs_()
    return torch.threshold_(narrow, SMALLEST**power, 0.0)


def _off(a: Tensor) -> float:
    """What a product with so many terms may be off by, as a share of the sum of absolute values."""
    return ROUNDINGS[a.device.type] + a.shape[-1] * ADDITION


def _product(a: Tensor, b: Tensor, factor: float = 1.0) -> Tensor:
    """A lower bound of the product of two float32 matrices without negative elements, times a factor."""
    return finite(a @ b).mul_(factor * max(0.0, 1.0 - _off(a)))


def weight(precision: Precision, terms: int) -> float:
    """What multiplies the root of a sum of squares, or a sum of absolute values, of so many terms."""
    if precision.matrix:
        return (2**0.5 if precision.operand else 1.0) * LAMBDA * precision.matrix
    return precision.accumulate * long_sum(terms)


def of_operands(a: Tensor, b: Tensor, precision: Precision) -> Tensor:
    """[h, m, n] at most what cutting the operands of a b^T costs each of its elements."""
    squares = _product(sizes(a, 2), sizes(b, 2).mT).double()
    return LAMBDA * precision.operand * (2 * squares).sqrt()


class LeastSums:
    """What dK and dV of a problem are allowed at least, added up in float32 tile by tile."""

    def __init__(self, x: Attention, names: Collection[str], precision: Precision) -> None:
        self.x, self.precision = x, precision
        of_keys = {"dK": x.k, "delta": x.k, "kink": x.k} if "dK" in names else {}
        like = of_keys | ({"dV": x.v, "common": x.v} if "dV" in names else {})
        if x.tau is None:
            like = {name: of for name, of in like.items() if name not in ("kink", "common")}
        self._shares = {
            name: torch.zeros_like(of[0], dtype=torch.float) for name, of in like.items()
        }

    def add(self, name: str, tile: Tile, matrix: Tensor, rows: Tensor, power: int) -> None:
        """matrix^T |rows|^power, with a matrix [h, m, n] of sizes and rows [h, m, D], into the tile's keys."""
        if name in self._shares:
            add_transposed(self._shares[name][:, tile.keys], matrix, sizes(rows, power))

    def add_kink(self, tile: Tile, kink: Kink, p: Tensor, q: Tensor) -> None:
        """What flips of other entries of a row, and each by itself, move dK by."""
        self.add("kink", tile, p, kink.delta * q, 1)
        if "kink" in self._shares:
            head, row, key = kink.at
            moved = (kink.ds[:, None] * q[head, row].abs()).float()
            self._shares["kink"][:, tile.keys].index_put_((head, key), moved, accumulate=True)

    def bound(self, name: str, expected: Tensor) -> Tensor:
        """[Hkv, N, D] float64, once all tiles are added."""
        terms = self.x.n_query * self.x.n_heads // self.x.k.shape[1]
        by, scale = weight(self.precision, terms), abs(self.x.scale) if name == "dK" else 1.0
        surely = max(0.0, 1.0 - ROUNDINGS[expected.device.type] - terms * ADDITION)
        share = {key: finite(of.double() * surely) for key, of in self._shares.items()}
        of_rows = share.get("delta" if name == "dK" else "common", torch.zeros_like(expected))
        if self.precision.matrix:
            own = (by**2 * share[name] + of_rows).sqrt()
        else:
            own = by * share[name] + of_rows.sqrt()
        own = own + share["kink"] if name == "dK" and "kink" in share else own
        common = max(2 * self.precision.operand, self.precision.matrix) + 2 * U32
        return scale * own + common * expected.abs()


@dataclass(frozen=True)
class Kink:
    """Entries of a tile, n of them, of which rounding surely decides whether the lazy ReLU lets them through, and what
    a flip of each moves at least: some of those that `bounds.Chain` counts.
    """

    at: tuple[Tensor, Tensor, Tensor]
    """The head, row and key of each on the tile."""
    other: Tensor
    """[n] the value that dP may have there beside the expected one: dO V^T where that is 0, else 0."""
    flip: Tensor
    """[n] |dO V^T|."""
    ds: Tensor
    """[n] what its own flip moves dS by."""
    delta: Tensor
    """[h, m, 1] what flips move delta by."""
    counts: Tensor
    """[h] how many entries lie there, those beyond MOST included."""

    def of_products(self, k: Tensor) -> Tensor:
        """[h, m, D]: what flips at single entries move dS K by."""
        head, row, key = self.at
        into = k.new_zeros(*self.delta.shape[:2], k.shape[-1])
        moved = self.ds[:, None] * k[head, key].abs()
        return into.index_put_((head, row), moved, accumulate=True)

    @property
    def over_keys(self) -> Tensor:
        """[h, m, 1]: what flips move the sum of a row's dP by."""
        into = torch.zeros_like(self.delta[..., 0])
        return into.index_put_(self.at[:2], self.flip, accumulate=True)[..., None]

    def nearer(self, expected: Tensor, came: Tensor) -> Tensor:
        """dP as expected, with the other value where that is nearer to what came."""
        known, there = expected[self.at], came[self.at].double()
        nearer = (there - self.other).abs() < (there - known).abs()
        return expected.index_put(self.at, self.other.where(nearer, known))


def least_kink(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
) -> Kink | None:
    """The entries of a tile of which |P + tau / (i + 1)| is within its error, tau below 0; None where there are none.

    Where q and k are cut to TF32, that is most of what P errs by.
    """
    if x.tau is None:
        return None
    relative = common_error(x, values) + U_FUNCTION
    if precision.operand:
        q, k, _, _ = x.tensors(tile)
        relative = relative + abs(x.scale) * of_operands(q, k, precision)
    floor = -x.tau[tile.heads, None, None] / (x.positions(tile)[0] + 1)
    relative = (relative.clamp(max=UNBOUNDED) + U32) * BELOW
    absolute = (U_FUNCTION + U32) * floor * BELOW
    low = ((floor - absolute) / (1 + relative)).masked_fill(floor <= 0, torch.inf)
    high = ((floor + absolute) / (1 - relative)).masked_fill(relative >= 1, torch.inf)
    p = values["P"]
    every = ((p >= low) & (p <= high)).nonzero()
    if not len(every):
        return None
    head, row, key = at = every[:MOST].unbind(1)
    dpe = values["dPE"][at]
    ds = p[at] * dpe.abs()
    delta = p.new_zeros(p.shape[:2]).index_put_((head, row), ds, accumulate=True)
    other = dpe.masked_fill(values["dP"][at] != 0, 0.0)
    counts = torch.bincount(every[:, 0], minlength=len(p))
    return Kink((head, row, key), other, dpe.abs(), ds, delta[..., None], counts)


class LowerBounds:
    """Lower bounds of one tile's budget, in the shapes of `TileBudget`."""

    def __init__(
        self, x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision, kink: Kink | None = None
    ) -> None:  # fmt: skip
        self.x, self.tile, self.values, self.kink = x, tile, values, kink
        self.precision, self.weight = precision, weight(precision, x.n_key)
        self.q, self.k, self.v, self.do = x.tensors(tile)
        # Where P and dS are rounded their roundings add up in quadrature; else what the sums round adds up as it is.
        self.power = 2 if precision.matrix else 1
        # Before what is too small for a lower bound of a product counts as 0 in it.
        self.p = values["P"].float()
        self.mean_key, self.size_of_keys = self._keys()
        torch.threshold_(self.p, SMALLEST, 0.0)
        self.ds = sizes(values["dS"], self.power)
        # Of lazy attention and under dropout, what multiplies v is not P.
        self.is_p = x.tau is None and not x.dropout
        pe = self.p if self.is_p else sizes(values["PE"])
        self.pe = pe.square() if self.power == 2 else pe
        self.live = self.p if x.tau is None else self.p * (pe > 0)  # or may let through
        if kink is not None:
            self.live.index_put_(kink.at, self.p[kink.at])
        self.common = common_error(x, values)
        self.delta = self._delta()
        # Flips move a row's delta, and with it all of its dS, as they move dP.
        self.moved_delta = self.delta if kink is None else self.delta + kink.delta

    def of_row(self, name: str) -> Tensor:
        """Of LSE, delta, O or dQ."""
        by_row = {"LSE": self.common, "delta": self.moved_delta}
        return by_row[name][..., 0] if name in by_row else {"O": self._o, "dQ": self._dq}[name]()

    def of_matrix(self, name: str, expected: Tensor, rounding: float = 0.0) -> Tensor:
        """Of P, dP or dS: a tensor of its own in float32, and so above the bound by some of its roundings at most.

        Args:
            expected: the values that it is held to, all within float32's range.
            rounding: the share of them that the dtype of what came rounds by.
        """
        if name == "dP":
            return expected.float().abs_().mul_(rounding).add_(self.dp)
        valid, p = self.values["valid"], self.values["P"].float()
        if name == "P":
            of_row = (self.common + (U_FUNCTION + rounding)).float()
            return p.mul_(of_row).add_(valid, alpha=TINY)
        bound = (self.dp + self.moved_delta.float()).mul_(p)
        bound.add_(self.values["dS"].float().abs_(), alpha=self.precision.matrix + rounding)
        bound.add_(valid, alpha=self.precision.floor)
        if self.kink is not None:
            bound.index_put_(self.kink.at, self.kink.ds.float(), accumulate=True)
        return bound

    def add_sums(self, into: LeastSums) -> None:
        """Adds this tile's shares of what dK and dV are allowed."""
        into.add("dK", self.tile, self.ds, self.q, self.power)
        into.add("dV", self.tile, self.pe, self.do, self.power)
        # A row's delta errs for all its entries.
        p = self.pe if self.power == 2 and self.is_p else self.p.square()
        into.add("delta", self.tile, p, self.delta * self.q, 2)
        if self.x.tau is not None:  # what a row's P errs by together; PE may be small beside it
            into.add("common", self.tile, self.live.square(), self.common * self.do, 2)
        if self.kink is not None:
            into.add_kink(self.tile, self.kink, self.p, self.q)

    def _keys(self) -> tuple[Tensor, Tensor]:
        """[h, m, D] at most |P K|, and at most P |K|."""
        k, off = self.k.float(), _off(self.p)
        product, size = ((self.p @ of).double() for of in (k, k.abs()))
        mean, least = product.abs() - off * size - TINIEST, size * (1.0 - off) - TINIEST
        return finite(mean).clamp_(min=0.0), finite(least).clamp_(min=0.0)

    def _of_sums(self, matrix: Tensor, other: Tensor) -> Tensor:
        product = _product(matrix, sizes(other, self.power)).double()
        return product.sqrt() if self.power == 2 else product

    def _delta(self) -> Tensor:
        """[h, m, 1], by the terms of dO O; the other sums of the budget are at least what delta is."""
        terms, delta = (self.do * self.values["O"]).abs(), self.values["delta"][..., None].abs()
        squares, size = terms.square().sum(-1, keepdim=True), delta
        if self.x.tau is not None:  # the terms are P dP, of which the sum may be small
            of_p = finite(self.p * sizes(self.values["dP"]))
            terms_of_p = of_p.double().norm(self.power, -1, keepdim=True)
            terms_of_p = terms_of_p * (1.0 - ROUNDINGS["cpu"])
            if self.power == 2:
                squares = squares + terms_of_p.square()
            else:
                size = terms_of_p
        rounded = (self.precision.matrix or U32) * squares.sqrt()
        of_o = long_sum(terms.shape[-1]) * terms.sum(-1, keepdim=True)
        added = U32 * (of_o + long_sum(self.x.n_key) * size)
        return LAMBDA * rounded + added + self.common * delta

    def _o(self) -> Tensor:
        own = self._of_sums(self.pe, self.v)
        if self.x.tau is not None:
            return self.weight * own + self.common * _product(self.live, sizes(self.v)).double()
        # The error that all of a row share weighs the same sum of absolute values.
        return (self.weight if self.power == 2 else self.weight + self.common) * own

    def _dq(self) -> Tensor:
        error = self.weight * self._of_sums(self.ds, self.k) + self.delta * self.mean_key
        if self.kink is not None:
            error = error + self.kink.delta * self.size_of_keys + self.kink.of_products(self.k)
        return abs(self.x.scale) * error

    @cached_property
    def dp(self) -> Tensor:
        """[h, m, n] of dP, in float32."""
        share = kept_share(self.x, self.tile)
        by = self.precision.accumulate * long_sum(self.do.shape[-1])
        dot = _product(sizes(self.do), sizes(self.v).mT, by)
        return (dot if share is None else dot * share.float()).mul_(self.values["valid"])
