"""A measured run -> Observed: every element that came, what was expected of it, and whether it is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from ..faults.hypothesis import Observed
from ..faults.variant import whole_storage
from ..model.assignment import Assigned
from ..model.failures import Failure
from ..model.layout_run import MISMATCH
from ..numerics.compare import allowed_on, judge, tiles_of
from ..numerics.evidence import LayoutRun, Measured
from ..probing.experiment import Experiment, inputs_of
from ..probing.measure import measure
from ..probing.observe import execute
from ..reference import evaluate
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
    x, trace, comparison = measured.x, measured.trace, measured.comparison
    actual = {name: value.double() for name, value in trace.values.items()}
    right = {name: value.isnan() & False for name, value in actual.items()}
    expected, allowed = ({name: value * 0 for name, value in actual.items()} for _ in range(2))
    for tile in tiles_of(experiment.case, x):
        place, values = (tile.batch, tile.heads, tile.rows), evaluate(x, tile)
        budget = allowed_on(x, tile, values, comparison.precision, comparison.recovery)
        for name in actual.keys() & {*BY_ROW}:
            judged = judge(trace.values[name][place], values, budget, name)
            _, expected[name][place], allowed[name][place], right[name][place] = judged
    for name in actual.keys() - {*BY_ROW}:
        _, expected[name], allowed[name], right[name] = comparison.judged(trace, name)
    seen = Observed(
        experiment.case, x, actual, {**comparison.expected, **expected}, right,
        tuple(name for name, finding in comparison.findings.items() if finding.status == MISMATCH),
        tensors, allowed, measured, launches=bool(experiment.backends),
    )  # fmt: skip
    storages = [len(whole_storage(tensor)) for tensor in tensors.values()]
    is_small = seen.case.scores <= _FEW_SCORES and sum(storages) <= _FEW_ELEMENTS
    # On a GPU, launches would dominate hundreds of small evaluations.
    return _on_the_cpu(seen) if x.q.is_cuda and is_small else seen


def _on_the_cpu(seen: Observed) -> Observed:
    tensors = dict[str, Tensor]()
    for name, tensor in seen.tensors.items():
        whole = whole_storage(tensor).cpu()
        tensors[name] = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    moved = {of: _moved(getattr(seen, of)) for of in ("actual", "expected", "right", "allowed")}
    return replace(seen, x=replace(seen.x, **_moved(vars(seen.x))), tensors=tensors, **moved)  # type: ignore[arg-type]


def _moved(values: Mapping[str, object]) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in values.items() if isinstance(value, Tensor)}
