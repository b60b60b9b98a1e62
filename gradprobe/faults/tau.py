"""A, M1: the lazy family's ReLU and tau: the mask of dP, what tau is divided by, and where it is added."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from .hypothesis import Hypothesis, Observed, making
from .mask import TILES, Rule, causal, causal_by_tiles
from .variant import Alter, Hook, TileScope, hooking, pe

_CHANGES = frozenset({"O", "dP", "delta", "dV", "dTau"})
# [m or 1, N or 1] what tau is divided by, from the positions i [m, 1] and j [1, N].
Position = Callable[[Tensor, Tensor], Tensor]


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
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
    whole: Hook = lambda value, scope: value + _below(scope) @ scope.v  # noqa: E731
    hooks = {"O": whole, "dV": lambda value, scope: value + _below(scope).mT @ scope.do}
    summary, fix = "the ReLU is left out: P + tau / (i + 1) weighs where it is negative too", "relu(P + tau / (i + 1))"
    yield making("relu/missing", "A", summary, hooks, fix=fix)
    by_p: Hook = lambda value, scope: scope.unmasked_dp * (scope.valid & (scope.used["P"] > 0))  # noqa: E731
    yield making("relu/sign", "A", summary, {"dP": by_p}, also=_CHANGES)
    ways: tuple[tuple[str, Hook], ...] = (
        ("without dividing it by i + 1", lambda value, scope: scope.used["dP"].sum((-2, -1))),
        ("before it is masked", lambda value, scope: (scope.unmasked_dp / _from_1(scope)).sum((-2, -1))),
        ("without the ReLU's mask", lambda v, scope: (scope.unmasked_dp * scope.valid / _from_1(scope)).sum((-2, -1))),
    )
    for words, hook in ways:
        yield making("tau/gradient", "A", f"dTau sums dP {words}", {"dTau": hook}, fix="dTau = sum of dP / (i + 1)")
    yield from _added_to_what_is_masked(seen)


def _added_to_what_is_masked(seen: Observed) -> Iterator[Hypothesis]:
    """tau added behind the causal mask: what is masked weighs tau / (i + 1) where tau > 0, as far as it is visited."""
    summary = "the causal mask is applied before tau is added: masked keys weigh tau / (i + 1) where tau > 0"
    fix = "mask the sum: tl.where(valid, relu(P + tau / (i + 1)), 0), and P + tau / (i + 1) > 0 with it"
    yield _beyond_the_mask(summary, causal(None), fix)
    squares = sorted(TILES, key=lambda tile: tile[0] != tile[1])  # which most kernels compute; others show alike
    for rows, keys in dict.fromkeys(((seen.case.block_m, seen.case.block_n), *squares)):
        words = f"{summary}, in the tiles of {rows} rows and {keys} keys that are visited"
        yield _beyond_the_mask(words, causal_by_tiles(rows, keys), fix)


def _beyond_the_mask(summary: str, rule: Rule, fix: str) -> Hypothesis:
    def visible(scope: TileScope) -> Tensor:
        return rule(scope.valid, scope.x, scope.tile)

    def z(scope: TileScope) -> Tensor:
        assert scope.x.tau is not None
        return scope.used["P"] + scope.x.tau[scope.tile.heads, None, None] / _from_1(scope)

    hooks: dict[str, Hook] = {
        "O": lambda value, scope: (z(scope).relu() * visible(scope)) @ scope.v,
        "dP": lambda value, scope: scope.unmasked_dp * (visible(scope) & (z(scope) > 0)),
        "dV": lambda value, scope: (z(scope).relu() * visible(scope)).mT @ scope.do,
    }
    return making("tau/mask", "M1", summary, hooks, also=("dTau",), fix=fix)


def _below(scope: TileScope) -> Tensor:
    """[h, m, N] P + tau / (i + 1) where that is negative: what the ReLU takes away."""
    assert scope.x.tau is not None
    floor = scope.x.tau[scope.tile.heads, None, None] / _from_1(scope)
    return (scope.used["P"] + floor) * scope.valid - pe(scope)


def _from_1(scope: TileScope) -> Tensor:
    """[m, 1] the number of each row, from 1."""
    return scope.x.positions(scope.tile)[0] + 1


def _at(position: Position, unmasked: bool, in_dtau: bool) -> Alter:
    """O, dP and dV with another share of tau, and dTau where it is divided by the same."""

    def z(scope: TileScope) -> Tensor:
        assert scope.x.tau is not None
        share = scope.x.tau[scope.tile.heads, None, None] / position(*scope.x.positions(scope.tile))
        return scope.used["P"] + share

    def weights(scope: TileScope) -> Tensor:
        return z(scope).relu() * scope.valid

    def dtau(value: Tensor, scope: TileScope) -> Tensor:
        divided = scope.used["dP"] / position(*scope.x.positions(scope.tile))
        return divided.nan_to_num(posinf=0.0, neginf=0.0).sum((-2, -1))

    hooks: dict[str, Hook] = {
        "O": lambda value, scope: weights(scope) @ scope.v,
        "dP": lambda value, scope: scope.unmasked_dp * (scope.valid if unmasked else scope.valid & (z(scope) > 0)),
        "dV": lambda value, scope: weights(scope).mT @ scope.do,
    }
    return hooking(*hooks.items(), *((("dTau", dtau),) if in_dtau else ()))
