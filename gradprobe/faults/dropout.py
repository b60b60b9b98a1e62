"""DRP: dropout's mask or its 1 / (1 - p) missing somewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from ..reference.problem import part
from .hypothesis import Hypothesis, Observed, making
from .variant import Hook, TileScope


def hypotheses(seen: Observed) -> Iterator[Hypothesis]:
    """Where a backward may have forgotten dropout."""
    if seen.x.keep is None:
        return
    p = seen.x.dropout
    unscaled: Hook = lambda value, scope: value * (1 - p)  # noqa: E731
    all_of_p: Hook = lambda value, scope: scope.used["P"].mT @ scope.do  # noqa: E731
    kept_of_p: Hook = lambda value, scope: (_kept(scope) * scope.used["P"]).mT @ scope.do  # noqa: E731
    undropped: Hook = lambda value, scope: scope.unmasked_dp * scope.valid  # noqa: E731
    dropped: Hook = lambda value, scope: value * _kept(scope) / (1 - p)  # noqa: E731
    ways: tuple[tuple[str, str, Mapping[str, Hook]], ...] = (
        ("scale", "1 / (1 - p) is missing in dV", {"dV": unscaled}),
        ("scale", "1 / (1 - p) is missing in dP", {"dP": unscaled}),
        ("scale", "1 / (1 - p) is missing", {"O": unscaled, "dV": unscaled, "dP": unscaled}),
        ("dv", "dropout is left out of dV: P^T dO of all of P", {"dV": all_of_p}),
        ("dv", "dV is made of the entries that were kept, and not scaled", {"dV": kept_of_p}),
        ("dp", "dropout is left out of dP", {"dP": undropped}),
        ("ds", "dS is made of P after dropout, where P before it is meant", {"dS": dropped}),
    )
    for word, summary, hooks in ways:
        yield making(f"dropout/{word}", "DRP", summary, hooks)


def _kept(scope: TileScope) -> Tensor:
    """[h, m, N] 1.0 where an entry was kept."""
    assert scope.x.keep is not None
    return part(scope.x.keep, scope.tile).double()
