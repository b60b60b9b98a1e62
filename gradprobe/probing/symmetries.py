"""Second runs that must agree with the first: dO doubled, heads and batches reversed, another layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..inputs.draw import outputs_of
from ..model.assignment import AS_SAVED
from ..numerics.evidence import MISMATCH, Run
from ..numerics.identities import LINEAR_IN_DO, Invariant, agreement, doubled, permuted
from ..numerics.measured import Measured
from ..numerics.range import out_of_range
from .experiment import Experiment, derived, effective, measure
from .observe import Execution, accepted
from .runs import Record, summable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Second:
    """A second run beside the first."""

    invariant: Invariant
    """The identity between the two."""
    execution: Execution
    wrong: Run | None
    """The second one compared with its own reference, where the identity is broken and it is wrong by itself."""


def with_symmetries(experiment: Experiment, records: list[Record]) -> list[Record]:
    """I8 and I9 from one more run of the first layout, I10 from it and distinct where both have the same values."""
    having = [(at, one.run, one.run.measured) for at, one in enumerate(records) if one.run and one.run.measured]
    first = next((found for found in having if summable(found[2])), None)
    if first is None:
        return records
    place, run, measured = first
    of_first, seconds = _linear_and_permuted(experiment, run, measured)
    records, is_plain = list(records), run.layout in ("contiguous", AS_SAVED)
    for at, other, found in having:
        invariants = of_first if at == place else []
        if is_plain and other.layout.startswith("distinct"):
            invariants = [agreement("I10", experiment.case, measured.trace, found.trace, measured.comparison)]
        having_all = replace(found, invariants=(*found.invariants, *invariants))
        records[at] = replace(records[at], run=replace(other, measured=having_all))
    records[place] = records[place].with_more(second.execution for second in seconds)
    return [*records, *[Record(second.wrong) for second in seconds if second.wrong][:1]]


def _linear_and_permuted(experiment: Experiment, run: Run, first: Measured) -> tuple[list[Invariant], list[_Second]]:
    """dO doubled and heads and batches permuted, in one run; each alone only where the two together disagree.

    Where neither alone disagrees the target is not the same from call to call, and the run that showed it stands.
    """
    if not _may_double(experiment, first):
        reverse = _second(experiment, run, first, "I9", factor=1.0, reverse=True)
        return [reverse.invariant], [reverse]
    both = _second(experiment, run, first, "I8", factor=2.0, reverse=True)
    if both.invariant.holds:
        return [both.invariant, replace(both.invariant, key="I9")], [both]
    linear = _second(experiment, run, first, "I8", factor=2.0, reverse=False)
    reverse = _second(experiment, run, first, "I9", factor=1.0, reverse=True)
    broken = linear if not (linear.invariant.holds and reverse.invariant.holds) else both
    return [broken.invariant, reverse.invariant], [both, linear, reverse]


def _may_double(experiment: Experiment, first: Measured) -> bool:
    """Whether real values leave room in their dtype for twice the dO, which loss scaling may not."""
    import torch

    results = first.trace.values
    tensors = [experiment.values["do"], *(results[name] for name in LINEAR_IN_DO if name in results)]
    # Four times, for what a kernel holds in between.
    return not out_of_range(experiment.case, doubled(experiment.values)) and all(
        not tensor.numel() or float(tensor.nan_to_num().abs().max()) < torch.finfo(tensor.dtype).max / 4
        for tensor in tensors
    )


def _second(experiment: Experiment, run: Run, first: Measured, key: str, *, factor: float, reverse: bool) -> _Second:
    values: Mapping[str, Tensor] = effective(experiment.values, run.assigned)
    values = doubled(values) if factor != 1.0 else values
    values = permuted(values, experiment.case) if reverse else values
    # Values that were expanded are so already; laid out so once more they would lose the factor.
    assigned = tuple((tensor, layout) for tensor, layout in run.assigned if layout != "expanded")
    outputs = outputs_of(experiment.case, experiment.target.outputs, values)
    inputs = experiment.placed({**derived(experiment, values), **values, **outputs}, assigned)
    trace, execution = accepted(experiment, inputs)
    invariant = agreement(key, experiment.case, first.trace, trace, first.comparison, factor=factor, reverse=reverse)
    if invariant.holds:
        return _Second(invariant, execution, None)
    what = " and ".join((["dO doubled"] if factor != 1.0 else []) + (["heads reversed"] if reverse else []))
    second = Run(f"{run.layout}, {what}", assigned, measure(experiment, inputs, trace), None)
    return _Second(invariant, execution, second if second.verdict == MISMATCH else None)
