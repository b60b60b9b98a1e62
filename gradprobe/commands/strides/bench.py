"""Compares runs of the same values: whether their bits agree, or they differ no more than repeats of one run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from ...inputs.draw import outputs_of
from ...inputs.tensor_layouts import laid, place
from ...model.failures import DeviceLost, NoRoom, TargetFailure
from ...model.layout_run import BITS, BUDGET, MATCH, MISMATCH, TOGETHER, TensorLayout
from ...model.memory_finding import ERROR, HUGE, UNWRITTEN, WARNING, MemoryFinding, telling
from ...numerics.evidence import LayoutRun, MeasuredRun
from ...numerics.repeats import differing, floors
from ...pipeline.reported import run_of
from ...probing.experiment import Experiment, derived, effective
from ...probing.measure import measure
from ...probing.observe import Execution, observe
from ...runtime.run import Trace
from .trials import CONTIGUOUS, EXPANDED, NOT_RUN, Fill, LayoutTrial, TrialResult

if TYPE_CHECKING:
    from torch import Tensor

    from ...inputs.placement import Placement


# What every other is held against.
FIRST = LayoutTrial(CONTIGUOUS, TOGETHER, (), "all", CONTIGUOUS)
# Elements of one tensor that an offset of 32 bits still reaches.
_NARROW = 2**31


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
    result: TrialResult


class Bench:
    """A target that is tried. Its contiguous runs are made once for each set of values that layouts leave."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self._shapes = experiment, experiment.case.shapes
        self.executions: list[Execution] = []
        self._laid: dict[str, tuple[TensorLayout, ...]] = {}
        """Of all trials so far, without their tensors."""
        self._bases: dict[tuple[str, ...], _Base] = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors that the target is given, by name; a forward's dO comes through autograd."""
        given = self._given(self._values(FIRST), float("nan"))
        taken = {"do", *self.experiment.target.takes}
        taken |= {"cu_seqlens_q"} if "cu_seqlens" in taken else set()
        return {name: tuple(value.shape) for name, value in given.items() if name in taken}

    def tried(self, trial: LayoutTrial) -> TrialResult:
        """What a trial comes to. What the target raises where it may not is a value here.

        Raises:
            DeviceLost: nothing more can be tried in this process.
        """
        try:
            base = self._base(trial)
            result = (
                replace(base.result, trial=trial) if trial == FIRST else self._tried(trial, base)
            )
        except DeviceLost:
            raise
        except TargetFailure as failure:
            result = TrialResult(
                trial, NOT_RUN, words=str(failure).replace(f" ({trial.title})", "")
            )
        except NoRoom as failure:
            return self._skipped(trial, str(failure))
        return self.weighed(result)

    def weighed(self, result: TrialResult) -> TrialResult:
        """The result; one that fails by a hazard alone is a warning, unless the case is strict or itself that large."""
        trial = result.trial
        if not (trial.hazard and result.is_failing and self._is_right_without(trial)):
            return result
        is_large = any(math.prod(shape) > _NARROW for shape in self.shapes().values())
        is_asked = self.experiment.case.strict or (trial.hazard == HUGE and is_large)
        severity = ERROR if is_asked else WARNING
        memory = tuple(
            replace(memory_finding, severity=severity) for memory_finding in result.memory
        )
        return replace(result, hazard=trial.hazard, severity=severity, memory=memory)

    def _is_right_without(self, trial: LayoutTrial) -> bool:
        """Whether the same layout without its hazard is right, so that it shows no fault of another kind."""
        if trial.hazard == HUGE:
            return self.tried(trial.scaled()).verdict == MATCH
        try:
            return self._base(trial).result.verdict == MATCH
        except TargetFailure:
            return False

    def contiguous(self) -> MeasuredRun:
        """The contiguous run of the case's own values. Raises TargetFailure where the target cannot be run so."""
        return self._base(FIRST).measured

    def is_wrong(self, placements: Mapping[str, Placement]) -> bool:
        """Whether tensors placed so, the others contiguous, give wrong results or stray."""
        return self._placed(placements).is_failing

    def is_spoilt(self, placements: Mapping[str, Placement], name: str) -> bool:
        """Whether that is so and kernels had one of the tensors as it lies there: a copy has strides of its own."""
        result = self._placed(placements)
        return result.is_failing and name not in result.copied

    def strides(self, trial: LayoutTrial) -> dict[str, tuple[int, ...]]:
        """The strides that a trial gives each tensor."""
        given = self._given(self._values(trial), float("nan"))
        placed = place(given, trial.assigned, trial.placements or None, shapes=self._shapes)
        return {name: tuple(tensor.stride()) for name, tensor in placed.tensors.items()}

    def _placed(self, placements: Mapping[str, Placement]) -> TrialResult:
        assigned = tuple((name, "as-saved") for name in placements)
        return self.tried(
            LayoutTrial(
                "placed one by one", TOGETHER, assigned, placements=placements, thorough=False
            )
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
        result = self._result(FIRST, measured, _strays(observed, trial.fills), BITS)
        allowed = floors(traces) if first is None else first.floors
        return _Base(values, traces[0], allowed, observed[0].outcome.taken, measured, result)

    def _tried(self, trial: LayoutTrial, base: _Base) -> TrialResult:
        observed = []
        for fill in trial.fills:
            observed.append(self._observed(trial, fill, base.values))
            if (refused := observed[-1].outcome.refused) is not None:
                return self._skipped(trial, refused, telling(observed[-1].memory, False))
        memory = _strays(observed, trial.fills)
        copied = tuple(sorted(base.taken - observed[0].outcome.taken))
        other = [each for each in observed if differing(_trace(each), base.trace, base.floors)]
        if not other:
            return replace(self._result(trial, base.measured, memory, BITS), copied=copied)
        results = [
            self._result(
                trial, measure(self.experiment, each.inputs, _trace(each)), memory, BUDGET
            )
            for each in other
        ]
        return replace(
            next((one for one in results if one.verdict == MISMATCH), results[0]), copied=copied
        )

    def _observed(
        self, trial: LayoutTrial, fill: Fill, values: Mapping[str, Tensor]
    ) -> Execution:
        around, unwritten = fill
        inputs = place(
            self._given(values, unwritten),
            trial.assigned,
            trial.placements or None,
            around,
            self._shapes,
        )
        inputs = replace(inputs, layout=trial.title)
        experiment = replace(self.experiment, fill=around, unwritten=unwritten)
        execution = observe(experiment, inputs, copies=self.experiment.is_cuda)
        self.experiment = self.experiment.after([execution.outcome])
        self.executions.append(execution.without_tensors())
        self._laid[trial.title] = laid(experiment.case, inputs, otherwise=True)
        return execution

    def _skipped(
        self, trial: LayoutTrial, words: str, memory: tuple[MemoryFinding, ...] = ()
    ) -> TrialResult:
        run = LayoutRun(trial.title, trial.assigned, None, words, memory=memory)
        return TrialResult(
            trial, run.verdict, words=words, memory=memory, run=run_of(self.experiment.case, run)
        )

    def _result(
        self,
        trial: LayoutTrial,
        measured: MeasuredRun,
        memory: tuple[MemoryFinding, ...],
        how: str,
    ) -> TrialResult:
        run = LayoutRun(
            trial.title, trial.assigned, measured, None, laid=self._laid.get(trial.title, ())
        )
        verdict = MISMATCH if memory else run.verdict
        told = structs.replace(run_of(self.experiment.case, run), verdict=verdict)
        if run.verdict == MATCH:
            return TrialResult(trial, verdict, "" if memory else how, memory=memory, run=told)
        return TrialResult(trial, verdict, memory=memory, run=told)


def _trace(observed: Execution) -> Trace:
    if observed.outcome.trace is None:
        words = f"the target refused {observed.layout}: {observed.outcome.refused}"
        raise TargetFailure(words)
    return observed.outcome.trace


def _strays(observed: list[Execution], fills: tuple[Fill, ...]) -> tuple[MemoryFinding, ...]:
    """What the runs of one trial did to memory, each finding once.

    A read of memory that nothing wrote is one where it shows in a result: what that memory holds in one run and in the
    other makes them differ. Where there is one run alone, that memory holds NaN, which a result shows by itself.
    """
    found = [memory_finding for each in observed for memory_finding in each.memory]
    first, *others = (_trace(each) for each in observed)
    if not any(differing(first, other, dict.fromkeys(first.values, 0.0)) for other in others):
        found = [
            memory_finding for memory_finding in found if not memory_finding.is_read_without_value
        ]
    for other in others:
        found += never_written(first, other, (fills[0][1], fills[1][1]))
    kept: dict[object, MemoryFinding] = {}
    for one in found:
        kept.setdefault((one.kind, one.tensor, one.file, one.line), one)
    return tuple(kept.values())


def never_written(
    first: Trace, second: Trace, unwritten: tuple[float, float]
) -> Iterator[MemoryFinding]:
    """Elements that hold, in both runs, what memory held before the run.

    Args:
        unwritten: what memory without values held in the first and in the second run, two different numbers.
    """
    for name in first.values.keys() & second.values.keys():
        left = _holds(first.values[name], unwritten[0]) & _holds(
            second.values[name], unwritten[1]
        )
        if bool(left.any()):
            where = left.nonzero()
            at = ", ".join(map(str, where[0].tolist()))
            words = f"{len(where):,} of {left.numel():,} elements were never written, the first at [{at}]"
            yield MemoryFinding(UNWRITTEN, name, f"{name}: {words}")


def _holds(tensor: Tensor, number: float) -> Tensor:
    return tensor.isnan() if number != number else tensor == number
