"""Looks into a black box under the layouts that tell most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from ..frontends import INTERPRETED, TORCH
from ..inputs.draw import outputs_of
from ..inputs.placement import for_more_batches, repeats
from ..inputs.tensor_layouts import Inputs, place
from ..model.assignment import AS_SAVED, Assigned, run_name
from ..model.case import Case
from ..model.failures import TargetFailure
from ..model.layout_run import MISMATCH
from ..model.mechanisms import door
from ..numerics.black_box.look import Examiner, look_inside
from ..numerics.black_box.recover import obstacle
from ..numerics.budget import Recovery
from ..numerics.evidence import LayoutRun, Measured
from ..runtime.trace import Trace
from .experiment import MOST_INTERPRETED, Experiment, derived, inputs_of
from .measure import measure
from .observe import Execution, accepted
from .runs import RunRecord, makes_together

_TOO_SLOW = "that takes long in Triton's interpreter; a smaller --seqlen shows them"


@door("one-hot", lambda experiment, records: records)
def with_insides(experiment: Experiment, records: list[RunRecord]) -> list[RunRecord]:
    """Looks into a black box under the first layout, and under the first that fails where that is another.

    Where a run is right and its one-hot problems are not, these stand behind the others as a run of their own.
    """
    measured = [at for at, record in enumerate(records) if record.run.measured]
    failing = [at for at, record in enumerate(records) if record.run.verdict == MISMATCH]
    looked, apart = list(records), list[RunRecord]()
    for at in sorted({*measured[:1], *failing[:1]}):
        looked[at] = record = _with_inside(experiment, records[at])
        run = record.run
        if run.measured is None or run.inside is None:
            continue
        if run.measured.comparison.matches and not run.inside.measured.comparison.matches:
            looked[at] = replace(record, run=replace(run, inside=None))
            layout, whole = f"{run.layout}, one-hot inputs", run.inside.measured
            inside = replace(run.inside, measured=whole, shown=whole)
            apart.append(RunRecord(LayoutRun(layout, run.assigned, whole, None, inside)))
    return [*looked, *apart]


def _with_inside(experiment: Experiment, record: RunRecord) -> RunRecord:
    """The run with a look inside the target, unless its layout repeats values, which leaves no one-hot rows."""
    case, run, values = experiment.case, record.run, experiment.values
    own, assigned = run.measured, run.assigned
    if own is None or not own.is_recoverable:
        return record
    # Of P or dS in another convention the others cannot be read.
    if not case.recover or any(convention.name in ("P", "dS") for convention in own.conventions):
        return record
    is_slow = INTERPRETED in experiment.backends and case.scores > MOST_INTERPRETED
    if words := _TOO_SLOW if is_slow else obstacle(case, values):
        return record.with_more(notes=[f"P and dS are not recovered: {words}"])
    not_in = f"P and dS are not recovered in {run.layout}"
    if _repeats_values(experiment, assigned):
        words = f"{not_in}: a layout that repeats values holds no one-hot rows"
        return record.with_more(notes=[words] if case.layouts or case.runs else [])
    box, first = _BlackBox(experiment), experiment.first
    examiner = Examiner(
        case, values, assigned, box.answer, box.measure, own,
        lambda: inputs_of(experiment, assigned).tensors,
        of_one_kernel=first is not None and makes_together(first, ("dQ", "dK")),
        # A target may be given LSE, give it, or launch kernels that hand it on to one another.
        may_read_lse=bool(
            experiment.backends - {TORCH} or "lse" in experiment.target.takes or "LSE" in own.trace.values
        ),
    )  # fmt: skip
    try:
        with experiment.stopwatch.timed("compare"):
            inside = look_inside(examiner)
    except TargetFailure as failure:
        # The run itself is measured, and stands.
        return record.with_more(box.executions, [f"{not_in}: {failure}"])
    return replace(record, run=replace(run, inside=inside)).with_more(box.executions)


def _repeats_values(experiment: Experiment, assigned: Assigned) -> bool:
    layouts, saved, values = dict(assigned).values(), experiment.saved, experiment.values
    if "expanded" in layouts or saved is None or AS_SAVED not in layouts:
        return "expanded" in layouts
    return any(repeats(tuple(values[name].shape), place) for name, place in saved.placements.items())


class _BlackBox:
    """A target that is given one-hot problems; it keeps what each execution did."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.executions: list[Execution] = []

    def answer(
        self, assigned: Assigned, case: Case, values: Mapping[str, Tensor], first: Mapping[str, Tensor]
    ) -> Trace:
        """The target's results on several probes, which have O, LSE and delta in common."""
        experiment, saved = self._experiment, self._experiment.saved
        times = case.batch // experiment.case.batch
        everything = dict(values)
        for name, value in derived(experiment, first).items():
            everything[name] = value.repeat(times, *[1] * (value.dim() - 1))
        everything |= outputs_of(case, experiment.target.outputs, values)
        shapes = {name: tuple(value.shape) for name, value in everything.items()}
        placements = for_more_batches(saved.placements, shapes) if saved else None
        inputs = place(everything, assigned, placements, shapes=case.shapes)
        # O and LSE of a file are none of these problems'.
        trace, execution = accepted(replace(experiment, case=case, saved=None), inputs)
        self.executions.append(execution)
        return trace

    def measure(
        self, values: Mapping[str, Tensor], trace: Trace, recovery: Recovery | None = None, *, coarse: bool = False
    ) -> Measured:
        """The results of one-hot problems, compared."""
        return measure(self._experiment, Inputs(run_name(()), values, values), trace, recovery, coarse=coarse)
