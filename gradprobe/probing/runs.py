"""The runs of a target: one for each layout, and further ones that must agree with the first but for atomics."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..inputs.guard_bands import same_bits
from ..inputs.tensor_layouts import laid
from ..model.assignment import AS_SAVED, ORDERED_RUN, UNIT_RUN, Assigned
from ..model.case import Case
from ..model.layout_run import MATCH, MISMATCH, Line
from ..model.memory_finding import RACE, telling, worst_first
from ..numerics.evidence import LayoutRun, Measured
from ..numerics.identities import agreement
from ..runtime.run import Outcome
from ..runtime.trace import Trace
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
    for record in records:
        for execution in record.executions:
            yield execution.outcome


def records_of(experiment: Experiment) -> Iterator[RunRecord]:
    """A record of each run of a case under all of its layouts, as soon as it is measured."""
    measured = list[LayoutRun]()
    for assigned in layouts_of(experiment.case):
        for made in _of_layout(experiment, assigned):
            record = made
            if made.run is not None and made.run.measured is not None:
                measured.append(_beside_first(experiment.case, made.run, measured))
                record = replace(made, run=measured[-1])
            experiment = experiment.after(outcomes_of([record]))
            yield record


def runs_of(experiment: Experiment) -> list[LayoutRun]:
    """The runs of a case under all of its layouts."""
    return [record.run for record in records_of(experiment) if record.run is not None]


def second_call(experiment: Experiment, records: Sequence[RunRecord]) -> list[RunRecord]:
    """The run of a second call where that alone is wrong, of a target that takes one layout alone; else nothing."""
    measured = [record.run for record in records if record.run and record.run.measured]
    if len(measured) != 1 or measured[0].verdict != MATCH or experiment.case.repeat > 1:
        return []
    record = _record(experiment, measured[0].assigned)
    run = record.run
    if run is None or run.verdict != MISMATCH:
        return []
    return [replace(record, run=replace(run, layout=f"{run.layout}, once more"))]


def _beside_first(case: Case, run: LayoutRun, others: Sequence[LayoutRun]) -> LayoutRun:
    """The run; one with the values of the first with I10, which says that both give the same."""
    first = next((other for other in others if other.measured and summable(other.measured)), run)
    before, now = first.measured, run.measured
    is_pair = first.layout in ("contiguous", AS_SAVED) and run.layout.startswith("distinct")
    if before is None or now is None or not is_pair:
        return run
    invariant = agreement("I10", case, before.raw, now.raw, before.comparison)
    return replace(run, measured=replace(now, invariants=(*now.invariants, invariant)))


def _of_layout(experiment: Experiment, assigned: Assigned) -> Iterator[RunRecord]:
    """One layout; where `distinct` is refused or never reaches the kernels, `distinct-unit` as well.

    Where that is refused too, also what keeps the order of axes, unless it is refused for the same reason.
    """
    case = experiment.case
    record = _record(experiment, assigned)
    yield record
    run, experiment = record.run, experiment.after(outcomes_of([record]))
    if case.configs == "all" and assigned == layouts_of(case)[0]:
        yield from _in_other_configurations(experiment, assigned, record)
    if run is None or run.layout != "distinct" or case.layouts or case.runs:
        return
    # Many wrappers make a tensor contiguous where its last stride is not 1, and look right whatever strides they mix
    # up: inputs were copied that the kernels took as they lay in the first run.
    assert experiment.first is not None
    if run.measured is None or experiment.first.taken - record.executions[-1].outcome.taken:
        unit = _record(experiment, UNIT_RUN)
        yield unit
        if unit.run is not None and unit.run.measured is None:
            in_order = _record(experiment, ORDERED_RUN)
            if in_order.run and (in_order.run.measured or in_order.run.memory):
                yield in_order


def _in_other_configurations(experiment: Experiment, assigned: Assigned, plain: RunRecord) -> Iterator[RunRecord]:
    """The run once more in each other configuration of each autotuned kernel; its name tells which."""
    for first in plain.executions[-1].outcome.configurations:
        for number in first.others:
            record = _record(pinned(experiment, first.kernel, number), assigned)
            ran = record.executions[-1].outcome.configurations
            own = next((one for one in ran if (one.kernel, one.number) == (first.kernel, number)), None)
            if own is None or record.run is None:
                note = f"{first.kernel}: configuration {number} of {first.count} does not fit"
                yield replace(record.with_more(notes=[note]), run=None)
                continue
            title = f"{record.run.layout}, {own.kernel} with configuration {number} of {own.count} ({own.words})"
            executions = tuple(execution.without_tensors(title) for execution in record.executions)
            yield RunRecord(replace(record.run, layout=title), executions, record.notes, (own.kernel, number))


def pinned(experiment: Experiment, kernel: str, number: int) -> Experiment:
    """The experiment with one configuration of one autotuned kernel."""
    return replace(experiment, case=replace(experiment.case, pinned=((kernel, number),)))


def _record(experiment: Experiment, assigned: Assigned) -> RunRecord:
    """One layout, run as often as the case says, and measured where it is not refused."""
    inputs, case = inputs_of(experiment, assigned), experiment.case
    first = execute(experiment, inputs)
    trace, memory = first.outcome.trace, list(first.memory)
    first = first.without_tensors()
    run = LayoutRun(inputs.layout, assigned, None, first.outcome.refused, laid=laid(case, inputs))
    if trace is None:
        return RunRecord(replace(run, memory=telling(memory, False)), (first,))
    experiment = experiment.after([first.outcome])
    inputs = replace(inputs, tensors={})  # of which its values are left
    measured, repeats = measure(experiment, inputs, trace), list[Execution]()
    run = replace(run, measured=measured, skipped=None)
    if case.repeat > 1:
        run, repeats = _repeated(experiment, run, measured, first)
    for execution in repeats:
        known = {finding.identity for finding in memory}
        memory += [finding for finding in execution.memory if finding.identity not in known]
    findings = run.measured.comparison.findings.values() if run.measured else ()
    non_finite = any(bool(finding.non_finite) for finding in findings)
    return RunRecord(replace(run, memory=telling(memory, non_finite)), (first, *repeats))


def _repeated(
    experiment: Experiment, run: LayoutRun, first: Measured, execution: Execution
) -> tuple[LayoutRun, list[Execution]]:
    """The run, in whose place the first wrong repeat stands where it is right; and the executions of the repeats.

    In each the threads and blocks of CUDA kernels on the CPU run in another order.
    """
    from ..numerics.repeats import Repeats

    case = experiment.case
    seen, kept, executions = Repeats(case, first), first, []
    for number in range(1, case.repeat):
        # In every second repeat memory without values holds 7.0, which a sum takes for a number.
        of = replace(experiment, unwritten=7.0) if case.poison and number % 2 else experiment
        inputs = inputs_of(of, run.assigned)  # laid out afresh: a target may have written over its inputs
        trace, again = accepted(of, inputs, number)
        executions.append(again)
        measured = first if _is_same(first.raw, trace) else measure(of, inputs, trace)
        seen.add(measured)
        kept = measured if kept.matches and not measured.matches else kept
        if summable(first):
            invariant = agreement("repeat", case, first.raw, trace, first.comparison)
            kept = replace(kept, invariants=(*kept.invariants, invariant))
    repeated = seen.found(atomics_into(execution.outcome, seen.varying))
    return replace(run, measured=kept, repeats=seen.count, repeated=repeated), executions


def _is_same(first: Trace, again: Trace) -> bool:
    """Whether two runs gave the same, bit by bit."""
    before, now = first.values, again.values
    return before.keys() == now.keys() and all(
        before[name].dtype == now[name].dtype and bool(same_bits(before[name], now[name]).all()) for name in now
    )


def with_strays(records: Sequence[RunRecord]) -> list[LayoutRun]:
    """The runs, with the memory findings of their repeats and looks inside, which run in the same layout.

    Whether memory without values shows was decided by the run's own results. Looks inside have more batches, and what
    leaves a tensor of the case meets another program there: it is the same fault, by another name.
    """
    runs = [record.run for record in records if record.run is not None]
    executions = [execution for record in records for execution in record.executions]
    return [_with_strays(run, executions) if run.measured else run for run in runs]


def _with_strays(run: LayoutRun, executions: Iterable[Execution]) -> LayoutRun:
    found = {finding.identity: finding for finding in run.memory}
    places = {finding.place_of_access for finding in run.memory}
    for execution in executions:
        for finding in execution.memory if execution.layout == run.layout else ():
            is_known = finding.kind == RACE and finding.place_of_access in places
            if not (is_known or finding.is_read_without_value):
                found.setdefault(finding.identity, finding)
    return replace(run, memory=tuple(worst_first(found.values())))


def summable(measured: Measured) -> bool:
    """Whether two runs can be compared: not where only P, dP or dS, of quadratic size, came."""
    return bool(measured.comparison.bounds.keys() & measured.trace.values.keys())


def atomics_into(outcome: Outcome, names: Iterable[str]) -> dict[str, tuple[Line, ...]]:
    """By intermediate, the lines of the launched kernels that add into it by atomics."""
    from ..source import additions

    found: dict[str, dict[Line, None]] = {name: {} for name in names}
    for name, lines in found.items():
        for kernel, parameter in _pointers_to(outcome, name):
            with contextlib.suppress(OSError, SyntaxError):  # its source is not there
                lines.update(dict.fromkeys(additions.atomics_into(kernel, {parameter})))
    for file in dict.fromkeys(source.file for source in outcome.kernels):
        if not file.endswith(".py") and Path(file).is_file():
            for name, line in additions.cuda_atomics(file, Path(file).read_text(errors="replace")):
                found.get(name, {})[line] = None
    return {name: tuple(lines) for name, lines in found.items()}


def _pointers_to(outcome: Outcome, name: str) -> list[tuple[Any, str]]:
    """The kernels of Triton that were launched with a pointer to an intermediate, and its parameter there."""
    if not outcome.calls:  # else Triton is loaded
        return []
    from ..source.additions import named_after

    homes = {address for address, of in outcome.storages.items() if of.lower() == name.lower()}
    named, there = dict[tuple[Any, str], None](), dict[tuple[Any, str], None]()
    for call in outcome.calls:
        for parameter, storage in call.pointers:
            if named_after(parameter) == name:
                named[call.kernel, parameter] = None
            if storage in homes:
                there[call.kernel, parameter] = None
    return list(named or there)  # a storage may have been another tensor's before: names decide where there are some


def makes_together(outcome: Outcome, names: Collection[str]) -> bool:
    """Whether one kernel was launched with pointers to all of these intermediates."""
    kernels = [{id(kernel) for kernel, _ in _pointers_to(outcome, name)} for name in names]
    return bool(set.intersection(*kernels))
