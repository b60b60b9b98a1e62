"""The errors allowed to sums over rows, and to what is recovered from gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..model.intermediates import names
from ..model.number import LAMBDA
from ..reference import Attention, Tile, evaluate
from ..reference.attention import BY_KEY, BY_ROW, add_tile
from .bounds import Chain
from .declared_precision import (
    TINY,
    U32,
    Narrow,
    Precision,
    long_sum,
    nearest,
    softcap_slope,
    truncated,
)
from .totals import TOTALS, Error, by_row, totals_of


def _dk(chain: Chain) -> Error:
    scale = abs(chain.x.scale)
    cut = ((chain.p * chain.cut_delta).mT @ chain.q).abs()
    sums = scale * (
        chain.kink_ds.mT @ chain.q.abs() + cut + _dot_over_rows(chain, chain.ds, chain.q)
    )
    squares = _copies(chain) * (by_row(chain, chain.ds).mT @ chain.q**2) + _tile_roundings(
        chain, chain.ds, chain.q
    )
    return scale**2 * squares, sums


def _dv(chain: Chain) -> Error:
    pe, do = chain.values["PE"], chain.do
    squares = _copies(chain) * ((chain.i_pe + chain.s_pe**2).mT @ do**2) + _tile_roundings(
        chain, pe, do
    )
    return squares, _dot_over_rows(chain, pe, do)


def _tile_roundings(chain: Chain, matrix: Tensor, b: Tensor) -> Tensor | float:
    """A tile's share of what rounding dK or dV after every tile, and each query head's part, adds to their squares.

    The whole sum's own part is added where that is complete, in `Whole.bound`.
    """
    if not chain.precision.rounds and not chain.precision.tile:
        return 0.0
    squares: Tensor = matrix.mT**2 @ b**2
    group = chain.x.n_heads // chain.x.k.shape[1]
    of_heads = (LAMBDA * chain.precision.matrix) ** 2 * squares if group > 1 else 0.0
    return of_heads + chain.tile_roundings(squares * 0, squares, chain.x.n_query * group)


def _copies(chain: Chain) -> Tensor:
    """[h, 1, 1] how many rows of a head err alike: all of them where q and dO repeat one row, else each on its own.

    Errors of n copies add up to n times one, which is sqrt(n) times what n independent ones come to.
    """
    heads = (chain.tile.batch, chain.tile.heads)
    alike = [
        (tensor[heads] == tensor[heads][:, :1]).all(-1).all(-1)
        for tensor in (chain.x.q, chain.x.do)
    ]
    return 1.0 + (alike[0] & alike[1])[:, None, None] * (chain.x.n_query - 1.0)


def _dot_over_rows(chain: Chain, matrix: Tensor, b: Tensor) -> Tensor:
    terms = chain.x.n_query * chain.x.n_heads // chain.x.k.shape[1]
    return chain.precision.accumulate * long_sum(terms) * (matrix.abs().mT @ b.abs())


# In the shapes of the tile's own shares. A row's delta and LSE err for all its entries at once.
_SUMS = {"dK": _dk, "dV": _dv} | {name: one.budget for name, one in TOTALS.items()}


@dataclass(frozen=True)
class TileBudget:
    """The allowed errors on one tile."""

    rows: Mapping[str, Tensor]
    """Whole bounds of what belongs to the tile's rows: LSE, P, O, dP, delta, dS, dQ."""
    squares: Mapping[str, Tensor]
    """This tile's share of the squared independent errors of what is summed over rows, in the shapes on the tile."""
    sums: Mapping[str, Tensor]
    """This tile's share of the errors that are added as they are."""
    unmasked_dp: Tensor
    """[h, m, N] the bound of dO V^T before any mask."""
    undecided: Tensor
    """[h, m, N] bool: entries on the ReLU's kink, where rounding alone decides whether dP is 0 or dO V^T."""
    exact: bool = False
    """Whether nothing of the tile is rounded to 16 bits."""


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
    if precision.exact:
        from .exact import is_exact

        if is_exact(x, tile, values, precision):
            return _exact_budget(x, tile, values)
    chain = Chain(x, tile, values, precision)
    rows = {name: _finite_or_unbounded(bound) for name, bound in chain.rows().items()}
    errors = {name: step(chain) for name, step in _SUMS.items() if name in chain.values}
    squares, sums = (
        {name: _finite_or_unbounded(error[which]) for name, error in errors.items()}
        for which in (0, 1)
    )
    budget = TileBudget(rows, squares, sums, chain.unmasked_dp, chain.undecided)
    return _widened(budget, shift) if shift else budget


def _exact_budget(x: Attention, tile: Tile, values: Mapping[str, Tensor]) -> TileBudget:
    from .exact import companions

    bounds = companions(x, tile, values)
    rows = {name: bound for name, bound in bounds.items() if name in BY_ROW}
    sums = {name: bounds[name] for name in _SUMS if name in values}
    squares = {name: torch.zeros_like(bound) for name, bound in sums.items()}
    return TileBudget(
        rows, squares, sums, bounds["dPE"], torch.zeros_like(values["valid"]), exact=True
    )


def _finite_or_unbounded(bound: Tensor) -> Tensor:
    """A bound, infinite where it is not known: scores of 1e30 may err by more than float64 squares. In place."""
    return bound.nan_to_num_(float("inf"), float("inf"))


def _widened(budget: TileBudget, shift: Mapping[str, Tensor]) -> TileBudget:
    if "dPE" in shift:
        decided = (budget.rows["dP"] > 0) & ~budget.undecided
        shift = {**shift, "dP": shift["dPE"] * decided}
    rows = {name: bound + shift.get(name, 0.0) for name, bound in budget.rows.items()}
    for name in budget.sums.keys() & shift.keys():  # in place: of long keys they are large
        budget.sums[name].add_(shift[name])
    return replace(budget, rows=rows, unmasked_dp=budget.unmasked_dp + shift.get("dPE", 0.0))


class WholeIntermediates:
    """Intermediates put together from tiles, with the errors allowed to them.

    Args:
        bounded: whether errors are asked for.
    """

    def __init__(
        self, x: Attention, shapes: Mapping[str, tuple[int, ...]], *, bounded: bool = True
    ) -> None:
        self.x = x
        self.values = {name: x.q.new_zeros(shape) for name, shape in shapes.items()}
        self.bounds = {name: x.q.new_zeros(shape) for name, shape in shapes.items() if bounded}
        """Complete for what belongs to rows; of the others without their squares, which `bound` adds."""
        self.squares = {
            name: torch.zeros_like(bound)
            for name, bound in self.bounds.items()
            if name not in BY_ROW
        }
        self.exact = True
        """Whether that is so of all tiles."""

    def add(self, tile: Tile, values: Mapping[str, Tensor], budget: TileBudget | None) -> None:
        """Adds one tile; without a budget where none are bounded."""
        add_tile(self.x, self.values, tile, values)
        if budget is not None:
            self.exact &= budget.exact
            add_tile(self.x, self.bounds, tile, {**budget.rows, **budget.sums})
            add_tile(self.x, self.squares, tile, budget.squares)

    def bound(self, name: str, expected: Tensor, precision: Precision) -> Tensor:
        """The bound of a sum over all tiles, from the tiles' shares of it.

        Where all of P, or of dS, are nearly alike, they round alike, and dV and dK are off by as much as each of them.
        """
        if self.exact:
            return self.bounds[name]
        shared = max(2 * precision.operand, precision.matrix if name in ("dK", "dV") else 0.0)
        squares = self.squares[name]
        if name in BY_KEY and (group := self.x.n_heads // self.x.k.shape[1]):
            # What `Chain.tile_roundings` says of the whole sum; the parts of a group's heads are together as large.
            tiles = self.x.n_query * group / precision.tile / 3 if precision.tile else 0.0
            heads = 1.0 if precision.rounds and group > 1 else 0.0
            squares = squares + (LAMBDA * precision.matrix * expected) ** 2 * (tiles + heads)
        return squares.sqrt() + self.bounds[name] + (shared + 2 * U32) * expected.abs() + TINY


# What can be recovered of a target that exposes gradients alone.
RECOVERABLE = ("P", "dP", "delta", "dS")


@dataclass(frozen=True)
class Recovery:
    """How P, dS, and from them delta and dP, were read.

    P came as elements of dV, dS as elements of dQ or dK, each the only term of its sum: its operand is rounded as the
    contract says, and the gradient to its own dtype. With g = dS / (P * slope), slope being the softcap's derivative,
    delta = -g at a key without a value, and dP = g + delta.
    """

    of_p: torch.dtype
    """Of dV."""
    of_ds: torch.dtype
    """The coarser one of dQ and dK."""
    factor: float
    """What dS was multiplied by in them."""
    zero_key: Tensor
    """[B, H, M] the key at which each row's delta was read; -1 where the row sees none without a value."""
    names: frozenset[str] = frozenset(RECOVERABLE)
    """What was read so; what the target exposes itself is not."""
    coarse: frozenset[str] = frozenset()
    """What is held to a coarser arithmetic than the contract's, because the gradient that shows it may be as coarse."""

    def widened(
        self,
        x: Attention,
        tile: Tile,
        values: Mapping[str, Tensor],
        budget: TileBudget,
        precision: Precision,
    ) -> TileBudget:
        """A tile's budget with what the reading adds to P, dS, delta and dP."""
        budget = self._coarser(x, tile, values, budget, precision)
        rows, valid = dict(budget.rows), values["valid"]
        # A kernel may round dS or scale * dS, whichever it multiplies.
        for name, dtype, factor in (
            ("P", self.of_p, 1.0),
            ("dS", self.of_ds, min(1.0, abs(x.scale), self.factor)),
        ):
            if name in self.names:
                rounded, info = (
                    precision.coarser if name in self.coarse else precision,
                    torch.finfo(dtype),
                )
                relative = (rounded.matrix + info.eps / 2 + 4 * U32) * (
                    values[name].abs() + rows[name]
                )
                rows[name] = (
                    rows[name]
                    + (relative + (rounded.floor + info.tiny * info.eps / 2) / factor) * valid
                )
        e_g = quotient_error(values, rows, slope_of(x, tile))
        key = self.zero_key[tile.batch, tile.heads, tile.rows, None]
        e_delta = e_g.gather(-1, key.clamp(min=0)).masked_fill(key < 0, float("inf"))
        if "delta" in self.names:
            rows["delta"] = rows["delta"] + e_delta[..., 0]
        if "dP" not in self.names:
            return replace(budget, rows=rows)
        rows["dP"] = rows["dP"] + (e_g + e_delta).masked_fill(~valid, 0.0)
        # Where P is 0 and should be, the quotient is nothing; where it should be 0 and is not, P itself is wrong.
        return replace(
            budget, rows=rows, unmasked_dp=budget.unmasked_dp.masked_fill(~valid, float("inf"))
        )

    def _coarser(
        self,
        x: Attention,
        tile: Tile,
        values: Mapping[str, Tensor],
        budget: TileBudget,
        precision: Precision,
    ) -> TileBudget:
        """A tile's budget with what a coarser arithmetic may do to some intermediates."""
        if not self.coarse:
            return budget
        coarse = tile_budget(x, tile, values, precision.coarser)

        def wider(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {
                name: bound.maximum(other[name]) if name in self.coarse else bound
                for name, bound in own.items()
            }

        return replace(
            budget,
            rows=wider(budget.rows, coarse.rows),
            sums=wider(budget.sums, coarse.sums),
            squares=wider(budget.squares, coarse.squares),
        )


def quotient_error(
    values: Mapping[str, Tensor], rows: Mapping[str, Tensor], slope: Tensor | float
) -> Tensor:
    """The error of dS / (P * slope); infinite where P is not known to be above 0."""
    spread = (values["dP"] - values["delta"][..., None]).abs()
    least = values["P"] - rows["P"]
    error = (rows["dS"] + spread * slope * rows["P"]) / (least * slope)
    return error.masked_fill(~(least * slope > 0), float("inf"))


def slope_of(x: Attention, tile: Tile) -> Tensor | float:
    """The softcap's derivative on a tile."""
    return softcap_slope(x, *x.tensors(tile)[:2])


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
        cut = partial(truncated, precision.operand)
        moved = [_moved(x, tile, values, narrow) for narrow in (cut, partial(cut, up=True))]
        for name in moved[0]:
            shift[name] = shift.get(name, 0.0) + 2 * moved[0][name].maximum(moved[1][name])
    return shift


def _moved(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], narrow: Narrow
) -> dict[str, Tensor]:
    coarse = replace(x, q=narrow(x.q), k=narrow(x.k), v=narrow(x.v), do=narrow(x.do))
    moved = evaluate(coarse, tile)
    known = ({*names()} - {"dP"} | {"dPE"}) & values.keys()
    return {name: (moved[name] - values[name]).abs().nan_to_num(0.0) for name in known}


def _shift_of_products(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], precision: Precision
) -> dict[str, Tensor]:
    """Twice what values move by when PE, dS and O are rounded, in whichever way a kernel comes by delta.

    A kernel with dropout may round PE and dS before it divides what it sums of them by 1 - p: they round otherwise.
    """
    _, _, v, do = x.tensors(tile)
    narrow: Narrow = (
        partial(truncated, precision.operand)
        if precision.operand
        else partial(nearest, precision)
    )
    moved: dict[str, Tensor] = {}
    for divisor in {1.0, 1.0 - x.dropout}:
        rounded = partial(_divided, narrow, divisor)
        by_pe = rounded(values["PE"]) - values["PE"]
        by_o = by_pe @ v
        stored = by_o if precision.operand else narrow(values["O"] + by_o) - values["O"]
        ways = [{"O": by_o, "dV": by_pe.mT @ do}]
        # delta from P and dP, from O as it is computed, and from O as it is stored: dS rounds differently in each.
        for error_of_o in (torch.zeros_like(by_o), by_o, stored):
            ways.append(_moved_by_delta(x, tile, values, (do * error_of_o).sum(-1), rounded))
        for way in ways:
            moved |= {
                name: value.abs().maximum(moved.get(name, value.abs()))
                for name, value in way.items()
            }
    return {name: 2 * value for name, value in moved.items()}


def _moved_by_delta(
    x: Attention, tile: Tile, values: Mapping[str, Tensor], by_delta: Tensor, narrow: Narrow
) -> dict[str, Tensor]:
    """What an error of delta, and then the rounding of dS, moves."""
    q, k, _, _ = x.tensors(tile)
    by_dt = -values["P"] * by_delta[..., None]
    by_ds = by_dt * softcap_slope(x, q, k)
    by_product = narrow(values["dS"] + by_ds) - values["dS"]
    moved = {
        "delta": by_delta,
        "dS": by_ds,
        "dQ": x.scale * by_product @ k,
        "dK": x.scale * by_product.mT @ q,
    }
    return moved | totals_of(x, tile, values, {"dT": by_dt, "delta": by_delta})


def _divided(narrow: Narrow, factor: float, matrix: Tensor) -> Tensor:
    """A multiple of a matrix rounded, and divided again."""
    return narrow(matrix * factor) / factor
