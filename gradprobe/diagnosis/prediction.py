"""A measured run -> Observed: every element that came, what was expected of it, and whether it is right."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from ..faults.hypothesis import Observed
from ..faults.index import whole_storage
from ..faults.variant import Variant
from ..model.assignment import Assigned
from ..model.failures import Failure
from ..model.layout_run import MISMATCH
from ..numerics.budget import Whole, tile_budget
from ..numerics.compare import allowed_on, judge, tiles_of
from ..numerics.declared_precision import Precision, output_rounding
from ..numerics.evidence import LayoutRun, Measured
from ..probing.experiment import Experiment, inputs_of
from ..probing.measure import measure
from ..probing.observe import execute
from ..reference import Tile, evaluate
from ..reference.attention import BY_ROW

_FEW_SCORES, _FEW_ELEMENTS = 1 << 19, 1 << 24


def observed_in(experiment: Experiment, run: LayoutRun) -> Observed:
    """What a run that came to results showed."""
    assert run.measured is not None
    return _observed(experiment, run.measured, inputs_of(experiment, run.assigned).tensors)


def run_again(experiment: Experiment, assigned: Assigned) -> Observed | None:
    """What another run shows, in a layout; None where the target does not take it."""
    try:
        inputs = inputs_of(experiment, assigned)
        trace = execute(experiment, inputs).outcome.trace
        return _observed(experiment, measure(experiment, inputs, trace), inputs.tensors) if trace else None
    except Failure:
        return None


def _observed(experiment: Experiment, measured: Measured, tensors: Mapping[str, Tensor]) -> Observed:
    """What a run showed.

    Args:
        tensors: the inputs as they lay in memory before it.
    """
    case = experiment.case
    x, trace, comparison = measured.x, measured.trace, measured.comparison
    actual = {name: value.double() for name, value in trace.values.items()}
    right = {name: value.isnan() & False for name, value in actual.items()}
    expected, allowed = ({name: value * 0 for name, value in actual.items()} for _ in range(2))
    for tile in tiles_of(case, x):
        place, values = (tile.batch, tile.heads, tile.rows), evaluate(x, tile)
        budget = allowed_on(x, tile, values, comparison.precision, comparison.recovery)
        for name in actual.keys() & {*BY_ROW}:
            judged = judge(trace.values[name][place], values, budget, name)
            _, expected[name][place], allowed[name][place], right[name][place] = judged
    for name in actual.keys() - {*BY_ROW}:
        _, expected[name], allowed[name], right[name] = comparison.judged(trace, name)
    expected = {**comparison.expected, **expected}
    own = tuple(name for name, finding in comparison.findings.items() if finding.status == MISMATCH)
    launches = bool(experiment.backends)
    return _at_hand(Observed(case, x, actual, expected, right, own, tensors, allowed, measured, launches))


def _at_hand(seen: Observed) -> Observed:
    """The same on the CPU where it is small: on a GPU, launches would dominate hundreds of small evaluations."""
    storages = {name: whole_storage(tensor) for name, tensor in seen.tensors.items()}
    is_large = seen.case.scores > _FEW_SCORES or sum(map(len, storages.values())) > _FEW_ELEMENTS
    if not seen.x.q.is_cuda or is_large:
        return seen
    inputs: dict[str, Any] = {name: value.cpu() for name, value in vars(seen.x).items() if isinstance(value, Tensor)}
    tensors = dict[str, Tensor]()
    for name, tensor in seen.tensors.items():
        tensors[name] = storages[name].cpu().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    moved: dict[str, Any] = {}
    for of in ("actual", "expected", "right", "allowed"):
        moved[of] = {name: value.cpu() for name, value in getattr(seen, of).items()}
    return replace(seen, x=replace(seen.x, **inputs), tensors=tensors, **moved)


class Prediction(NamedTuple):
    """What would come, by intermediate."""

    values: Mapping[str, Tensor]
    bounds: Mapping[str, Tensor]
    """The errors allowed to it; empty where they were not asked for."""


def predict(
    seen: Observed,
    variant: Variant,
    buffers: Mapping[str, Tensor],
    where: Sequence[Tile],
    precision: Precision | None = None,
    wanted: Collection[str] | None = None,
) -> Prediction:
    """What a variant gives on some tiles where the target exposes anything.

    Args:
        buffers: LSE, O and delta as kernels find them, as far as they are no part of the prediction.
        precision: the arithmetic that bounds are derived from; None for no bounds.
        wanted: from `reference.evaluate`; None for all.
    """
    shapes = {name: tuple(actual.shape) for name, actual in seen.actual.items() if wanted is None or name in wanted}
    whole = Whole(seen.x, shapes, bounded=precision is not None, share=variant.share)
    for tile in where:
        values = variant.on(tile, buffers, wanted)
        whole.add(tile, values, tile_budget(variant, tile, values, precision) if precision else None)
    finished = dict(whole.values)
    finished |= variant.finish(finished) if variant.finish is not None else {}
    if precision is None:
        return Prediction(finished, {})
    whole.bounds |= {name: whole.bound(name, whole.values[name], precision) for name in whole.squares}
    bounds = dict[str, Tensor]()
    for name, bound in whole.bounds.items():
        dtype = seen.measured.trace.values[name].dtype
        bounds[name] = bound + output_rounding(whole.values[name], bound, dtype)
    return Prediction(finished, bounds)
