"""The products of a backward on a tile, from what a hook may see, for those that change one of their operands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..reference.softmax import kept_share
from .variant import Scope

if TYPE_CHECKING:
    from torch import Tensor


def pe(scope: Scope) -> Tensor:
    """[h, m, N] what multiplies V: relu(P + tau / (i + 1)) in the lazy family, P with dropout in the other."""
    p = scope.used["P"]
    if scope.x.family == "lazy":
        assert scope.x.tau is not None
        floor = scope.x.tau[scope.tile.heads, None, None] / (scope.x.positions(scope.tile)[0] + 1.0)
        return (p + floor).relu() * scope.x.valid(scope.tile)
    share = kept_share(scope.x, scope.tile)
    return p if share is None else p * share


def slope(scope: Scope) -> Tensor | float:
    """[h, m, N] the softcap's derivative; 1 without."""
    if scope.x.softcap is None:
        return 1.0
    q, k, _, _ = scope.tensors
    return 1 - (scope.x.scale * q @ k.mT / scope.x.softcap).tanh() ** 2
