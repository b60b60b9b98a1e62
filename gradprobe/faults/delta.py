"""A: delta dropped, added, or computed from something else."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from .hypothesis import Hypothesis, Observed, making
from .variant import Hook, TileScope, pe, slope


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """What delta's part in dS may have become."""
    lazy = "rowsum(dO * O), which holds tau's share, where rowsum(P * dP) is meant"
    other = lazy if seen.x.family == "lazy" else "rowsum(P * dP), which differs from rowsum(dO * O) here"
    mean: Hook = lambda value, scope: value / scope.do.shape[-1]  # noqa: E731
    unmasked: Hook = lambda value, scope: (scope.used["P"] * scope.unmasked_dp).sum(-1)  # noqa: E731
    ways: tuple[tuple[str, str, str, Hook], ...] = (
        ("dropped", "delta is not subtracted: dS = P * dP", "delta", lambda value, scope: value * 0),
        ("sign", "delta is added where it is to be subtracted", "delta", lambda value, scope: -value),
        ("unweighted", "delta is subtracted outside the product: dS = P * dP - delta", "dS", _unweighted),
        ("formula", f"delta is computed by another formula: {other}", "delta", _other_formula),
        ("formula", "delta is rowsum(dO), without O", "delta", lambda value, scope: scope.do.sum(-1)),
        ("formula", "delta is rowsum(O * O)", "delta", lambda value, scope: (scope.used["O"] ** 2).sum(-1)),
        ("formula", "delta is rowsum(dP), without P", "delta", lambda value, scope: scope.used["dP"].sum(-1)),
        ("formula", "delta is the mean over the head dim, where the sum is meant", "delta", mean),
        ("from-unmasked", "delta sums dP before its mask", "delta", unmasked),
    )
    of_delta = "delta = rowsum(P * dP)" if seen.x.family == "lazy" else "delta = rowsum(dO * O)"
    for name, summary, step, hook in ways:
        fix = of_delta if name in ("formula", "from-unmasked") else "dS = P * (dP - delta)"
        yield making(f"delta/{name}", "A", summary, {step: hook}, also=("delta", "dS"), fix=fix)


def _unweighted(value: Tensor, scope: TileScope) -> Tensor:
    used = scope.used
    return (used["P"] * used["dP"] - used["delta"][..., None] * scope.valid) * slope(scope)


def _other_formula(value: Tensor, scope: TileScope) -> Tensor:
    """rowsum(dO * O) in the lazy family, from the O that the problem has, and rowsum(P * dP) in the softmax family."""
    if scope.x.family == "lazy":
        return (scope.do * (pe(scope) @ scope.v)).sum(-1)
    return (scope.used["P"] * scope.used["dP"]).sum(-1)
