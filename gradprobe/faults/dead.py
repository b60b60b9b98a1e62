"""N1: rows that see no key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from torch import Tensor

from ..reference import Tile
from .hypothesis import Hypothesis, Seen
from .variant import Scope, Variant, hooking

_STEPS = ("LSE", "O", "P")
_NUMBERS = (-60.0, -100.0, -1000.0)
_TILES = ((32, 32), (64, 64), (128, 128), (1 << 20, 1 << 20))


def hypotheses(seen: Seen) -> Iterator[Hypothesis]:
    """Rows without a key, and masked scores that are finite."""
    yield from _of_dead_rows(seen)
    yield from _finite_masks(seen)


def _finite_masks(seen: Seen) -> Iterator[Hypothesis]:
    """Masked scores of one finite number: the one that P shows where it is exposed, else those in use."""
    shown = _shown_number(seen)
    for number in _NUMBERS if shown is None else (shown,):
        for rows, keys in dict.fromkeys(((seen.case.block_m, seen.case.block_n), *_TILES)):
            summary = f"masked scores are {number:.6g} and not -inf: they weigh something"
            alter, changes = partial(_masked_with, number, rows, keys), frozenset({"P", "O", "LSE"})
            yield Hypothesis("mask/finite", "M1", summary, alter, changes, fix="mask with -inf")


def _shown_number(seen: Seen) -> float | None:
    """The score that masked entries of P have, where there is one."""
    if "P" not in seen.own:
        return None
    x, found = seen.x, []
    for b in range(x.n_batch):
        tile = Tile(b, slice(0, x.n_heads), slice(0, x.n_query))
        wrong = ~x.valid(tile) & ~seen.right["P"][b] & (seen.actual["P"][b] > 0)
        lse = seen.expected["LSE"][b].masked_fill(seen.expected["LSE"][b] == -float("inf"), 0.0)
        found.append((seen.actual["P"][b].log() + lse[..., None])[wrong])
    numbers = [score for scores in found for score in scores.tolist()]
    alike = numbers and max(numbers) - min(numbers) < 1e-3 * max(1.0, abs(numbers[0]))
    return float(f"{numbers[0]:.5g}") if alike else None


def _masked_with(number: float, rows: int, keys: int, variant: Variant) -> Variant:
    """P with another number than -inf where masked, in the tiles that hold anything that is seen."""

    def hook(value: Tensor, scope: Scope) -> Tensor:
        valid = scope.x.valid(scope.tile).expand(value.shape)
        visited = _visited(scope, rows, keys)
        lse = scope.used["LSE"].masked_fill(scope.used["LSE"] == -float("inf"), 0.0)
        masked = (number - lse[..., None]).exp() * visited
        return value.where(valid, masked)

    # The lazy family masks dP itself: what weighs next to nothing there does not reach dTau.
    return variant.hooked(("P", hook), *((("dP", _unmasked),) if variant.x.tau is None else ()))


def _of_dead_rows(seen: Seen) -> Iterator[Hypothesis]:
    """NaN in the rows that see no key, from each step on; or the same weight on every key there."""
    if not _has_dead_rows(seen):
        return
    for step in _STEPS:
        summary = f"rows that see no key are NaN in {step}, and spread: exp(-inf - -inf), or 0 / 0"
        alter = hooking((step, partial(_nan, step)))
        yield Hypothesis("dead/nan", "N1", summary, alter, frozenset({step}), fix=FIX, not_finite=True)
    for rows, keys in dict.fromkeys(((seen.case.block_m, seen.case.block_n), *_TILES[:-1])):
        summary = f"rows that see no key are NaN in P, and spread within tiles of {rows} rows and {keys} keys"
        alter = hooking(("P", partial(_nan_in_tiles, rows, keys)))
        yield Hypothesis("dead/nan", "N1", summary, alter, frozenset({"P"}), fix=FIX, not_finite=True)
    # A key weighs a share of all keys, or of whole tiles; 1 where LSE is too large for log N to be added.
    weights = [1.0, *dict.fromkeys(1 / (-(-seen.x.n_key // size) * size) for size in (1, 16, 32, 64, 128))]
    for weight, of_output, masks_dp in product(weights, weights, (False, True)):
        summary = "rows that see no key weigh every key alike: their scores are all the same finite number"
        alter = partial(_uniform, weight, of_output, masks_dp)
        yield Hypothesis("dead/uniform", "N1", summary, alter, frozenset({"P", "O"}), fix=FIX)


FIX = "where LSE is -inf take 0 in its place, and let masked scores stay -inf"


def _has_dead_rows(seen: Seen) -> bool:
    x = seen.x
    tiles = (Tile(batch, slice(0, x.n_heads), slice(0, x.n_query)) for batch in range(x.n_batch))
    return any(not bool(x.valid(tile).any(-1).all()) for tile in tiles)


def _dead(scope: Scope) -> Tensor:
    return ~scope.x.valid(scope.tile).any(-1)


def _nan(step: str, value: Tensor, scope: Scope) -> Tensor:
    dead = _dead(scope) if step == "LSE" else _dead(scope)[..., None]
    return value.masked_fill(dead.expand(value.shape), float("nan"))


def _nan_in_tiles(rows: int, keys: int, value: Tensor, scope: Scope) -> Tensor:
    dead = _dead(scope)[..., None] & _visited(scope, rows, keys)
    return value.masked_fill(dead.expand(value.shape), float("nan"))


def _visited(scope: Scope, rows: int, keys: int) -> Tensor:
    """[m, N] bool: what lies in a tile in which a causal mask lets any row see any key."""
    x = scope.x
    i, j = x.positions(scope.tile)
    reach = x.diagonal(scope.tile) + (rows - 1 - i % rows)
    return (j // keys * keys <= reach) if x.causal else (j == j) | (i == i)


def _uniform(weight: float, of_output: float, masks_dp: bool, variant: Variant) -> Variant:
    def p(value: Tensor, scope: Scope) -> Tensor:
        return value.where(~_dead(scope)[..., None], value.new_full((), weight))

    def o(value: Tensor, scope: Scope) -> Tensor:
        _, _, v, _ = scope.tensors
        return value.where(~_dead(scope)[..., None], of_output * v.sum(-2, keepdim=True))

    hooked = variant.hooked(("P", p), ("O", o))
    return hooked if masks_dp else hooked.hooked(("dP", _unmasked))


def _unmasked(value: Tensor, scope: Scope) -> Tensor:
    """dP before its mask."""
    _, _, v, do = scope.tensors
    return do @ v.mT
