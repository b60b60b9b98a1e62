"""What was seen of memory, as findings: accesses, guard bands, inputs that changed, and how results are held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..inputs.draw import coarser_than
from ..inputs.guard_bands import Breach
from ..model.memory_finding import DTYPE, GUARD, UNWRITTEN, MemoryFinding
from ..runtime.trace import Trace, dtype_of

if TYPE_CHECKING:
    from torch import Tensor


def of_breach(breach: Breach) -> MemoryFinding:
    """A guard band that was written."""
    return MemoryFinding(GUARD, breach.tensor, breach.sentence, access="store", lanes=breach.count)


def of_dtypes(trace: Trace, values: Mapping[str, Tensor]) -> Iterator[MemoryFinding]:
    """Results whose dtype cannot hold their numbers."""
    for name, tensor in trace.values.items():
        like = (
            coarser_than(name, tensor.dtype, values) if trace.sources[name] == "exported" else None
        )
        if like is not None:
            came, due = dtype_of(trace, name) or "", str(values[like].dtype).removeprefix("torch.")
            sentence = f"{name} came as {came}, which does not hold the numbers of {due}, the dtype of {like}"
            yield MemoryFinding(DTYPE, name, sentence, actual=came, expected=due)


def never_written(
    first: Trace, second: Trace, unwritten: tuple[float, float]
) -> Iterator[MemoryFinding]:
    """Elements that hold, in both runs, what memory held before the run.

    Args:
        unwritten: what memory without values held in the first and in the second run, two different numbers.
    """
    for name in first.values.keys() & second.values.keys():
        left = _holds(first.values[name], unwritten[0]) & _holds(second.values[name], unwritten[1])
        if bool(left.any()):
            where = left.nonzero()
            at = ", ".join(map(str, where[0].tolist()))
            words = f"{len(where):,} of {left.numel():,} elements were never written, the first at [{at}]"
            yield MemoryFinding(UNWRITTEN, name, f"{name}: {words}")


def _holds(tensor: Tensor, number: float) -> Tensor:
    return tensor.isnan() if number != number else tensor == number
