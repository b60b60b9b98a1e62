"""Looks into a black box under the layouts that tell most."""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter

from torch import Tensor

from ..frontends import INTERPRETED
from ..inputs.draw import outputs_of
from ..inputs.tensor_layouts import Inputs, for_more_batches, place
from ..model.assignment import Assigned, run_name
from ..model.case import Case
from ..model.failures import TargetFailure
from ..model.layout_run import MISMATCH
from ..numerics.budget import Recovery
from ..numerics.evidence import LayoutRun, MeasuredRun
from ..numerics.look import Examiner, look_inside
from ..numerics.one_hot import obstacle
from ..runtime.run import Trace
from .experiment import MOST_INTERPRETED, Experiment, derived, inputs_of
from .measure import measure
from .observe import Execution, accepted
from .runs import RunRecord

_TOO_SLOW = "that takes long in Triton's interpreter; a smaller --seqlen shows them"


def with_insides(experiment: Experiment, records: list[RunRecord]) -> list[RunRecord]:
    """Looks into a black box under the first layout and the first that fails.

    One-hot problems that are wrong where the run is right are a run of their own.
    """
    measured = [at for at, record in enumerate(records) if record.run.measured]
    failing = [at for at in measured if records[at].run.verdict == MISMATCH]
    looked, apart = list(records), list[RunRecord]()
    for at in sorted({*measured[:1], *failing[:1]}):
        looked[at] = record = _with_inside(experiment, records[at])
        run = record.run
        if run.measured and run.inside and run.measured.comparison.matches:
            whole = run.inside.measured
            if not whole.comparison.matches:
                looked[at] = replace(record, run=replace(run, inside=None))
                layout, inside = (
                    f"{run.layout}, one-hot inputs",
                    replace(run.inside, shown=whole),
                )
                apart.append(RunRecord(LayoutRun(layout, run.assigned, whole, None, inside)))
    return [*looked, *apart]


def _with_inside(experiment: Experiment, record: RunRecord) -> RunRecord:
    case, run, values = experiment.case, record.run, experiment.values
    own, assigned = run.measured, run.assigned
    # Of P or dS in another convention the others cannot be read.
    foreign = map(attrgetter("name"), own.conventions) if own is not None else ()
    if own is None or not own.is_recoverable or {"P", "dS"} & {*foreign}:
        return record
    is_slow = INTERPRETED in experiment.backends and case.scores > MOST_INTERPRETED
    if words := _TOO_SLOW if is_slow else obstacle(case, values):
        return record.with_more(notes=[f"P and dS are not recovered: {words}"])
    not_in = f"P and dS are not recovered in {run.layout}"
    if any(map(attrgetter("repeats"), run.laid)):
        words = f"{not_in}: a layout that repeats values holds no one-hot rows"
        return record.with_more(notes=[words] if case.layouts or case.runs else [])
    box = _BlackBox(experiment)
    examiner = Examiner(
        case, values, assigned, box.answer, box.measure, own,
        lambda: inputs_of(experiment, assigned).tensors,
    )  # fmt: skip
    try:
        with experiment.stopwatch.timed("compare"):
            inside = look_inside(examiner)
    except TargetFailure as failure:
        return record.with_more(box.executions, [f"{not_in}: {failure}"])
    return replace(record, run=replace(run, inside=inside)).with_more(box.executions)


class _BlackBox:
    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.executions: list[Execution] = []

    def answer(
        self, assigned: Assigned, case: Case, values: Mapping[str, Tensor], first: Mapping[str, Tensor]
    ) -> Trace:  # fmt: skip
        experiment, saved = self._experiment, self._experiment.saved
        times, everything = case.batch // experiment.case.batch, dict(values)
        for name, value in derived(experiment, first).items():
            everything[name] = value.repeat(times, *[1] * (value.dim() - 1))
        everything |= outputs_of(case, experiment.target.outputs, values)
        shapes = {name: tuple(value.shape) for name, value in everything.items()}
        placements = for_more_batches(saved.placements, shapes) if saved is not None else None
        # O and LSE of a file are none of these problems'.
        of = replace(experiment, case=case, saved=None)
        trace, execution = accepted(
            of, place(everything, assigned, placements, shapes=case.shapes)
        )
        # A target of one batch need not step from batch to batch in what is broadcast.
        is_beyond = case.batch > experiment.case.batch == 1
        self.executions.append(replace(execution, memory=()) if is_beyond else execution)
        return trace

    def measure(
        self, values: Mapping[str, Tensor], trace: Trace, recovery: Recovery | None = None, *, coarse: bool = False
    ) -> MeasuredRun:  # fmt: skip
        inputs = Inputs(run_name(()), values, values)
        return measure(self._experiment, inputs, trace, recovery, coarse=coarse)
