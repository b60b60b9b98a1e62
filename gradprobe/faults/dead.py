"""N1: rows that see no key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from torch import Tensor

from ..reference import tiles
from .hypothesis import Hypothesis, Observed, making
from .variant import Hook, TileScope, Variant

_NUMBERS = (-60.0, -100.0, -1000.0)
_TILES = ((32, 32), (64, 64), (128, 128))
_WHOLE = (1 << 20, 1 << 20)
FIX = "where LSE is -inf take 0 in its place, and let masked scores stay -inf"


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Rows without a key, and masked scores that are finite."""
    if not all(bool(seen.x.valid(tile).any(-1).all()) for tile in tiles(seen.x)):
        yield from _of_dead_rows(seen)
    yield from _finite_masks(seen)


def _finite_masks(seen: Observed) -> Iterator[Hypothesis]:
    """Masked scores of one finite number: the one that P shows where it is exposed, else those in use."""
    shown = _shown_number(seen)
    for number in _NUMBERS if shown is None else (shown,):
        for rows, keys in dict.fromkeys(((seen.case.block_m, seen.case.block_n), *_TILES, _WHOLE)):
            summary = f"masked scores are {number:.6g} and not -inf: they weigh something"
            alter, changes = partial(_masked_with, number, rows, keys), frozenset({"P", "O", "LSE"})
            yield Hypothesis("mask/finite", "M1", summary, alter, changes, fix="mask with -inf")


def _shown_number(seen: Observed) -> float | None:
    """The score that masked entries of P have, where there is one."""
    if "P" not in seen.own:
        return None
    numbers: list[float] = []
    for b, tile in enumerate(tiles(seen.x)):
        wrong = ~seen.x.valid(tile) & ~seen.right["P"][b] & (seen.actual["P"][b] > 0)
        numbers += (seen.actual["P"][b].log() + _finite(seen.expected["LSE"][b])[..., None])[wrong].tolist()
    alike = numbers and max(numbers) - min(numbers) < 1e-3 * max(1.0, abs(numbers[0]))
    return float(f"{numbers[0]:.5g}") if alike else None


def _finite(lse: Tensor) -> Tensor:
    return lse.masked_fill(lse == -float("inf"), 0.0)


def _masked_with(number: float, rows: int, keys: int, variant: Variant) -> Variant:
    """P with another number than -inf where masked, in the tiles that hold anything that is seen."""

    def hook(value: Tensor, scope: TileScope) -> Tensor:
        masked = (number - _finite(scope.used["LSE"])[..., None]).exp() * _visited(scope, rows, keys)
        return value.where(scope.valid.expand(value.shape), masked)

    # The lazy family masks dP itself: what weighs next to nothing there does not reach dTau.
    return variant.hooked(("P", hook), *((("dP", _unmasked),) if variant.x.tau is None else ()))


def _of_dead_rows(seen: Observed) -> Iterator[Hypothesis]:
    """NaN in the rows that see no key, from each step on; or the same weight on every key there."""
    for step in ("LSE", "O", "P"):
        summary = f"rows that see no key are NaN in {step}, and spread: exp(-inf - -inf), or 0 / 0"
        yield making("dead/nan", "N1", summary, {step: _nan}, fix=FIX, not_finite=True)
    for rows, keys in dict.fromkeys(((seen.case.block_m, seen.case.block_n), *_TILES)):
        summary = f"rows that see no key are NaN in P, and spread within tiles of {rows} rows and {keys} keys"
        in_tiles = partial(_nan_in_tiles, rows, keys)
        yield making("dead/nan", "N1", summary, {"P": in_tiles}, fix=FIX, not_finite=True)
    # A key weighs a share of all keys, or of whole tiles; 1 where LSE is too large for log N to be added.
    weights = [1.0, *dict.fromkeys(1 / (-(-seen.x.n_key // size) * size) for size in (1, 16, 32, 64, 128))]
    for weight, of_output, masks_dp in product(weights, weights, (False, True)):
        summary = "rows that see no key weigh every key alike: their scores are all the same finite number"
        alter = partial(_uniform, weight, of_output, masks_dp)
        yield Hypothesis("dead/uniform", "N1", summary, alter, frozenset({"P", "O"}), fix=FIX)


def _dead(scope: TileScope) -> Tensor:
    """[h or 1, m, 1] bool."""
    return ~scope.valid.any(-1, keepdim=True)


def _nan(value: Tensor, scope: TileScope) -> Tensor:
    dead = _dead(scope) if value.dim() == 3 else _dead(scope)[..., 0]
    return value.masked_fill(dead.expand(value.shape), float("nan"))


def _nan_in_tiles(rows: int, keys: int, value: Tensor, scope: TileScope) -> Tensor:
    dead = _dead(scope) & _visited(scope, rows, keys)
    return value.masked_fill(dead.expand(value.shape), float("nan"))


def _visited(scope: TileScope, rows: int, keys: int) -> Tensor:
    """[m, N] bool: what lies in a tile in which a causal mask lets any row see any key."""
    x = scope.x
    i, j = x.positions(scope.tile)
    reach = x.diagonal(scope.tile) + (rows - 1 - i % rows)
    return (j // keys * keys <= reach) if x.causal else (j == j) | (i == i)


def _uniform(weight: float, of_output: float, masks_dp: bool, variant: Variant) -> Variant:
    def p(value: Tensor, scope: TileScope) -> Tensor:
        return value.where(~_dead(scope), value.new_full((), weight))

    def o(value: Tensor, scope: TileScope) -> Tensor:
        return value.where(~_dead(scope), of_output * scope.v.sum(-2, keepdim=True))

    return variant.hooked(("P", p), ("O", o), *(() if masks_dp else (("dP", _unmasked),)))


_unmasked: Hook = lambda value, scope: scope.unmasked_dp  # noqa: E731
