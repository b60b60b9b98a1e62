"""DRP: dropout's mask or its 1 / (1 - p) missing somewhere."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..reference.problem import part
from .hypothesis import Hypothesis, Seen
from .variant import Hook, Scope, hooking


def hypotheses(seen: Seen) -> Iterator[Hypothesis]:
    """Where a backward may have forgotten dropout."""
    if seen.x.keep is None:
        return
    p = seen.x.dropout
    ways: tuple[tuple[str, str, tuple[tuple[str, Hook], ...]], ...] = (
        ("scale", "1 / (1 - p) is missing in dV", (("dV", lambda value, scope: value * (1 - p)),)),
        ("scale", "1 / (1 - p) is missing in dP", (("dP", lambda value, scope: value * (1 - p)),)),
        ("scale", "1 / (1 - p) is missing", (
            ("O", lambda value, scope: value * (1 - p)), ("dV", lambda value, scope: value * (1 - p)),
            ("dP", lambda value, scope: value * (1 - p)),
        )),
        ("dv", "dropout is left out of dV: P^T dO of all of P",
         (("dV", lambda value, scope: scope.used["P"].mT @ scope.tensors[3]),)),
        ("dv", "dV is made of the entries that were kept, and not scaled",
         (("dV", lambda value, scope: (_kept(scope) * scope.used["P"]).mT @ scope.tensors[3]),)),
        ("dp", "dropout is left out of dP",
         (("dP", lambda value, scope: (scope.tensors[3] @ scope.tensors[2].mT) * scope.x.valid(scope.tile)),)),
        ("ds", "dS is made of P after dropout, where P before it is meant",
         (("dS", lambda value, scope: value * _kept(scope) / (1 - p)),)),
    )  # fmt: skip
    for word, summary, hooks in ways:
        changes = frozenset(name for name, _ in hooks)
        yield Hypothesis(f"dropout/{word}", "DRP", summary, hooking(*hooks), changes)


def _kept(scope: Scope) -> Tensor:
    """[h, m, N] 1.0 where an entry was kept."""
    assert scope.x.keep is not None
    return part(scope.x.keep, scope.tile).double()
