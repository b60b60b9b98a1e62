"""Bench: runs of the same values in one layout after another, held against the contiguous ones bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from ...inputs.draw import outputs_of
from ...inputs.tensor_layouts import Inputs, laid, place
from ...model.failures import DeviceLost, NoRoom, TargetFailure
from ...model.layout_run import (
    BITS,
    BUDGET,
    FAILED,
    MATCH,
    MISMATCH,
    SKIPPED,
    TOGETHER,
    Run,
    TensorLayout,
)
from ...model.memory_finding import ERROR, UNWRITTEN, MemoryFinding, telling
from ...model.report import Report
from ...numerics.evidence import LayoutRun, MeasuredRun
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
from ..suite.checking import Checker, Setting
from ..suite.outcome import CheckOutcome
from ..suite.plan import PlannedCheck
from .trials import (
    EXPANDED,
    FIRST,
    Fill,
    FirstOutcome,
    LayoutTrial,
    PlannedTrial,
    is_failing,
    weighed,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ...inputs.placement import Placement


@dataclass(frozen=True)
class _Base:
    """One set of values, and what the target makes of them laid contiguous."""

    values: Mapping[str, Tensor]
    trace: Trace
    floors: Mapping[str, float]
    """What repeats of the run differ by."""
    taken: frozenset[str]
    """The tensors that kernels were given where they lay."""
    measured: MeasuredRun
    run: Run


class Bench:
    """A target that is tried. Its contiguous runs are made once for each set of values that layouts leave."""

    def __init__(self, problem: Problem) -> None:
        self.experiment = experiment_of(problem.case, problem.target, problem.reference)
        refuse_out_of_range(problem.case, self.experiment.values)
        self.executions: list[Execution] = []
        """Of all trials so far, without their tensors."""
        self._laid: dict[str, tuple[TensorLayout, ...]] = {}
        self._bases: dict[tuple[str, ...], _Base] = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors that the target is given, by name; a forward's dO comes through autograd."""
        taken = {"do", *self.experiment.target.takes}
        taken |= {"cu_seqlens_q"} if "cu_seqlens" in taken else set()
        given = self._given(self._values(FIRST), math.nan)
        return {name: tuple(value.shape) for name, value in given.items() if name in taken}

    def run(self, trial: LayoutTrial) -> Run:
        """What a trial comes to. What the target raises where it may not is an error here.

        Raises:
            DeviceLost: nothing more can be tried in this process.
        """
        try:
            base = self._base(trial)
            run = base.run if trial == FIRST else self._tried(trial, base)
        except DeviceLost:
            raise
        except TargetFailure as failure:
            words = str(failure).replace(f" ({trial.title})", "")
            run = Run(layout=trial.title, verdict=FAILED, error=words)
        except NoRoom as failure:
            run = self._refused(trial, str(failure))
        severity = ERROR if is_failing(run) else None
        run = structs.replace(run, tried=trial.as_told, severity=severity)
        is_strict, shapes = self.experiment.case.strict, self.shapes()
        return weighed(run, trial, lambda other: self._is_right(trial, other), is_strict, shapes)

    def _is_right(self, trial: LayoutTrial, other: LayoutTrial) -> bool:
        """Whether another trial of the values of one is right."""
        try:
            return (self._base(trial).run if other == FIRST else self.run(other)).verdict == MATCH
        except TargetFailure:
            return False

    def contiguous(self) -> MeasuredRun:
        """The contiguous run of the case's own values. Raises TargetFailure where the target cannot be run so."""
        return self._base(FIRST).measured

    def is_wrong(self, placements: Mapping[str, Placement]) -> bool:
        """Whether tensors placed so, the others contiguous, give wrong results or stray."""
        return is_failing(self._placed(placements))

    def is_spoilt(self, placements: Mapping[str, Placement], name: str) -> bool:
        """Whether that is so and kernels had one of the tensors as it lies there: a copy has strides of its own."""
        run = self._placed(placements)
        return is_failing(run) and name not in run.copied

    def strides(self, trial: LayoutTrial) -> dict[str, tuple[int, ...]]:
        """The strides that a trial gives each tensor."""
        placed = self._inputs(trial, trial.fills[0], self._values(trial))
        return {name: tuple(tensor.stride()) for name, tensor in placed.tensors.items()}

    def _placed(self, placements: Mapping[str, Placement]) -> Run:
        assigned = tuple((name, "as-saved") for name in placements)
        title = "placed one by one"
        return self.run(
            LayoutTrial(title, TOGETHER, assigned, placements=placements, thorough=False)
        )

    def _base(self, trial: LayoutTrial) -> _Base:
        """The contiguous runs of the values that a trial leaves: `expanded` repeats some."""
        repeated = tuple(sorted(name for name, layout in trial.assigned if layout == EXPANDED))
        if repeated not in self._bases:
            # How a target differs from run to run is seen once, on the case's own values.
            first = self._base(FIRST) if repeated else None
            self._bases[repeated] = self._contiguous(self._values(trial), first)
        return self._bases[repeated]

    def _values(self, trial: LayoutTrial) -> Mapping[str, Tensor]:
        values = effective(self.experiment.values, trial.assigned)
        return {**derived(self.experiment, values), **values}

    def _given(self, values: Mapping[str, Tensor], unwritten: float) -> dict[str, Tensor]:
        target = self.experiment.target
        return {**values, **outputs_of(self.experiment.case, target.outputs, values, unwritten)}

    def _contiguous(self, values: Mapping[str, Tensor], first: _Base | None) -> _Base:
        trial = replace(FIRST, thorough=first is None)
        observed = [self._observed(trial, fill, values) for fill in trial.fills]
        traces = [_trace(each) for each in observed]
        measured = measure(self.experiment, observed[0].inputs, traces[0])
        run = self._run(FIRST, measured, _strays(observed, trial.fills), BITS)
        allowed = floors(traces) if first is None else first.floors
        return _Base(values, traces[0], allowed, observed[0].outcome.taken, measured, run)

    def _tried(self, trial: LayoutTrial, base: _Base) -> Run:
        observed = list[Execution]()
        for fill in trial.fills:
            observed.append(self._observed(trial, fill, base.values))
            if (refused := observed[-1].outcome.refused) is not None:
                return self._refused(trial, refused, telling(observed[-1].memory, False))
        memory = _strays(observed, trial.fills)
        other = [each for each in observed if differing(_trace(each), base.trace, base.floors)]
        runs = list[Run]()
        for each in other:
            measured = measure(self.experiment, each.inputs, _trace(each))
            runs.append(self._run(trial, measured, memory, BUDGET))
        runs = runs or [self._run(trial, base.measured, memory, BITS)]
        wrong = [run for run in runs if run.verdict == MISMATCH]
        copied = tuple(sorted(base.taken - observed[0].outcome.taken))
        return structs.replace((wrong or runs)[0], copied=copied)

    def _observed(
        self, trial: LayoutTrial, fill: Fill, values: Mapping[str, Tensor]
    ) -> Execution:
        inputs = replace(self._inputs(trial, fill, values), layout=trial.title)
        experiment = replace(self.experiment, fill=fill[0], unwritten=fill[1])
        execution = observe(experiment, inputs, copies=experiment.is_cuda)
        self.experiment = self.experiment.after([execution.outcome])
        self.executions.append(execution.without_tensors())
        self._laid[trial.title] = laid(experiment.case, inputs, otherwise=True)
        return execution

    def _inputs(self, trial: LayoutTrial, fill: Fill, values: Mapping[str, Tensor]) -> Inputs:
        given, shapes = self._given(values, fill[1]), self.experiment.case.shapes
        return place(given, trial.assigned, trial.placements or None, fill[0], shapes)

    def _refused(
        self, trial: LayoutTrial, words: str, memory: tuple[MemoryFinding, ...] = ()
    ) -> Run:
        verdict = MISMATCH if memory else SKIPPED
        return Run(layout=trial.title, verdict=verdict, skipped=words, memory=memory)

    def _run(
        self,
        trial: LayoutTrial,
        measured: MeasuredRun,
        memory: tuple[MemoryFinding, ...],
        how: str,
    ) -> Run:
        places = self._laid.get(trial.title, ())
        run = LayoutRun(trial.title, trial.assigned, measured, None, memory=memory, laid=places)
        is_match = run.verdict == MATCH
        found = run_of(self.experiment.case, run)
        return structs.replace(found, how=how if is_match else None)


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
        found += never_written(first, other, (fills[0][1], fills[1][1]))
    kept: dict[object, MemoryFinding] = {}
    for finding in found:
        kept.setdefault((finding.kind, finding.tensor, finding.file, finding.line), finding)
    return tuple(kept.values())


def never_written(
    first: Trace, second: Trace, unwritten: tuple[float, float]
) -> Iterator[MemoryFinding]:
    """Elements that hold, in both runs, what memory held before the run: two different numbers."""
    for name in first.values.keys() & second.values.keys():
        is_first = _holds(first.values[name], unwritten[0])
        left = is_first & _holds(second.values[name], unwritten[1])
        if bool(left.any()):
            where = left.nonzero()
            at = ", ".join(map(str, where[0].tolist()))
            words = f"{len(where):,} of {left.numel():,} elements were never written, the first at [{at}]"
            yield MemoryFinding(UNWRITTEN, name, f"{name}: {words}")


def _holds(tensor: Tensor, number: float) -> Tensor:
    return tensor.isnan() if number != number else tensor == number


class TrialChecker(Checker):
    """Makes a CheckOutcome of one run of each PlannedTrial; of the first a FirstOutcome."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._benches: dict[str, Bench] = {}

    def __call__(self, planned: PlannedCheck) -> CheckOutcome:
        assert isinstance(planned, PlannedTrial)
        if planned.trial == FIRST:
            return self._first(planned)
        words = {**planned.request.options}
        del words["layout"]
        request = replace(planned.request, options=words)
        key = request.command()
        if key not in self._benches:
            self._benches[key] = Bench(resolve_problem(request))
        run = self._benches[key].run(planned.trial)
        report = Report(verdict=run.verdict, title=planned.title, runs=(run,))
        return CheckOutcome(planned.request, report)

    def _first(self, planned: PlannedTrial) -> FirstOutcome:
        """What a bench of what the target takes in place of what nobody fixed says of the contiguous run."""
        problem = replace(resolve_problem(planned.request), fixed=planned.fixed)
        bench = Bench(problem)
        try:
            run = LayoutRun(FIRST.title, (), bench.contiguous(), None)
            found = fit(Fit(problem, record=RunRecord(run)))
        except TargetFailure as failure:
            found = fit(Fit(problem, failure=failure))
        if found is not None:
            bench = Bench(found.problem)
        run = LayoutRun(FIRST.title, (), bench.contiguous(), None)
        records = [RunRecord(run, tuple(bench.executions))]
        notes = (*(found.sentences if found else ()), *notes_of(bench.experiment, records))
        probed = replace(measured_so_far(bench.experiment, records), notes=notes)
        shown = structs.replace(report_of(probed), runs=(bench.run(FIRST),), title=planned.title)
        request = found.problem.request if found else problem.request
        self._benches[request.command()] = bench
        return FirstOutcome(request, shown, bench.shapes())
