"""The runs of a target: one for each layout, and second runs that must agree with the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..inputs.draw import outputs_of
from ..inputs.guard_bands import same_bits
from ..inputs.tensor_layouts import Inputs, laid
from ..model.assignment import AS_SAVED, ORDERED_RUN, UNIT_RUN, Assigned
from ..model.case import Case
from ..model.failures import UsageFailure
from ..model.layout_run import MATCH, MISMATCH
from ..model.mechanisms import door
from ..model.memory_finding import RACE, MemoryFinding, telling, worst_first
from ..numerics.evidence import LayoutRun, Measured
from ..numerics.identities import LINEAR_IN_DO, Invariant, agreement, doubled, reversed_in
from ..numerics.range import out_of_range
from ..numerics.repeats import Repeats
from ..runtime.run import Outcome
from .atomics import atomics_into
from .beforehand import Beforehand, LaidOut
from .experiment import Experiment, derived, effective, inputs_of, layouts_of
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


def records_of(experiment: Experiment, beforehand: Beforehand | None = None) -> Iterator[RunRecord]:
    """A record of each run of a case under all of its layouts, as soon as it is measured.

    Args:
        beforehand: which makes the runs behind the first two already, where that comes to the same.
    """
    if beforehand is not None and _is_one_run_each(experiment.case):
        beforehand.begin(experiment, _to_come(experiment))
    beforehand = beforehand or Beforehand()
    for assigned in layouts_of(experiment.case):
        for record in _of_layout(experiment, assigned, beforehand):
            experiment = experiment.after(outcomes_of([record]))
            beforehand.go_on(experiment, is_right=record.run is not None and record.run.verdict == MATCH)
            yield record


def _is_one_run_each(case: Case) -> bool:
    return case.repeat == 1 and not case.schedules and case.configs == "first"


def _to_come(experiment: Experiment) -> dict[Hashable, LaidOut]:
    """What forks may make: what a target keeps from its first call shows in the second of this process."""
    layouts = layouts_of(experiment.case)
    runs: dict[Hashable, LaidOut] = {assigned: partial(_laid_out, experiment, assigned) for assigned in layouts[2:]}
    return {**runs, _SYMMETRIES: lambda: (experiment, _SYMMETRIES.inputs(experiment, layouts[0]))}


def runs_of(experiment: Experiment) -> list[LayoutRun]:
    """The runs of a case under all of its layouts."""
    return [record.run for record in records_of(experiment) if record.run is not None]


def _laid_out(experiment: Experiment, assigned: Assigned) -> tuple[Experiment, Inputs]:
    return experiment, inputs_of(experiment, assigned)


def _of_layout(experiment: Experiment, assigned: Assigned, beforehand: Beforehand) -> Iterator[RunRecord]:
    """One layout; where `distinct` is refused or never reaches the kernels, `distinct-unit` as well.

    Where that is refused too, also what keeps the order of axes, unless it is refused for the same reason.
    """
    record, run = _record(experiment, assigned, partial(beforehand.taken, assigned))
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


def _record(
    experiment: Experiment,
    assigned: Assigned,
    beforehand: Callable[[Experiment], Execution | None] = lambda experiment: None,
) -> tuple[RunRecord, LayoutRun]:
    inputs = inputs_of(experiment, assigned)
    first = execute(experiment, inputs, beforehand=beforehand)
    experiment, trace, memory = experiment.after([first.outcome]), first.outcome.trace, list(first.memory)
    first, lay = first.without_tensors(), laid(experiment.case, inputs)
    if trace is None:
        run = LayoutRun(inputs.layout, assigned, None, first.outcome.refused, memory=telling(memory, False), laid=lay)
        return RunRecord(run, (first,)), run
    inputs = replace(inputs, tensors={})  # of which its values are left
    measured = plain = measure(experiment, inputs, trace)
    seen, executions, differing = Repeats(experiment.case, plain), [first], Counter[str]()
    for seed in range(1, experiment.case.schedules + 1):
        measured, execution, other = _again(experiment, assigned, plain, measured, seen, seed)
        executions.append(execution)
        differing.update(other)
        memory += [one for one in execution.memory if one.identity not in {known.identity for known in memory}]
    for number in range(1, experiment.case.repeat):
        # In every second repeat memory without values holds 7.0, which a sum takes for a number.
        sevens = replace(experiment, unwritten=7.0) if experiment.case.poison and number % 2 else experiment
        measured, execution, _ = _again(sevens, assigned, plain, measured, seen)
        executions.append(execution)
    notes = _of_orders(inputs.layout, differing, experiment.case.schedules)
    non_finite = any(bool(finding.non_finite) for finding in measured.comparison.findings.values())
    run = LayoutRun(inputs.layout, assigned, measured, None, memory=telling(memory, non_finite), laid=lay)
    if seen.count > 1:
        run = replace(run, repeats=seen.count, repeated=seen.found(atomics_into(first.outcome, seen.varying)))
    return RunRecord(run, tuple(executions), tuple(notes)), run


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
    experiment: Experiment, assigned: Assigned, first: Measured, kept: Measured, seen: Repeats, schedule: int = 0
) -> tuple[Measured, Execution, list[str]]:
    """Runs the target again; a wrong run takes the place of a right one. Also which results have other bits.

    Args:
        kept: the run that stands so far.
        schedule: another order of the threads and blocks of CUDA kernels on the CPU.

    Raises:
        UsageFailure: the target has no kernels whose threads could be ordered.
    """
    inputs = inputs_of(experiment, assigned)  # laid out afresh: a target may have written over its inputs
    trace, execution = accepted(experiment, inputs, schedule)
    if schedule and execution.outcome.cuda != "cuda-on-cpu":
        raise UsageFailure(
            f"--schedules: target {experiment.target.name!r} launched no CUDA kernel on the CPU",
            "it orders the threads of kernels that gradprobe.cuda loads, with --device cpu",
        )
    before, now = first.raw.values, trace.values
    other = [name for name in {**before, **now} if not _is_same(before.get(name), now.get(name))]
    again = measure(experiment, inputs, trace) if other else first
    seen.add(again)
    worse = again if kept.matches and not again.matches else kept
    if not schedule and summable(first):
        invariant = agreement("repeat", experiment.case, first.raw, trace, first.comparison)
        worse = replace(worse, invariants=(*worse.invariants, invariant))
    return worse, execution, other


def _is_same(before: Tensor | None, now: Tensor | None) -> bool:
    return before is not None and now is not None and before.dtype == now.dtype and bool(same_bits(before, now).all())


def _of_orders(layout: str, differing: Counter[str], count: int) -> list[str]:
    if count and not differing:
        return [f"{layout}: the same bits in {count} other orders of threads and blocks"]
    return [
        f"{layout}: {name} depends on the order of threads and blocks: {times} of {count} gave other bits"
        for name, times in differing.items()
    ]


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


@door("symmetries", lambda experiment, records, *args: records)
def with_symmetries(
    experiment: Experiment, records: list[RunRecord], beforehand: Beforehand | None = None
) -> list[RunRecord]:
    """I8 and I9 from one more run of the first layout, I10 from it and distinct where both have the same values.

    Args:
        beforehand: which may have made that run.
    """
    having = [(at, one.run, one.run.measured) for at, one in enumerate(records) if one.run and one.run.measured]
    first = next((found for found in having if summable(found[2])), None)
    if first is None:
        return records
    place, run, measured = first
    of_first, seconds = _linear_and_permuted(experiment, run, measured, beforehand or Beforehand())
    records, is_plain = list(records), run.layout in ("contiguous", AS_SAVED)
    for at, other, found in having:
        invariants = of_first if at == place else []
        if is_plain and other.layout.startswith("distinct"):
            invariants = [agreement("I10", experiment.case, measured.raw, found.raw, measured.comparison)]
        having_all = replace(found, invariants=(*found.invariants, *invariants))
        records[at] = replace(records[at], run=replace(other, measured=having_all))
    records[place] = records[place].with_more(second.execution for second in seconds)
    # Beside a wrong run a second wrong one says nothing new, and of a large case it takes as long to compare.
    if not measured.matches and measured.comparison.by_sieve is not None:
        return records
    wrong = next(filter(None, (second.wrong() for second in seconds)), None)
    return [*records, *([RunRecord(wrong)] if wrong else [])]


def _linear_and_permuted(
    experiment: Experiment, run: LayoutRun, first: Measured, beforehand: Beforehand
) -> tuple[list[Invariant], list[_Second]]:
    """dO doubled and heads and batches permuted, in one run; each alone only where the two together disagree.

    Where neither alone disagrees the target is not the same from call to call, and the run that showed it stands.
    """
    second = partial(_second, experiment, run, first, beforehand)
    if not _may_double(experiment, first):
        reverse = second("I9", replace(_SYMMETRIES, factor=1.0))
        return [reverse.invariant], [reverse]
    both = second("I8", _SYMMETRIES)
    if both.invariant.holds:
        return [both.invariant, replace(both.invariant, key="I9")], [both]
    linear = second("I8", replace(_SYMMETRIES, reverse=False))
    reverse = second("I9", replace(_SYMMETRIES, factor=1.0))
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
    experiment: Experiment, run: LayoutRun, first: Measured, beforehand: Beforehand, key: str, other: _SecondRun
) -> _Second:
    def laid_out() -> Inputs:
        """Made again where they are asked for: of a large case they take more memory than all else."""
        return other.inputs(experiment, run.assigned)

    # A second run of another layout, where the first was refused, is none that was begun.
    is_begun = run.assigned == layouts_of(experiment.case)[0]
    trace, execution = accepted(
        experiment, laid_out(), beforehand=partial(beforehand.taken, other if is_begun else None)
    )
    with experiment.stopwatch.timed("compare"):
        invariant = agreement(
            key, experiment.case, first.raw, trace, first.comparison, factor=other.factor, reverse=other.reverse
        )
    if invariant.holds:
        return _Second(invariant, execution, lambda: None)

    def wrong() -> LayoutRun | None:
        measured = measure(experiment, laid_out(), trace)
        second = LayoutRun(f"{run.layout}, {other.sentence}", other.laid(run.assigned), measured, None)
        return second if second.verdict == MISMATCH else None

    return _Second(invariant, execution, wrong)


@dataclass(frozen=True)
class _SecondRun:
    """What a second run has in the place of a first one's values."""

    factor: float = 2.0
    """Of dO."""
    reverse: bool = True
    """Whether heads and batches stand the other way round."""

    @property
    def sentence(self) -> str:
        doubled = ["dO doubled"] if self.factor != 1.0 else []
        return " and ".join(doubled + (["heads reversed"] if self.reverse else []))

    def laid(self, assigned: Assigned) -> Assigned:
        """Values that were expanded are so already; laid out so once more they would lose the factor."""
        return tuple((tensor, layout) for tensor, layout in assigned if layout != "expanded")

    def inputs(self, experiment: Experiment, assigned: Assigned) -> Inputs:
        implied = _Implied(experiment, assigned, self)
        values = dict(implied)
        of_reference = derived(experiment, values)
        outputs = outputs_of(experiment.case, experiment.target.outputs, values)
        implied.others = {name: of for name, of in (of_reference | outputs).items() if name not in values}
        return replace(experiment.placed({**of_reference, **values, **outputs}, self.laid(assigned)), values=implied)


class _Implied(Mapping[str, Tensor]):
    """The values of a second run, each made when it is asked for; outputs and what is derived of them are held."""

    def __init__(self, experiment: Experiment, assigned: Assigned, other: _SecondRun) -> None:
        self._values, self._case, self._other = effective(experiment.values, assigned), experiment.case, other
        self.others: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name in self.others:
            return self.others[name]
        factor = self._other.factor if name == "do" else 1.0
        value = self._values[name] if factor == 1.0 else self._values[name] * factor
        return reversed_in(value, self._case.input_axes(name), self._case) if self._other.reverse else value

    def __iter__(self) -> Iterator[str]:
        return iter({**self._values, **self.others})

    def __len__(self) -> int:
        return len({*self._values, *self.others})


_SYMMETRIES = _SecondRun()
