"""N1: NaN throughout, which has no shape to tell a fault by, and none once every row sees a key."""

from __future__ import annotations

from dataclasses import replace

from ..faults.dead import FIX
from ..model.diagnosis import Diagnosis
from ..model.failures import Failure
from ..probing.experiment import inputs_of, measure
from ..probing.observe import execute
from .behaviour import Again


def right_without_dead_rows(again: Again) -> Diagnosis | None:
    """The same values right with a mask that shows every key to the rows from which it hides all."""
    mask = again.experiment.values.get("mask")
    seen = again.seen
    name = next((name for name in seen.own if bool((~seen.actual[name].isfinite() & ~seen.right[name]).any())), None)
    if name is None or mask is None or bool(mask.any(-1).all()):
        return None
    values = {**again.experiment.values, "mask": mask | ~mask.any(-1, keepdim=True)}
    experiment = replace(again.experiment, values=values)
    try:
        inputs = inputs_of(experiment, again.assigned)
        trace = execute(experiment, inputs).outcome.trace
        if trace is None or not measure(experiment, inputs, trace).comparison.matches:
            return None
    except Failure:
        return None
    summary = f"rows that see no key make {name} NaN: exp(-inf - -inf), or 0 / 0"
    evidence = "with a mask that shows those rows every key, the same values give right results"
    return Diagnosis("dead/nan", "N1", summary, 1.0, (evidence,), fix=FIX)
