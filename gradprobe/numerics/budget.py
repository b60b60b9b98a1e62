"""The errors allowed on a tile and to sums over rows, and to what is recovered from gradients."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..model.intermediates import names
from ..model.number import LAMBDA
from ..reference import Attention, Tile, evaluate
from ..reference.attention import BY_KEY, BY_ROW, add_tile
from .bounds import Chain, companions, is_exact
from .declared_precision import (
    TINY,
    U32,
    Narrow,
    Precision,
    Tensors,
    long_sum,
    nearest,
    truncated,
)
from .totals import TOTALS, Error, by_row, totals_of


def _dk(chain: Chain) -> Error:
    scale, q = abs(chain.x.scale), chain.q
    cut = ((chain.p * chain.cut_delta).mT @ q).abs()
    sums = scale * (chain.kink_ds.mT @ q.abs() + cut + _dot_over_rows(chain, chain.ds, q))
    squares = _copies(chain) * (by_row(chain, chain.ds).mT @ q**2)
    return scale**2 * (squares + _tile_roundings(chain, chain.ds, q)), sums


def _dv(chain: Chain) -> Error:
    pe, do = chain.values["PE"], chain.do
    squares = _copies(chain) * ((chain.i_pe + chain.s_pe**2).mT @ do**2)
    return squares + _tile_roundings(chain, pe, do), _dot_over_rows(chain, pe, do)


def _tile_roundings(chain: Chain, matrix: Tensor, b: Tensor) -> Tensor | float:
    """A tile's share of what rounding dK or dV after every tile, and each query head's part, adds to their squares.

    The whole sum's own part is added where that is complete, in `WholeIntermediates.bound`.
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
    q, do = (tensor[heads] == tensor[heads][:, :1] for tensor in (chain.x.q, chain.x.do))
    alike = q.flatten(1).all(1) & do.flatten(1).all(1)
    return 1.0 + alike[:, None, None] * (chain.x.n_query - 1.0)


def _dot_over_rows(chain: Chain, matrix: Tensor, b: Tensor) -> Tensor:
    terms = chain.x.n_query * chain.x.n_heads // chain.x.k.shape[1]
    return chain.precision.accumulate * long_sum(terms) * (matrix.abs().mT @ b.abs())


# In the shapes of the tile's own shares. A row's delta and LSE err for all its entries at once.
_SUMS = {"dK": _dk, "dV": _dv} | {name: one.budget for name, one in TOTALS.items()}


@dataclass(frozen=True)
class TileBudget:
    """The allowed errors on one tile."""

    rows: Tensors
    """Whole bounds of what belongs to the tile's rows: LSE, P, O, dP, delta, dS, dQ."""
    squares: Tensors
    """This tile's share of the squared independent errors of what is summed over rows, in the shapes on the tile."""
    sums: Tensors
    """This tile's share of the errors that are added as they are."""
    unmasked_dp: Tensor
    """[h, m, N] the bound of dO V^T before any mask."""
    undecided: Tensor
    """[h, m, N] bool: entries on the ReLU's kink, where rounding alone decides whether dP is 0 or dO V^T."""
    exact: bool = False
    """Whether nothing of the tile is rounded to 16 bits."""


def tile_budget(
    x: Attention, tile: Tile, values: Tensors, precision: Precision,
    shift: Tensors | None = None,
) -> TileBudget:  # fmt: skip
    """The allowed errors of every intermediate on a tile, from the values on it.

    Args:
        values: what `reference.evaluate` gives, with a target's own values in place of some where its results are
            judged by their own parents.
        shift: from `rounding_shift`, for arithmetics that need it.
    """
    if precision.exact and is_exact(x, tile, values, precision):
        return _exact_budget(x, tile, values)
    chain = Chain(x, tile, values, precision)
    errors = {name: step(chain) for name, step in _SUMS.items() if name in values}
    # Infinite where it is not known: scores of 1e30 may err by more than float64 squares.
    rows, squares, sums = (
        {name: bound.nan_to_num_(float("inf"), float("inf")) for name, bound in of.items()}
        for of in (chain.rows(), *({name: e[at] for name, e in errors.items()} for at in (0, 1)))
    )
    budget = TileBudget(rows, squares, sums, chain.unmasked_dp, chain.undecided)
    return _widened(budget, shift) if shift else budget


def _exact_budget(x: Attention, tile: Tile, values: Tensors) -> TileBudget:
    bounds = companions(x, tile, values)
    of_sink = bounds["delta"] + bounds["LSE"] * values["delta"].abs()
    own = {"dT": bounds["dS"], "dP": bounds["dP"], "delta": of_sink}
    sums = {name: bounds[name] for name in BY_KEY} | totals_of(x, tile, values, own)
    squares = {name: torch.zeros_like(bound) for name, bound in sums.items()}
    rows, undecided = {name: bounds[name] for name in BY_ROW}, torch.zeros_like(values["valid"])
    return TileBudget(rows, squares, sums, bounds["dPE"], undecided, exact=True)


def _widened(budget: TileBudget, shift: Tensors) -> TileBudget:
    if "dPE" in shift:
        decided = (budget.rows["dP"] > 0) & ~budget.undecided
        shift = {**shift, "dP": shift["dPE"] * decided}
    rows = {name: bound + shift.get(name, 0.0) for name, bound in budget.rows.items()}
    for name in budget.sums.keys() & shift.keys():  # in place: of long keys they are large
        budget.sums[name].add_(shift[name])
    return replace(budget, rows=rows, unmasked_dp=budget.unmasked_dp + shift.get("dPE", 0.0))


def rounding_shift(
    x: Attention, tile: Tile, values: Tensors, precision: Precision
) -> dict[str, Tensor] | None:
    """By how much every value moves when operands are rounded as the contract says; None for IEEE float32.

    Roundings are not independent where data repeats: TF32 truncates an element in the same way wherever it is used, and
    rows of P or dS that differ by less than a unit in the last place round to the same numbers. An evaluation with
    rounded operands shows how far that goes; twice as much is allowed, on top of what is independent.
    """
    if not precision.matrix:
        return None
    cut = partial(truncated, precision.operand)
    narrow = cut if precision.operand else partial(nearest, precision)
    moved = _moved_by_products(x, tile, values, narrow, is_stored=not precision.operand)
    shift = {name: 2 * value for name, value in moved.items()}
    if precision.operand:
        down, up = (_moved(x, tile, values, one) for one in (cut, partial(cut, up=True)))
        for name in down:
            shift[name] = shift.get(name, 0.0) + 2 * down[name].maximum(up[name])
    return shift


def _moved(x: Attention, tile: Tile, values: Tensors, narrow: Narrow) -> dict[str, Tensor]:
    moved = evaluate(
        replace(x, q=narrow(x.q), k=narrow(x.k), v=narrow(x.v), do=narrow(x.do)), tile
    )
    known = ({*names()} - {"dP"} | {"dPE"}) & values.keys()
    return {name: (moved[name] - values[name]).abs().nan_to_num(0.0) for name in known}


def _moved_by_products(
    x: Attention, tile: Tile, values: Tensors, narrow: Narrow, *, is_stored: bool
) -> dict[str, Tensor]:
    """What values move by when PE, dS and O are rounded, in whichever way a kernel comes by delta.

    A kernel with dropout may round PE and dS before it divides what it sums of them by 1 - p: they round otherwise.
    """
    _, _, v, do = x.tensors(tile)
    most: dict[str, Tensor] = {}
    for divisor in {1.0, 1.0 - x.dropout}:
        rounded = partial(_divided, narrow, divisor)
        by_pe = rounded(values["PE"]) - values["PE"]
        by_o = by_pe @ v
        stored = narrow(values["O"] + by_o) - values["O"] if is_stored else by_o
        ways = [{"O": by_o, "dV": by_pe.mT @ do}]
        # delta from P and dP, from O as it is computed, and from O as it is stored: dS rounds differently in each.
        for error_of_o in (torch.zeros_like(by_o), by_o, stored):
            ways.append(_moved_by_delta(x, tile, values, (do * error_of_o).sum(-1), rounded))
        for name, moved in (item for way in ways for item in way.items()):
            most[name] = moved.abs().maximum(most[name]) if name in most else moved.abs()
    return most


def _moved_by_delta(
    x: Attention, tile: Tile, values: Tensors, by_delta: Tensor, narrow: Narrow
) -> dict[str, Tensor]:
    """What an error of delta, and then the rounding of dS, moves."""
    q, k, _, _ = x.tensors(tile)
    by_dt = -values["P"] * by_delta[..., None]
    by_ds = by_dt * slope_of(x, tile)
    by_product = narrow(values["dS"] + by_ds) - values["dS"]
    moved = {"delta": by_delta, "dS": by_ds, "dQ": x.scale * by_product @ k}
    moved["dK"] = x.scale * by_product.mT @ q
    return moved | totals_of(x, tile, values, {"dT": by_dt, "delta": by_delta})


def _divided(narrow: Narrow, factor: float, matrix: Tensor) -> Tensor:
    """A multiple of a matrix rounded, and divided again."""
    return narrow(matrix * factor) / factor


class WholeIntermediates:
    """Intermediates put together from tiles, with the errors allowed to them where those are asked for."""

    def __init__(
        self, x: Attention, shapes: Mapping[str, tuple[int, ...]], *, bounded: bool = True
    ) -> None:
        self.x, zeros = x, x.q.new_zeros
        self.values = {name: zeros(shape) for name, shape in shapes.items()}
        self.bounds = {name: zeros(shape) for name, shape in shapes.items() if bounded}
        """Complete for what belongs to rows; of the others without their squares, which `bound` adds."""
        self.squares = {name: zeros(shapes[name]) for name in self.bounds if name not in BY_ROW}
        self.exact = True
        """Whether that is so of all tiles."""

    def add(self, tile: Tile, values: Tensors, budget: TileBudget | None) -> None:
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
        shared, squares = 2 * precision.operand, self.squares[name]
        if name in BY_KEY:
            # What `Chain.tile_roundings` says of the whole sum; the parts of a group's heads are together as large.
            group = self.x.n_heads // self.x.k.shape[1]
            tiles = self.x.n_query * group / precision.tile / 3 if precision.tile else 0.0
            heads = 1.0 if precision.rounds and group > 1 else 0.0
            squares = squares + (LAMBDA * precision.matrix * expected) ** 2 * (tiles + heads)
            shared = max(shared, precision.matrix)
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

    def widened(
        self, x: Attention, tile: Tile, values: Tensors, budget: TileBudget, precision: Precision
    ) -> TileBudget:  # fmt: skip
        """A tile's budget with what the reading adds to P, dS, delta and dP."""
        rows, valid = dict(budget.rows), values["valid"]
        # A kernel may round dS or scale * dS, whichever it multiplies.
        of_ds = self.of_ds, min(1.0, abs(x.scale), self.factor)
        for name, (dtype, factor) in {"P": (self.of_p, 1.0), "dS": of_ds}.items():
            if name in self.names:
                info = torch.finfo(dtype)
                relative = precision.matrix + info.eps / 2 + 4 * U32
                floor = (precision.floor + info.tiny * info.eps / 2) / factor
                size = values[name].abs() + rows[name]
                rows[name] = rows[name] + (relative * size + floor) * valid
        e_g = quotient_error(values, rows, slope_of(x, tile))
        key = self.zero_key[tile.batch, tile.heads, tile.rows, None]
        e_delta = e_g.gather(-1, key.clamp(min=0)).masked_fill(key < 0, float("inf"))
        if "delta" in self.names:
            rows["delta"] = rows["delta"] + e_delta[..., 0]
        if "dP" not in self.names:
            return replace(budget, rows=rows)
        rows["dP"] = rows["dP"] + (e_g + e_delta).masked_fill(~valid, 0.0)
        # Where P is 0 and should be, the quotient is nothing; where it should be 0 and is not, P itself is wrong.
        unmasked_dp = budget.unmasked_dp.masked_fill(~valid, float("inf"))
        return replace(budget, rows=rows, unmasked_dp=unmasked_dp)


def quotient_error(values: Tensors, rows: Tensors, slope: Tensor | float) -> Tensor:
    """The error of dS / (P * slope); infinite where P is not known to be above 0."""
    spread = (values["dP"] - values["delta"][..., None]).abs()
    least = values["P"] - rows["P"]
    error = (rows["dS"] + spread * slope * rows["P"]) / (least * slope)
    return error.masked_fill(~(least * slope > 0), float("inf"))


def slope_of(x: Attention, tile: Tile) -> Tensor | float:
    """The softcap's derivative on a tile."""
    q, k, _, _ = x.tensors(tile)
    return 1.0 if x.softcap is None else 1 - (x.scale * q @ k.mT / x.softcap).tanh() ** 2
