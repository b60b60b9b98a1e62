"""Whether two runs of the same values gave the same bits, or differ no more than the target does from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..cases.guards import same_bits
from ..running.trace import Trace

if TYPE_CHECKING:
    from torch import Tensor

# Few repeats show less than the most that atomics can do; a difference within this multiple of what they showed is no
# reason to look further, and one beyond it is not yet wrong: it is compared with the reference.
ROOM = 4.0


def floors(traces: Sequence[Trace]) -> dict[str, float]:
    """By intermediate, the largest difference between repeats: 0 where each has the very bits of the others."""
    first, *others = traces
    return {name: max(_difference(value, other.values[name]) for other in others)
            for name, value in first.values.items()}  # fmt: skip


def differing(trace: Trace, base: Trace, allowed: Mapping[str, float]) -> tuple[str, ...]:
    """The intermediates that differ in a single bit, or by more than the floor of repeats where there is one."""
    return tuple(
        name for name, value in base.values.items() if not _agrees(trace.values.get(name), value, allowed[name])
    )


def _agrees(tensor: Tensor | None, base: Tensor, floor: float) -> bool:
    if tensor is None or tensor.dtype != base.dtype:
        return False
    return bool(same_bits(tensor, base).all()) or (floor > 0 and _difference(tensor, base) <= ROOM * floor)


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference; infinite where one is not finite and the other is not the same."""
    apart = (one.double() - other.double()).abs().masked_fill(one == other, 0.0)
    both = one.isnan() & other.isnan()
    worst = apart.masked_fill(both, 0.0).nan_to_num(nan=float("inf"), posinf=float("inf"))
    return float(worst.max()) if worst.numel() else 0.0
