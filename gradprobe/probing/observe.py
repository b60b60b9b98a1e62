"""One run of a target: its results, and what it does to its inputs and to memory around them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from ..frontends import CUDA, CUDA_ON_CPU, Launches
from ..frontends.triton import interpreting
from ..inputs.guard_bands import Guards
from ..inputs.memory import UnwrittenElements
from ..inputs.tensor_layouts import Inputs
from ..model.assignment import OUTPUTS
from ..model.failures import Failure, KernelStopped, TargetFailure
from ..model.memory_finding import MemoryFinding
from ..numerics.declared_precision import of_dtypes
from ..runtime.run import Outcome, Trace, run_target
from ..runtime.target_memory import Allocations, InputsBefore, Writer, written_by
from .experiment import Experiment


@dataclass(frozen=True)
class Execution:
    inputs: Inputs
    outcome: Outcome
    memory: tuple[MemoryFinding, ...]
    # What went wrong in watching; those accesses were not judged.
    unwatched: tuple[str, ...] = ()

    @property
    def layout(self) -> str:
        return self.inputs.layout

    def without_tensors(self) -> Execution:
        outcome = replace(self.outcome, trace=None)
        return replace(self, inputs=Inputs(self.layout, {}, {}), outcome=outcome)


def execute(experiment: Experiment, inputs: Inputs, schedule: int = 0) -> Execution:
    """One run of the target, timed.

    Kernels of a source run between guard bands; again where only a run shows that there are some, or one was stopped.
    """
    stopwatch, layout, is_poisoned = experiment.stopwatch, inputs.layout, experiment.case.poison
    number, execution = stopwatch.laps["target"] + 1, None
    experiment.tick(f"run {number}, {experiment.target.name}, {layout}", 0.0, layout)
    with stopwatch.timed("target"):
        if not experiment.is_cuda:
            with contextlib.suppress(KernelStopped):
                execution = observe(experiment, inputs, banded=is_poisoned, schedule=schedule)
        if execution is None or execution.outcome.backends & {CUDA, CUDA_ON_CPU}:
            execution = observe(experiment, inputs, copies=True, schedule=schedule)
    return execution


def accepted(
    experiment: Experiment, inputs: Inputs, schedule: int = 0
) -> tuple[Trace, Execution]:
    """A further run in a layout; TargetFailure where it is refused now."""
    execution = execute(experiment, inputs, schedule)
    if execution.outcome.trace is None:
        name = experiment.target.name
        raise TargetFailure(f"target {name!r} refused {inputs.layout} after accepting it before")
    return execution.outcome.trace, execution.without_tensors()


def observe(
    experiment: Experiment, inputs: Inputs, *, banded: bool = True, copies: bool = False, schedule: int = 0
) -> Execution:  # fmt: skip
    """Runs a target once, and looks at what it does to memory; again where only the run imports Triton.

    Args:
        banded: whether what it allocates lies in guard bands; `copies`: what `clone` and the like return too.
        schedule: the order of the threads of CUDA kernels on the CPU.
    """
    case, in_ranks = experiment.case, experiment.target.ranks
    if case.ranks is not None and in_ranks is not None:
        return in_ranks(experiment, inputs, banded=banded, copies=copies)  # type: ignore[no-any-return]
    guards, before = Guards(inputs.tensors, inputs.fill), InputsBefore(inputs, case.inplace)
    run = partial(_run, experiment, inputs, banded, copies, schedule)
    was_there = interprets_triton()
    outcome, watch, bands = run()
    if interprets_triton() and not was_there:
        before.restore()
        outcome, watch, bands = run()
    breaches = guards.breaches() + (bands.breaches(outcome.storages) if bands else [])
    memory = [*watch.findings] if watch else []
    memory += [*outcome.findings, *map(attrgetter("finding"), breaches)]
    if outcome.trace is not None:
        memory += of_dtypes(outcome.trace, inputs.values)
        changes = before.changes(case.input_axes)
        memory += _overwritten(changes, before, run, watch.writers if watch else {})
    failures = tuple(watch.failures) if watch else ()
    return Execution(inputs, outcome, tuple(memory), failures)


def _run(
    of: Experiment, inputs: Inputs, banded: bool, copies: bool, schedule: int, steps: InputsBefore | None = None
) -> tuple[Outcome, Any, Allocations | None]:  # fmt: skip
    unwritten, is_triton = UnwrittenElements(), interprets_triton()
    found = Launches(inputs.tensors, schedule, unwritten)
    for name in inputs.tensors.keys() & OUTPUTS:
        unwritten.allocated(inputs.tensors[name])
    bands = None
    if banded or is_triton:
        bands = Allocations(of.fill, of.unwritten, unwritten, copies, of.spread)
    if steps:
        found.after = steps.note
    around = filter(None, (bands, steps and steps.operations()))
    watched: AbstractContextManager[Any] = nullcontext()
    if is_triton:
        from ..frontends.triton.interpreter.memory_watch import watched_memory

        watched = watched_memory(inputs.tensors, unwritten)
    with watched as watch:
        outcome = run_target(of.target, of.case, inputs, around, found)
    return outcome, watch, bands


def _overwritten(
    changes: list[MemoryFinding], before: InputsBefore, run: Callable[..., object], watched: Mapping[str, Writer]
) -> Iterator[MemoryFinding]:  # fmt: skip
    """The inputs that changed, and by what; where nothing saw that, by comparing steps."""
    writers = dict(watched)
    if not changes:
        return
    before.restore()
    if any(change.lanes and change.tensor not in writers for change in changes):
        with contextlib.suppress(Failure):
            run(steps=before)
        before.restore()
        writers = before.writers | writers
    for change in changes:
        yield written_by(change, *writers.get(change.tensor, ("", None)))


def interprets_triton() -> bool:
    return interpreting() and "triton" in sys.modules
