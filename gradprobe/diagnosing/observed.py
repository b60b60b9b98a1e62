"""A measured run -> Seen: every element that came, what was expected of it, and whether it is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..budgets.roundings import rounding_shift
from ..cases.case import Case
from ..faults.hypothesis import Seen
from ..faults.memory import whole_storage
from ..judging.compare import BY_TILE, Judge, allowed_on, judge_whole, tiles_of
from ..judging.measured import Measured
from ..judging.tally import MISMATCH
from ..reference import Attention, evaluate

if TYPE_CHECKING:
    from torch import Tensor

_FEW_SCORES, _FEW_ELEMENTS = 1 << 19, 1 << 24


@dataclass(frozen=True)
class Observed(Seen):
    """What hypotheses are tested against."""

    allowed: Mapping[str, Tensor]
    """The error allowed to each element, by intermediate."""
    measured: Measured


def observed(case: Case, measured: Measured, tensors: Mapping[str, Tensor]) -> Observed:
    """What a run showed.

    Args:
        tensors: the inputs as they lay in memory before it.
    """
    x, trace, comparison = measured.x, measured.trace, measured.comparison
    actual = {name: value.double() for name, value in trace.values.items()}
    right = {name: value.new_zeros(value.shape, dtype=bool) for name, value in actual.items()}  # type: ignore[call-overload]
    expected, allowed = ({name: value * 0 for name, value in actual.items()} for _ in range(2))
    for tile in tiles_of(case, x):
        place, values = (tile.batch, tile.heads, tile.rows), evaluate(x, tile)
        shift = rounding_shift(x, tile, values, comparison.precision)
        budget = allowed_on(x, tile, values, comparison.precision, shift, comparison.recovery)
        for name in (name for name in BY_TILE if name in actual):
            judge = Judge(trace.values[name][place], values, budget, name)
            expected[name][place], allowed[name][place] = judge.expected, judge.bound
            right[name][place] = judge.right()
    for name in (name for name in actual if name not in BY_TILE):
        _, expected[name], allowed[name], right[name] = judge_whole(trace, comparison, name)
    expected |= {name: value for name, value in comparison.expected.items() if name not in expected}
    own = tuple(name for name, finding in comparison.findings.items() if finding.status == MISMATCH)
    return _at_hand(Observed(case, x, actual, expected, right, own, tensors, allowed, measured))


def _at_hand(seen: Observed) -> Observed:
    """The same on the CPU where it is small: on a GPU, launches would dominate hundreds of small evaluations."""
    case, storages = seen.case, [whole_storage(tensor) for tensor in seen.tensors.values()]
    scores = case.batch * case.heads * case.seqlen_q * case.seqlen_k
    if not seen.x.q.is_cuda or scores > _FEW_SCORES or sum(map(len, storages)) > _FEW_ELEMENTS:
        return seen
    fields = {name: getattr(seen.x, name) for name in Attention.__dataclass_fields__}
    x = replace(seen.x, **{name: value.cpu() for name, value in fields.items() if hasattr(value, "cpu")})
    tensors = {
        name: storage.cpu().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        for (name, tensor), storage in zip(seen.tensors.items(), storages, strict=True)
    }
    actual, expected, right, allowed = (
        {name: value.cpu() for name, value in values.items()}
        for values in (seen.actual, seen.expected, seen.right, seen.allowed)
    )
    return replace(seen, x=x, tensors=tensors, actual=actual, expected=expected, right=right, allowed=allowed)
