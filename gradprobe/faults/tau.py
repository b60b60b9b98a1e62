"""A: the lazy family's ReLU and tau: the mask of dP, and what tau is divided by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from .hypothesis import Hypothesis, Seen
from .variant import Hook, Scope, Variant

if TYPE_CHECKING:
    from torch import Tensor

_CHANGES = frozenset({"O", "dP", "delta", "dV", "dTau"})
# [m or 1, N or 1] what tau is divided by, from the positions i [m, 1] and j [1, N].
Position = Callable[["Tensor", "Tensor"], "Tensor"]


def hypotheses(seen: Seen) -> Iterator[Hypothesis]:
    """Other positions, and other places of the ReLU."""
    if seen.x.tau is None:
        return
    length = float(seen.x.n_key)
    positions: tuple[tuple[str, Position], ...] = (
        ("i + 2", lambda i, j: i + 2.0), ("i", lambda i, j: i + 0.0), ("the key's j + 1", lambda i, j: j + 1.0),
        ("1, which is nothing", lambda i, j: (i + 1.0) * 0 + 1), ("the length", lambda i, j: i * 0 + length),
        ("the distance i - j + 1", lambda i, j: i - j + 1.0),
    )  # fmt: skip
    for words, position in positions:
        summary = f"tau is divided by {words}, where i + 1 is meant"
        for in_dtau in (True, False):
            alter = partial(_at, position, False, in_dtau)
            yield Hypothesis("tau/position", "A", summary, alter, _CHANGES, fix="tau / (i + 1)")
    yield Hypothesis(
        "relu/mask", "A", "the ReLU's mask is missing in dP: its entries flow where P + tau / (i + 1) <= 0 too",
        partial(_at, lambda i, j: i + 1.0, True, False), _CHANGES, fix="dP = [P + tau / (i + 1) > 0] * (dO V^T)",
    )  # fmt: skip
    yield Hypothesis(
        "relu/sign", "A", "the ReLU's mask of dP is that of P alone: tau is left out of it",
        partial(_hooked_dp, lambda scope: scope.used["P"] > 0), _CHANGES,
    )  # fmt: skip
    for words, hook in (("without dividing it by i + 1", _undivided), ("before it is masked", _unmasked)):
        yield Hypothesis(
            "tau/gradient", "A", f"dTau sums dP {words}", partial(_hooked, hook), frozenset({"dTau"}),
            fix="dTau = sum of dP / (i + 1)",
        )  # fmt: skip


def _at(position: Position, unmasked: bool, in_dtau: bool, variant: Variant) -> Variant:
    """O, dP and dV with another share of tau, and dTau where it is divided by the same."""

    def z(scope: Scope) -> Tensor:
        i, j = scope.x.positions(scope.tile)
        assert scope.x.tau is not None
        return scope.used["P"] + scope.x.tau[scope.tile.heads, None, None] / position(i, j)

    def weights(scope: Scope) -> Tensor:
        return z(scope).relu() * scope.x.valid(scope.tile)

    def dp(value: Tensor, scope: Scope) -> Tensor:
        _, _, v, do = scope.tensors
        flows = scope.x.valid(scope.tile)
        return (do @ v.mT) * (flows if unmasked else flows & (z(scope) > 0))

    def dtau(value: Tensor, scope: Scope) -> Tensor:
        i, j = scope.x.positions(scope.tile)
        return (scope.used["dP"] / position(i, j)).nan_to_num(posinf=0.0, neginf=0.0).sum((-2, -1))

    hooks: tuple[tuple[str, Hook], ...] = (
        ("O", lambda value, scope: weights(scope) @ scope.tensors[2]), ("dP", dp),
        ("dV", lambda value, scope: weights(scope).mT @ scope.tensors[3]),
    )  # fmt: skip
    return variant.hooked(*hooks, *((("dTau", dtau),) if in_dtau else ()))


def _hooked_dp(flows: Callable[[Scope], Tensor], variant: Variant) -> Variant:
    def dp(value: Tensor, scope: Scope) -> Tensor:
        _, _, v, do = scope.tensors
        return (do @ v.mT) * (scope.x.valid(scope.tile) & flows(scope))

    return variant.hooked(("dP", dp))


def _hooked(hook: Hook, variant: Variant) -> Variant:
    return variant.hooked(("dTau", hook))


def _undivided(value: Tensor, scope: Scope) -> Tensor:  # noqa: ARG001
    return scope.used["dP"].sum((-2, -1))


def _unmasked(value: Tensor, scope: Scope) -> Tensor:  # noqa: ARG001
    _, _, v, do = scope.tensors
    i, _ = scope.x.positions(scope.tile)
    return (do @ v.mT / (i + 1)).sum((-2, -1))
