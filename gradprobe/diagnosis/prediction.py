"""A measured run -> Observed: every element that came, what was expected of it, and whether it is right."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..faults.hypothesis import Observed
from ..frontends.interface import TORCH
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
    return Observed(
        experiment.case,
        x,
        actual,
        {**comparison.expected, **expected},
        right,
        tuple(name for name, finding in comparison.findings.items() if finding.status == MISMATCH),
        tensors,
        allowed,
        measured,
        launches=bool(experiment.backends - {TORCH}),
    )
