"""A check that identities alone judge: for lengths at which no reference fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ..inputs.draw import outputs_of
from ..model.assignment import UNIT_RUN, Assigned, run_name
from ..model.failures import Refusal, TargetFailure, UsageFailure
from ..model.intermediates import DERIVED
from ..model.memory_finding import telling
from ..numerics.compare import Comparison, attention_of
from ..numerics.declared_precision import precision_of
from ..numerics.evidence import LayoutRun, Measured, Probed
from ..numerics.identities import doubled, permuted
from ..numerics.run_identities import (
    BLIND,
    agreement_alone,
    beyond_the_mask,
    family_of,
    identities_alone,
    silenced,
)
from ..probing.experiment import Experiment, Tick, dots_of, effective, experiment_of, layouts_of, silent
from ..probing.observe import Execution, execute
from ..probing.receipt import notes_of
from ..probing.runs import RunRecord, outcomes_of
from ..reference import Attention
from ..runtime.trace import Trace
from .probe import measured_so_far
from .resolve import Problem

if TYPE_CHECKING:
    from torch import Tensor

# Of the options, those whose very inputs are of the size of the scores.
_QUADRATIC = "--oracle identities makes nothing of the size of the scores, which {} has"


def probe_by_identities(
    problem: Problem, command: str, tick: Tick = silent, told: Callable[[Probed], object] = lambda so_far: None
) -> Probed:
    """Runs a target under each layout, and judges it by what holds for every right one.

    Raises:
        UsageFailure: the case has an input of the size of its scores, or the target takes what only a reference gives.
        Refusal: the target raised on purpose under every layout.
        TargetFailure: it could not be run, or gave nothing that an identity is about.
    """
    case, target = problem.case, problem.target
    _refuse(problem)
    experiment = experiment_of(case, target, None, problem.saved, tick=tick, command=command)
    records: list[RunRecord] = []
    first: _JudgedRun | None = None
    planned = list(layouts_of(case))
    for assigned in planned:
        record, judged = _judged(experiment, assigned, first)
        experiment = experiment.after(outcomes_of([record]))
        if first is None and judged is not None:
            first, record = judged, _with_more_runs(experiment, judged, record)
        records.append(record)
        asked = case.layouts or case.runs
        if judged is None and run_name(assigned) == "distinct" and not asked:  # many refuse a last stride but 1
            planned.append(UNIT_RUN)
        if first is not None:
            told(_report(experiment, records))
    if first is None:
        raise Refusal(f"target {target.name!r} refused every layout: nothing was judged")
    return _report(experiment, records)


def _refuse(problem: Problem) -> None:
    case, target, saved = problem.case, problem.target, problem.saved
    if case.bias and case.family == "softmax" and {"m", "n"} <= set(case.bias_axes):
        raise UsageFailure(_QUADRATIC.format("--bias"), "drop it, or give --bias-axes without m or n")
    if case.mask is not None and case.mask != "padding":
        raise UsageFailure(_QUADRATIC.format(f"--mask {case.mask}"), "drop it, or give --mask padding")
    if case.dropout:
        raise UsageFailure(_QUADRATIC.format("--dropout"), "drop it")
    if problem.reference is not None:
        raise UsageFailure("--oracle identities computes no reference", "drop --reference")
    missing = [name for name in DERIVED if name in target.required and name not in (saved.values if saved else {})]
    if missing:
        own = ", ".join(target.takes[name] for name in missing)
        raise UsageFailure(
            f"target {target.name!r} needs {own}, which no reference computes under --oracle identities",
            "check a function that computes them itself, or give an --inputs FILE that holds them",
        )


@dataclass(frozen=True)
class _JudgedRun:
    """A run, its problem in float64, and its results."""

    run: LayoutRun
    values: Mapping[str, Tensor]
    x: Attention
    trace: Trace


def _execution(experiment: Experiment, values: Mapping[str, Tensor], assigned: Assigned) -> Execution:
    outputs = outputs_of(experiment.case, experiment.target.outputs, values, experiment.unwritten)
    return execute(experiment, experiment.placed({**values, **outputs}, assigned))


def _judged(
    experiment: Experiment, assigned: Assigned, first: _JudgedRun | None
) -> tuple[RunRecord, _JudgedRun | None]:
    """One run, and what the identities say of it; None where it was refused."""
    case, values = experiment.case, effective(experiment.values, assigned)
    execution = _execution(experiment, values, assigned)
    trace, layout, executions = execution.outcome.trace, execution.inputs.layout, (execution.without_tensors(),)
    experiment = experiment.after([execution.outcome])
    if trace is None:
        memory = telling(execution.memory, False)
        return RunRecord(LayoutRun(layout, assigned, None, execution.outcome.refused, memory=memory), executions), None
    experiment.tick(f"judging {layout}", 0.0, f"{layout}, judged")
    with experiment.stopwatch.timed("compare"):
        expanded = {layout for _, layout in (*assigned, *(first.run.assigned if first else ()))} & {"expanded"}
        as_first = first if not expanded else None
        x = as_first.x if as_first is not None else attention_of(case, execution.inputs.values)
        precision = precision_of(case.dtype, dots_of(experiment))
        found = identities_alone(case, x, trace, precision)
        if as_first is not None:
            found.append(agreement_alone("I10", case, x, as_first.trace, trace, precision))
    if not found:
        raise TargetFailure(
            f"target {experiment.target.name!r} gave nothing that an identity is about",
            "return dK, or dV and O, or dQ and dK; or drop --oracle identities",
        )
    comparison = Comparison({}, (), precision, 0, {}, {}, {}, {})
    measured = Measured(lambda: x, Trace({}, {}), comparison, None, tuple(found))
    memory = telling(execution.memory, any(not bool(value.isfinite().all()) for value in trace.values.values()))
    run = LayoutRun(layout, assigned, measured, None, memory=memory)
    return RunRecord(run, executions), _JudgedRun(run, values, x, trace)


def _with_more_runs(experiment: Experiment, first: _JudgedRun, record: RunRecord) -> RunRecord:
    """The first layout's record with what takes further runs of it: I8 and I9, I6, and repeats."""
    case, x, trace, executions = experiment.case, first.x, first.trace, list[Execution]()
    # Values that were expanded are so already.
    assigned = tuple((tensor, layout) for tensor, layout in first.run.assigned if layout != "expanded")

    def run(values: Mapping[str, Tensor]) -> Trace:
        execution = _execution(experiment, values, assigned)
        if execution.outcome.trace is None:
            raise TargetFailure(f"target {experiment.target.name!r} refused values of a layout that it took before")
        executions.append(execution.without_tensors())
        return execution.outcome.trace

    precision = precision_of(case.dtype, dots_of(experiment))
    agrees = partial(agreement_alone, case=case, x=x, first=trace, precision=precision)
    found = [agrees("repeat", second=run(first.values)) for _ in range(1, case.repeat)]
    found.append(agrees("I8", second=run(doubled(first.values)), factor=2.0))
    if case.batch * case.heads > 1:
        found.append(agrees("I9", second=run(permuted(first.values, case)), reverse=True))
    silent = beyond_the_mask(case, x, run(silenced(first.values, case, x)))
    found += [silent] if silent is not None else []
    assert first.run.measured is not None
    measured = replace(first.run.measured, invariants=(*first.run.measured.invariants, *found))
    return replace(record, run=replace(first.run, measured=measured)).with_more(executions)


def _report(experiment: Experiment, records: list[RunRecord]) -> Probed:
    report = measured_so_far(experiment, records)
    broken = {one.key for run in report.runs if run.measured for one in run.measured.broken}
    family = family_of(broken)
    named = f"the identities that are broken ({', '.join(sorted(broken))}) name the family: {family}"
    return replace(
        report,
        provenance=replace(report.provenance, reference="none: identities alone"),
        notes=(*notes_of(experiment, records), f"these identities do not see {BLIND}"),
        known=(named,) if family else (),
        sought=False,
    )
