"""A: the lazy family's ReLU and tau: the mask of dP, and what tau is divided by."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from .hypothesis import Hypothesis, Seen
from .variant import Alter, Hook, Scope, hooking

_CHANGES = frozenset({"O", "dP", "delta", "dV", "dTau"})
# [m or 1, N or 1] what tau is divided by, from the positions i [m, 1] and j [1, N].
Position = Callable[[Tensor, Tensor], Tensor]


def hypotheses(seen: Seen) -> Iterator[Hypothesis]:
    """Other positions, and other places of the ReLU."""
    if seen.x.tau is None:
        return
    length = float(seen.x.n_key)
    positions: tuple[tuple[str, Position], ...] = (
        ("i + 2", lambda i, j: i + 2.0),
        ("i", lambda i, j: i + 0.0),
        ("the key's j + 1", lambda i, j: j + 1.0),
        ("1, which is nothing", lambda i, j: (i + 1.0) * 0 + 1),
        ("the length", lambda i, j: i * 0 + length),
        ("the distance i - j + 1", lambda i, j: i - j + 1.0),
    )
    for words, position in positions:
        summary = f"tau is divided by {words}, where i + 1 is meant"
        for in_dtau in (True, False):
            alter = _at(position, False, in_dtau)
            yield Hypothesis("tau/position", "A", summary, alter, _CHANGES, fix="tau / (i + 1)")
    summary = "the ReLU's mask is missing in dP: its entries flow where P + tau / (i + 1) <= 0 too"
    alter, fix = _at(lambda i, j: i + 1.0, True, False), "dP = [P + tau / (i + 1) > 0] * (dO V^T)"
    yield Hypothesis("relu/mask", "A", summary, alter, _CHANGES, fix=fix)
    summary = "the ReLU's mask of dP is that of P alone: tau is left out of it"
    yield Hypothesis("relu/sign", "A", summary, hooking(("dP", _masked_by_p)), _CHANGES)
    undivided: Hook = lambda value, scope: scope.used["dP"].sum((-2, -1))  # noqa: E731
    for words, hook in (("without dividing it by i + 1", undivided), ("before it is masked", _unmasked)):
        summary, alter = f"dTau sums dP {words}", hooking(("dTau", hook))
        yield Hypothesis("tau/gradient", "A", summary, alter, frozenset({"dTau"}), fix="dTau = sum of dP / (i + 1)")


def _at(position: Position, unmasked: bool, in_dtau: bool) -> Alter:
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
        ("O", lambda value, scope: weights(scope) @ scope.tensors[2]),
        ("dP", dp),
        ("dV", lambda value, scope: weights(scope).mT @ scope.tensors[3]),
    )
    return hooking(*hooks, *((("dTau", dtau),) if in_dtau else ()))


def _masked_by_p(value: Tensor, scope: Scope) -> Tensor:
    _, _, v, do = scope.tensors
    return (do @ v.mT) * (scope.x.valid(scope.tile) & (scope.used["P"] > 0))


def _unmasked(value: Tensor, scope: Scope) -> Tensor:
    _, _, v, do = scope.tensors
    i, _ = scope.x.positions(scope.tile)
    return (do @ v.mT / (i + 1)).sum((-2, -1))
