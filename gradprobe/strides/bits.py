"""Compares runs of the same values: whether their bits agree, or they differ no more than repeats of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..cases.guards import same_bits
from ..running.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

# A few repeats show less than the largest difference that atomics can make. A difference within this multiple of theirs
# needs no further look. One beyond it is not wrong yet: it is compared with the reference.
ROOM = 4.0


def floors(traces: Sequence[Trace]) -> dict[str, float]:
    """By intermediate, the largest difference between repeats; 0 where their bits agree."""
    first, *others = (trace.values for trace in traces)
    return {name: max(_difference(value, other[name]) for other in others) for name, value in first.items()}


def differing(trace: Trace, base: Trace, allowed: Mapping[str, float]) -> tuple[str, ...]:
    """The intermediates that differ in any bit, or, where repeats differ too, by more than those."""
    return tuple(
        name for name, value in base.values.items() if not _agrees(trace.values.get(name), value, allowed[name])
    )


def _agrees(tensor: Tensor | None, base: Tensor, floor: float) -> bool:
    if tensor is None or tensor.dtype != base.dtype:
        return False
    return bool(same_bits(tensor, base).all()) or (floor > 0 and _difference(tensor, base) <= ROOM * floor)


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference; infinite where an element is not finite and its partner is not the same."""
    apart = (one.double() - other.double()).abs().masked_fill(one == other, 0.0)
    both = one.isnan() & other.isnan()
    worst = apart.masked_fill(both, 0.0).nan_to_num(nan=float("inf"), posinf=float("inf"))
    return float(worst.max()) if worst.numel() else 0.0
