"""Given: which launched kernels get the memory of a target's results, by storages, else by names."""

from __future__ import annotations

from collections.abc import Collection

from ..runtime.launches import Pointer
from ..runtime.run import Outcome


def pointers_to(outcome: Outcome, name: str) -> list[Pointer]:
    """The pointers to an intermediate that kernels of Triton were launched with."""
    if not outcome.pointers:  # else Triton is loaded
        return []
    from ..source.additions import named_after

    homes = {address for address, of in outcome.storages.items() if of.lower() == name.lower()}
    named = [one for one in outcome.pointers if named_after(one.parameter) == name]
    # A storage may have been another tensor's before: names decide where there are some.
    return named or [one for one in outcome.pointers if one.storage in homes]


def makes_together(outcome: Outcome, names: Collection[str]) -> bool:
    """Whether one kernel was launched with pointers to all of these intermediates."""
    kernels = [{id(one.kernel) for one in pointers_to(outcome, name)} for name in names]
    return bool(set.intersection(*kernels))
