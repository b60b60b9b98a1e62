"""N1: rows that see no key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ..reference import Tile
from .hypothesis import Hypothesis, Seen
from .variant import Scope, Variant

if TYPE_CHECKING:
    from torch import Tensor

_STEPS = ("LSE", "O", "P")


def hypotheses(seen: Seen) -> Iterator[Hypothesis]:
    """NaN in the rows that see no key, from each step on; or the same weight on every key there."""
    if not _has_dead_rows(seen):
        return
    for step in _STEPS:
        summary = f"rows that see no key are NaN in {step}, and spread: exp(-inf - -inf), or 0 / 0"
        changes = frozenset({step})
        yield Hypothesis("dead/nan", "N1", summary, partial(_nan, step), changes, fix=_FIX, not_finite=True)
    summary = "rows that see no key weigh every key alike, where they have none: masked with a finite number"
    yield Hypothesis("dead/uniform", "N1", summary, _uniform, frozenset({"P", "O"}), fix=_FIX)


_FIX = "where LSE is -inf take 0 in its place, and let masked scores stay -inf"


def _has_dead_rows(seen: Seen) -> bool:
    x = seen.x
    every = slice(0, x.n_query)
    return any(
        not bool(x.valid(Tile(b, slice(0, x.n_heads), every)).any(-1).all()) for b in range(x.n_batch)
    )  # fmt: skip


def _dead(scope: Scope) -> Tensor:
    return ~scope.x.valid(scope.tile).any(-1)


def _nan(step: str, variant: Variant) -> Variant:
    def hook(value: Tensor, scope: Scope) -> Tensor:
        dead = _dead(scope)
        dead = dead if step == "LSE" else dead[..., None]
        return value.masked_fill(dead.expand(value.shape), float("nan"))

    return variant.hooked((step, hook))


def _uniform(variant: Variant) -> Variant:
    def hook(value: Tensor, scope: Scope) -> Tensor:
        return value.where(~_dead(scope)[..., None], value.new_full((), 1 / value.shape[-1]))

    return variant.hooked(("P", hook))
