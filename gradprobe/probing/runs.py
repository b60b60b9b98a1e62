"""The runs of a target: one for each layout, and second runs that must agree with the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..inputs.draw import outputs_of
from ..inputs.guards import same_bits
from ..inputs.layouts import Inputs, laid
from ..model.assignment import AS_SAVED, UNIT_RUN, Assigned, run_name
from ..model.failures import TargetFailure, UsageFailure
from ..model.memory import RACE, UNWRITTEN, MemoryFinding, telling, worst_first
from ..model.run import MISMATCH
from ..numerics.evidence import LayoutRun, Measured
from ..numerics.identities import LINEAR_IN_DO, Invariant, agreement, doubled, permuted
from ..numerics.range import out_of_range
from ..numerics.repeats import Repeats
from ..runtime.run import Outcome
from .atomics import atomics_into
from .experiment import Experiment, derived, effective, inputs_of, layouts_of, measure
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
    for assigned in layouts_of(experiment.case):
        for record in _of_layout(experiment, assigned):
            experiment = experiment.after(outcomes_of([record]))
            yield record


def runs_of(experiment: Experiment) -> list[LayoutRun]:
    """The runs of a case under all of its layouts."""
    return [record.run for record in records_of(experiment) if record.run is not None]


def _of_layout(experiment: Experiment, assigned: Assigned) -> Iterator[RunRecord]:
    """One layout; where `distinct` is refused or never reaches the kernels, `distinct-unit` as well."""
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
        yield _record(experiment, UNIT_RUN)[0]


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
    measured = measure(experiment, inputs, trace)
    seen = Repeats(experiment.case, measured)
    measured, ordered, notes = _in_other_orders(experiment, assigned, measured, seen)
    for other in ordered:
        memory += [one for one in other.memory if one.identity not in {known.identity for known in memory}]
    repeats = []
    for number in range(1, experiment.case.repeat):
        # In every second repeat memory without values holds 7.0, which a sum takes for a number.
        sevens = replace(experiment, unwritten=7.0) if experiment.case.poison and number % 2 else experiment
        measured, execution = _repeated(sevens, assigned, measured, seen)
        repeats.append(execution)
    non_finite = any(bool(finding.non_finite) for finding in measured.comparison.findings.values())
    run = LayoutRun(inputs.layout, assigned, measured, None, memory=telling(memory, non_finite), laid=lay)
    if seen.count > 1:
        run = replace(run, repeats=seen.count, repeated=seen.found(atomics_into(first.outcome, seen.varying)))
    return RunRecord(run, (first, *ordered, *repeats), tuple(notes)), run


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
        if one.kind != UNWRITTEN and not (one.kind == RACE and one.place_of_access in told):
            found.setdefault(one.identity, one)
    return tuple(worst_first(found.values()))


def _in_other_orders(
    experiment: Experiment, assigned: Assigned, measured: Measured, seen: Repeats
) -> tuple[Measured, list[Execution], list[str]]:
    """Runs the target in other orders of threads and blocks; a wrong one takes the place of a right first run.

    Raises:
        UsageFailure: the target has no kernels whose threads could be ordered.
    """
    first, executions, differing = measured.trace, [], Counter[str]()
    for seed in range(1, experiment.case.schedules + 1):
        inputs = inputs_of(experiment, assigned)
        execution = execute(experiment, inputs, seed)
        trace = execution.outcome.trace
        if trace is None or execution.outcome.cuda != "cuda-on-cpu":
            raise UsageFailure(
                f"--schedules: target {experiment.target.name!r} launched no CUDA kernel on the CPU",
                "it orders the threads of kernels that gradprobe.cuda loads, with --device cpu",
            )
        executions.append(execution.without_tensors())
        came = {name: (trace.values[name], value) for name, value in first.values.items()}
        other = [name for name, (a, b) in came.items() if a.dtype != b.dtype or not bool(same_bits(a, b).all())]
        differing.update(other)
        again = measure(experiment, inputs_of(experiment, assigned), trace) if other else replace(measured, trace=trace)
        seen.add(again)
        measured = again if measured.matches and other else measured
    return measured, executions, _of_orders(run_name(assigned), differing, experiment.case.schedules)


def _of_orders(layout: str, differing: Counter[str], count: int) -> list[str]:
    if count and not differing:
        return [f"{layout}: the same bits in {count} other orders of threads and blocks"]
    return [
        f"{layout}: {name} depends on the order of threads and blocks: {times} of {count} gave other bits"
        for name, times in differing.items()
    ]


def _repeated(
    experiment: Experiment, assigned: Assigned, measured: Measured, seen: Repeats
) -> tuple[Measured, Execution]:
    """Runs the target again; a wrong repeat takes the place of a right first run."""
    inputs = inputs_of(experiment, assigned)  # laid out afresh: a target may have written over its inputs
    execution = execute(experiment, inputs)
    trace = execution.outcome.trace
    if trace is None:
        name = experiment.target.name
        raise TargetFailure(f"target {name!r} refused {inputs.layout} in a repeat, after accepting it")
    again = measure(experiment, inputs, trace)
    seen.add(again)
    worse = again if measured.matches and not again.matches else measured
    if summable(measured):
        invariant = agreement("repeat", experiment.case, measured.trace, trace, measured.comparison)
        worse = replace(worse, invariants=(*worse.invariants, invariant))
    return worse, execution.without_tensors()


def summable(measured: Measured) -> bool:
    """Whether two runs can be compared: not where only P, dP or dS, of quadratic size, came."""
    return bool(measured.comparison.bounds.keys() & measured.trace.values.keys())


@dataclass(frozen=True)
class _Second:
    """A second run beside the first."""

    invariant: Invariant
    """The identity between the two."""
    execution: Execution
    wrong: Callable[[], LayoutRun | None]
    """Compares the second one with its own reference, where the identity is broken: it, where it is wrong by itself."""


def with_symmetries(experiment: Experiment, records: list[RunRecord]) -> list[RunRecord]:
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
    wrong = next(filter(None, (second.wrong() for second in seconds)), None)
    return [*records, *([RunRecord(wrong)] if wrong else [])]


def _linear_and_permuted(
    experiment: Experiment, run: LayoutRun, first: Measured
) -> tuple[list[Invariant], list[_Second]]:
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
    results = first.trace.values
    tensors = [experiment.values["do"], *(results[name] for name in LINEAR_IN_DO if name in results)]
    # Four times, for what a kernel holds in between.
    return not out_of_range(experiment.case, doubled(experiment.values)) and all(
        not tensor.numel() or float(tensor.nan_to_num().abs().max()) < torch.finfo(tensor.dtype).max / 4
        for tensor in tensors
    )


def _second(
    experiment: Experiment, run: LayoutRun, first: Measured, key: str, *, factor: float, reverse: bool
) -> _Second:
    # Values that were expanded are so already; laid out so once more they would lose the factor.
    assigned = tuple((tensor, layout) for tensor, layout in run.assigned if layout != "expanded")

    def laid_out() -> Inputs:
        """Made again where they are asked for: of a large case they take more memory than all else."""
        values: Mapping[str, Tensor] = effective(experiment.values, run.assigned)
        values = doubled(values) if factor != 1.0 else values
        values = permuted(values, experiment.case) if reverse else values
        outputs = outputs_of(experiment.case, experiment.target.outputs, values)
        return experiment.placed({**derived(experiment, values), **values, **outputs}, assigned)

    trace, execution = accepted(experiment, laid_out())
    invariant = agreement(key, experiment.case, first.trace, trace, first.comparison, factor=factor, reverse=reverse)
    if invariant.holds:
        return _Second(invariant, execution, lambda: None)
    what = " and ".join((["dO doubled"] if factor != 1.0 else []) + (["heads reversed"] if reverse else []))

    def wrong() -> LayoutRun | None:
        second = LayoutRun(f"{run.layout}, {what}", assigned, measure(experiment, laid_out(), trace), None)
        return second if second.verdict == MISMATCH else None

    return _Second(invariant, execution, wrong)
