"""The runs of a target: one for each layout, and further ones that must agree with the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..inputs.guard_bands import same_bits
from ..inputs.tensor_layouts import laid
from ..model.assignment import AS_SAVED, ORDERED_RUN, UNIT_RUN, Assigned
from ..model.case import Case
from ..model.layout_run import MATCH, MISMATCH
from ..model.memory_finding import RACE, MemoryFinding, telling, worst_first
from ..numerics.evidence import LayoutRun, Measured
from ..numerics.identities import agreement
from ..numerics.repeats import Repeats
from ..runtime.run import Outcome
from .atomics import atomics_into
from .experiment import Experiment, inputs_of, layouts_of
from .measure import measure
from .observe import Execution, accepted, execute


@dataclass(frozen=True)
class RunRecord:
    """One run of a report, and the executions of the target that it was made from, without their tensors."""

    run: LayoutRun | None
    """None where a configuration of an autotuned kernel does not fit."""
    executions: tuple[Execution, ...] = ()
    notes: tuple[str, ...] = ()
    configuration: tuple[str, int] | None = None
    """Of a run in another configuration than the first: the autotuned kernel, and the configuration's number."""

    def with_more(self, executions: Iterable[Execution] = (), notes: Iterable[str] = ()) -> RunRecord:
        """The same after further executions."""
        return replace(self, executions=(*self.executions, *executions), notes=(*self.notes, *notes))


def outcomes_of(records: Iterable[RunRecord]) -> Iterator[Outcome]:
    """What the executions of some records came to."""
    return (execution.outcome for record in records for execution in record.executions)


def records_of(experiment: Experiment) -> Iterator[RunRecord]:
    """A record of each run of a case under all of its layouts, as soon as it is measured."""
    case, measured = experiment.case, list[LayoutRun]()
    for assigned in layouts_of(experiment.case):
        for made in _of_layout(experiment, assigned):
            record = replace(made, run=_beside_first(case, made.run, measured)) if made.run else made
            measured += [record.run] if record.run and record.run.measured else []
            experiment = experiment.after(outcomes_of([record]))
            yield record


def second_call(experiment: Experiment, records: Sequence[RunRecord]) -> list[RunRecord]:
    """The run of a second call where that alone is wrong, of a target that takes one layout alone; else nothing."""
    measured = [record.run for record in records if record.run and record.run.measured]
    if len(measured) != 1 or measured[0].verdict != MATCH or experiment.case.repeat > 1:
        return []
    record, run = _record(experiment, measured[0].assigned)
    is_wrong = run.verdict == MISMATCH
    return [replace(record, run=replace(run, layout=f"{run.layout}, once more"))] if is_wrong else []


def _beside_first(case: Case, run: LayoutRun, others: Sequence[LayoutRun]) -> LayoutRun:
    """The run; one with the values of the first with I10, which says that both give the same."""
    first = next((other for other in others if other.measured and summable(other.measured)), run)
    before, now = first.measured, run.measured
    is_pair = first.layout in ("contiguous", AS_SAVED) and run.layout.startswith("distinct")
    if before is None or now is None or not is_pair:
        return run
    invariant = agreement("I10", case, before.raw, now.raw, before.comparison)
    return replace(run, measured=replace(now, invariants=(*now.invariants, invariant)))


def runs_of(experiment: Experiment) -> list[LayoutRun]:
    """The runs of a case under all of its layouts."""
    return [record.run for record in records_of(experiment) if record.run is not None]


def _of_layout(experiment: Experiment, assigned: Assigned) -> Iterator[RunRecord]:
    """One layout; where `distinct` is refused or never reaches the kernels, `distinct-unit` as well.

    Where that is refused too, also what keeps the order of axes, unless it is refused for the same reason.
    """
    record, run = _record(experiment, assigned)
    request, experiment = experiment.case.layouts or experiment.case.runs, experiment.after(outcomes_of([record]))
    yield record
    if experiment.case.configs == "all" and assigned == layouts_of(experiment.case)[0]:
        yield from _in_other_configurations(experiment, assigned, record)
    assert experiment.first is not None
    # Many wrappers make a tensor contiguous where its last stride is not 1, and look right whatever strides they mix
    # up: inputs were copied that the kernels took as they lay in the first run.
    copied = bool(experiment.first.taken - record.executions[-1].outcome.taken)
    if run.layout == "distinct" and not request and (run.measured is None or copied):
        record, run = _record(experiment, UNIT_RUN)
        yield record
        in_order = _record(experiment, ORDERED_RUN) if run.measured is None else None
        if in_order and (in_order[1].measured or in_order[1].memory):
            yield in_order[0]


def _in_other_configurations(experiment: Experiment, assigned: Assigned, plain: RunRecord) -> Iterator[RunRecord]:
    """The run once more in each other configuration of each autotuned kernel; its name tells which."""
    for first in plain.executions[-1].outcome.configurations:
        for number in first.others:
            record, run = _record(pinned(experiment, first.kernel, number), assigned)
            ran = record.executions[-1].outcome.configurations
            came = next((one for one in ran if (one.kernel, one.number) == (first.kernel, number)), None)
            if came is None:
                note = f"{first.kernel}: configuration {number} of {first.count} does not fit"
                yield replace(record.with_more(notes=[note]), run=None)
            else:
                title = f"{run.layout}, {came.kernel} with configuration {number} of {came.count} ({came.words})"
                executions = tuple(execution.without_tensors(title) for execution in record.executions)
                yield RunRecord(replace(run, layout=title), executions, record.notes, (came.kernel, number))


def pinned(experiment: Experiment, kernel: str, number: int) -> Experiment:
    """The experiment with one configuration of one autotuned kernel."""
    return replace(experiment, case=replace(experiment.case, pinned=((kernel, number),)))


def _record(experiment: Experiment, assigned: Assigned) -> tuple[RunRecord, LayoutRun]:
    inputs = inputs_of(experiment, assigned)
    first = execute(experiment, inputs)
    experiment, trace, memory = experiment.after([first.outcome]), first.outcome.trace, list(first.memory)
    first, lay = first.without_tensors(), laid(experiment.case, inputs)
    if trace is None:
        run = LayoutRun(inputs.layout, assigned, None, first.outcome.refused, memory=telling(memory, False), laid=lay)
        return RunRecord(run, (first,)), run
    inputs = replace(inputs, tensors={})  # of which its values are left
    measured = plain = measure(experiment, inputs, trace)
    seen, executions = Repeats(experiment.case, plain), [first]
    for number in range(1, experiment.case.repeat):
        # In every second repeat memory without values holds 7.0, which a sum takes for a number.
        sevens = replace(experiment, unwritten=7.0) if experiment.case.poison and number % 2 else experiment
        measured, execution = _again(sevens, assigned, plain, measured, seen, number)
        executions.append(execution)
        memory += [one for one in execution.memory if one.identity not in {known.identity for known in memory}]
    non_finite = any(bool(finding.non_finite) for finding in measured.comparison.findings.values())
    run = LayoutRun(inputs.layout, assigned, measured, None, memory=telling(memory, non_finite), laid=lay)
    if seen.count > 1:
        run = replace(run, repeats=seen.count, repeated=seen.found(atomics_into(first.outcome, seen.varying)))
    return RunRecord(run, tuple(executions)), run


def with_strays(records: Iterable[RunRecord]) -> list[LayoutRun]:
    """The runs, with the memory findings of their repeats and looks inside, which run in the same layout."""
    records = list(records)
    found = [(execution.layout, execution.memory) for record in records for execution in record.executions]
    runs = [record.run for record in records if record.run is not None]
    return [replace(run, memory=_with_those_of(run, found)) if run.measured else run for run in runs]


def _with_those_of(
    run: LayoutRun, others: Sequence[tuple[str, tuple[MemoryFinding, ...]]]
) -> tuple[MemoryFinding, ...]:
    found = {one.identity: one for one in run.memory}
    told = {one.place_of_access for one in run.memory}
    for one in (one for layout, memory in others if layout == run.layout for one in memory):
        # Whether memory without values shows was decided by the run's own results. Looks inside have more batches,
        # and what leaves a tensor of the case meets another program there: it is the same fault, by another name.
        if not one.is_read_without_value and not (one.kind == RACE and one.place_of_access in told):
            found.setdefault(one.identity, one)
    return tuple(worst_first(found.values()))


def _again(
    experiment: Experiment, assigned: Assigned, first: Measured, kept: Measured, seen: Repeats, number: int
) -> tuple[Measured, Execution]:
    """Runs the target again; a wrong run takes the place of a right one.

    Args:
        kept: the run that stands so far.
        number: of the repeat; in each the threads and blocks of CUDA kernels on the CPU run in another order.
    """
    inputs = inputs_of(experiment, assigned)  # laid out afresh: a target may have written over its inputs
    trace, execution = accepted(experiment, inputs, number)
    before, now = first.raw.values, trace.values
    is_same = before.keys() == now.keys() and all(_is_same(before[name], now[name]) for name in now)
    again = first if is_same else measure(experiment, inputs, trace)
    seen.add(again)
    worse = again if kept.matches and not again.matches else kept
    if summable(first):
        invariant = agreement("repeat", experiment.case, first.raw, trace, first.comparison)
        worse = replace(worse, invariants=(*worse.invariants, invariant))
    return worse, execution


def _is_same(before: Tensor, now: Tensor) -> bool:
    return before.dtype == now.dtype and bool(same_bits(before, now).all())


def summable(measured: Measured) -> bool:
    """Whether two runs can be compared: not where only P, dP or dS, of quadratic size, came."""
    return bool(measured.comparison.bounds.keys() & measured.trace.values.keys())
