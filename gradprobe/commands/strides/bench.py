"""Bench: runs of the same values in one layout after another, held against the contiguous ones bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from ...inputs.draw import outputs_of
from ...inputs.tensor_layouts import laid, place
from ...model.failures import DeviceLost, NoRoom, TargetFailure
from ...model.layout_run import BITS, BUDGET, FAILED, MATCH, MISMATCH, SKIPPED, Run
from ...model.memory_finding import UNWRITTEN, MemoryFinding, telling
from ...model.report import Report
from ...numerics.evidence import LayoutRun
from ...numerics.range import refuse_out_of_range
from ...numerics.repeats import differing, floors
from ...pipeline.fit import Fit, fit
from ...pipeline.probe import measured_so_far
from ...pipeline.reported import report_of, run_of
from ...pipeline.resolve import Problem, resolve_problem
from ...probing.experiment import derived, effective, experiment_of
from ...probing.measure import measure
from ...probing.observe import Execution, observe
from ...probing.runs import RunRecord, notes_of
from ...runtime.run import Trace
from ..suite.checking import Checker
from ..suite.outcome import CheckOutcome
from ..suite.plan import PlannedCheck
from .trials import EXPANDED, FIRST, Fill, FirstOutcome, LayoutTrial, PlannedTrial, weighed

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class _Base:
    """One set of values, and what the target makes of them laid contiguous."""

    values: Mapping[str, Tensor]
    trace: Trace
    floors: Mapping[str, float]
    """What repeats of the run differ by."""
    record: RunRecord

    @property
    def taken(self) -> frozenset[str]:
        """The tensors that kernels were given where they lay."""
        return self.record.executions[0].outcome.taken


class Bench:
    """A target that is tried. Its contiguous runs are made once for each set of values that layouts leave."""

    def __init__(self, problem: Problem) -> None:
        self.experiment = experiment_of(problem.case, problem.target, problem.reference)
        refuse_out_of_range(problem.case, self.experiment.values)
        self._bases: dict[tuple[str, ...], _Base] = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors that the target is given, by name; a forward's dO comes through autograd."""
        taken = {"do", *self.experiment.target.takes}
        taken |= {"cu_seqlens_q"} if "cu_seqlens" in taken else set()
        given = self._given(self._values(FIRST), math.nan)
        return {name: tuple(value.shape) for name, value in given.items() if name in taken}

    def contiguous(self) -> RunRecord:
        """The contiguous run of the case's own values. Raises TargetFailure where the target cannot be run so."""
        return self._base(FIRST).record

    def run(self, trial: LayoutTrial) -> Run:
        """What a trial comes to. What the target raises where it may not is an error here.

        Raises:
            DeviceLost: nothing more can be tried in this process.
        """
        try:
            base = self._base(trial)
            run = self._contiguous(base) if trial == FIRST else self._tried(trial, base)
        except DeviceLost:
            raise
        except TargetFailure as failure:
            words = str(failure).replace(f" ({trial.title})", "")
            run = Run(layout=trial.title, verdict=FAILED, error=words)
        except NoRoom as failure:
            run = Run(layout=trial.title, verdict=SKIPPED, skipped=str(failure))
        return weighed(run, trial, lambda other: self._is_right(trial, other))

    def _is_right(self, trial: LayoutTrial, other: LayoutTrial) -> bool:
        """Whether another trial of the values of one is right."""
        try:
            run = self._contiguous(self._base(trial)) if other == FIRST else self.run(other)
        except TargetFailure:
            return False
        return run.verdict == MATCH

    def _base(self, trial: LayoutTrial) -> _Base:
        """The contiguous runs of the values that a trial leaves: `expanded` repeats some."""
        repeated = tuple(sorted(name for name, layout in trial.assigned if layout == EXPANDED))
        if repeated not in self._bases:
            # How a target differs from run to run is seen once, on the case's own values.
            first = self._base(FIRST) if repeated else None
            self._bases[repeated] = self._based(self._values(trial), first)
        return self._bases[repeated]

    def _based(self, values: Mapping[str, Tensor], first: _Base | None) -> _Base:
        trial = replace(FIRST, thorough=first is None)
        observed = [self._observed(trial, fill, values) for fill in trial.fills]
        traces = [_trace(each) for each in observed]
        run = self._layout_run(trial, observed)
        measured = measure(self.experiment, observed[0].inputs, traces[0])
        executions = tuple(each.without_tensors() for each in observed)
        record = RunRecord(replace(run, measured=measured), executions)
        return _Base(values, traces[0], first.floors if first else floors(traces), record)

    def _contiguous(self, base: _Base) -> Run:
        return self._reported(base.record.run, BITS)

    def _tried(self, trial: LayoutTrial, base: _Base) -> Run:
        observed = list[Execution]()
        for fill in trial.fills:
            observed.append(self._observed(trial, fill, base.values))
            if (refused := observed[-1].outcome.refused) is not None:
                memory = telling(observed[-1].memory, False)
                verdict = MISMATCH if memory else SKIPPED
                return Run(layout=trial.title, verdict=verdict, skipped=refused, memory=memory)
        measured, how = base.record.run.measured, BITS
        for each in observed:
            trace = _trace(each)
            if differing(trace, base.trace, base.floors):
                measured, how = measure(self.experiment, each.inputs, trace), BUDGET
                if not measured.matches:
                    break
        run = replace(self._layout_run(trial, observed), measured=measured)
        copied = tuple(sorted(base.taken - observed[0].outcome.taken))
        return structs.replace(self._reported(run, how), copied=copied)

    def _values(self, trial: LayoutTrial) -> Mapping[str, Tensor]:
        values = effective(self.experiment.values, trial.assigned)
        return {**derived(self.experiment, values), **values}

    def _given(self, values: Mapping[str, Tensor], unwritten: float) -> dict[str, Tensor]:
        target = self.experiment.target
        return {**values, **outputs_of(self.experiment.case, target.outputs, values, unwritten)}

    def _observed(
        self, trial: LayoutTrial, fill: Fill, values: Mapping[str, Tensor]
    ) -> Execution:
        given, case = self._given(values, fill[1]), self.experiment.case
        inputs = place(given, trial.assigned, None, fill[0], case.shapes)
        experiment = replace(self.experiment, fill=fill[0], unwritten=fill[1])
        inputs = replace(inputs, layout=trial.title)
        execution = observe(experiment, inputs, copies=experiment.is_cuda)
        self.experiment = self.experiment.after([execution.outcome])
        return execution

    def _layout_run(self, trial: LayoutTrial, observed: Sequence[Execution]) -> LayoutRun:
        """All that its executions show but for their results."""
        places = laid(self.experiment.case, observed[0].inputs, otherwise=True)
        memory = _strays(observed, trial.fills)
        return LayoutRun(trial.title, trial.assigned, None, None, memory=memory, laid=places)

    def _reported(self, run: LayoutRun, how: str) -> Run:
        found = run_of(self.experiment.case, run)
        return structs.replace(found, how=how if run.verdict == MATCH else None)


def _trace(observed: Execution) -> Trace:
    if observed.outcome.trace is None:
        words = f"the target refused {observed.layout}: {observed.outcome.refused}"
        raise TargetFailure(words)
    return observed.outcome.trace


def _strays(observed: Sequence[Execution], fills: Sequence[Fill]) -> tuple[MemoryFinding, ...]:
    """What the runs of one trial did to memory, each finding once.

    A read of memory that nothing wrote counts where runs differ by what that memory held. Of one run alone it held NaN,
    which a result shows by itself.
    """
    found = [finding for each in observed for finding in each.memory]
    first, *others = (_trace(each) for each in observed)
    if not any(differing(first, other, dict.fromkeys(first.values, 0.0)) for other in others):
        found = [finding for finding in found if not finding.is_read_without_value]
    for other in others:
        found += _never_written(first, other, fills)
    kept: dict[object, MemoryFinding] = {}
    for finding in found:
        kept.setdefault(finding.identity, finding)
    return tuple(kept.values())


def _never_written(first: Trace, second: Trace, fills: Sequence[Fill]) -> Iterator[MemoryFinding]:
    """Elements that hold, in both runs, what memory held before the run: two different numbers."""
    for name in first.values.keys() & second.values.keys():
        left = _holds(first.values[name], fills[0]) & _holds(second.values[name], fills[1])
        if len(where := left.nonzero()):
            at = ", ".join(map(str, where[0].tolist()))
            words = f"{len(where):,} of {left.numel():,} elements were never written, the first at [{at}]"
            yield MemoryFinding(UNWRITTEN, name, f"{name}: {words}")


def _holds(tensor: Tensor, fill: Fill) -> Tensor:
    return tensor.isnan() if math.isnan(fill[1]) else tensor == fill[1]


class TrialChecker(Checker):
    """Makes a CheckOutcome of one run of each PlannedTrial of a target; of the first a FirstOutcome."""

    _bench: Bench | None = None

    def __call__(self, planned: PlannedCheck) -> CheckOutcome:
        assert isinstance(planned, PlannedTrial)
        if planned.trial == FIRST:
            return self._first(planned)
        if self._bench is None:
            request, words = planned.request, {**planned.request.options}
            del words["layout"]
            self._bench = Bench(resolve_problem(replace(request, options=words)))
        run = self._bench.run(planned.trial)
        report = Report(verdict=run.verdict, title=planned.title, runs=(run,))
        return CheckOutcome(planned.request, report)

    def _first(self, planned: PlannedTrial) -> FirstOutcome:
        """What a bench of what the target takes in place of what nobody fixed says of the contiguous run."""
        problem = replace(resolve_problem(planned.request), fixed=planned.fixed)
        bench = Bench(problem)
        try:
            found = fit(Fit(problem, record=bench.contiguous()))
        except TargetFailure as failure:
            found = fit(Fit(problem, failure=failure))
        if found is not None:
            problem = found.problem
            bench = Bench(problem)
        record = bench.contiguous()
        notes = (*(found.sentences if found else ()), *notes_of(bench.experiment, [record]))
        probed = replace(measured_so_far(bench.experiment, [record]), notes=notes)
        shown = structs.replace(report_of(probed), runs=(bench.run(FIRST),), title=planned.title)
        self._bench = bench
        return FirstOutcome(problem.request, shown, bench.shapes())
