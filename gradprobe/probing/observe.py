"""One run of a target: what it does to the memory around its tensors, to its inputs, and how it holds its results."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..frontends.interface import CUDA, CUDA_ON_CPU
from ..frontends.triton import interpreting
from ..inputs.guard_bands import Guards
from ..inputs.memory import Unwritten
from ..inputs.tensor_layouts import Inputs
from ..model.assignment import OUTPUTS
from ..model.failures import Failure, KernelStopped, TargetFailure
from ..model.mechanisms import gathered
from ..model.memory_finding import MemoryFinding
from ..numerics.memory_findings import of_breach, of_dtypes
from ..runtime.allocations import Allocations
from ..runtime.changes import InputsBefore, Steps, Writer, written_by
from ..runtime.run import Outcome, run_target
from ..runtime.trace import Trace, expected_shapes
from .experiment import Experiment


@dataclass(frozen=True)
class Execution:
    """One run of the target: what it was given, what came of it, and what it did to memory."""

    inputs: Inputs
    outcome: Outcome
    memory: tuple[MemoryFinding, ...]
    unwatched: tuple[str, ...] = ()
    """What went wrong in watching: the accesses concerned were executed, and not judged."""

    @property
    def layout(self) -> str:
        return self.inputs.layout

    def without_tensors(self, layout: str = "") -> Execution:
        """What is kept of it, under another name for its layout where one is given."""
        return replace(self, inputs=Inputs(layout or self.layout, {}, {}), outcome=replace(self.outcome, trace=None))


def execute(experiment: Experiment, inputs: Inputs, schedule: int = 0) -> Execution:
    """One run of the target, timed; `schedule` is the order of the threads of CUDA kernels on the CPU.

    Memory of CUDA's allocator often holds zeros in a test and something else in a training run. So kernels of a source
    run between guard bands, and do so again where only a run shows that there are some, or where one was stopped.
    """
    stopwatch, name = experiment.stopwatch, experiment.target.name
    experiment.tick(f"run {stopwatch.laps['target'] + 1}, {name}, {inputs.layout}", 0.0, inputs.layout)
    made = None
    with stopwatch.timed("target"):
        if not experiment.is_cuda:
            with contextlib.suppress(KernelStopped):
                made = observe(experiment, inputs, banded=experiment.case.poison, schedule=schedule)
        if made is None or made.outcome.backends & {CUDA, CUDA_ON_CPU}:
            made = observe(experiment, inputs, copies=True, schedule=schedule)
    return replace(made, inputs=inputs, outcome=_with_forward(experiment, inputs, made.outcome))


def _with_forward(experiment: Experiment, inputs: Inputs, outcome: Outcome) -> Outcome:
    """With the O and LSE that a file gave a backward: they are parents, and may be what is wrong."""
    saved, trace = experiment.saved, outcome.trace
    if saved is None or trace is None:
        return outcome
    of_file = saved.values.keys() & experiment.target.takes.keys()
    names = {"LSE": "lse", "O": "o"}.items()
    forward = {key: inputs.values[name] for key, name in names if name in of_file and key not in trace.values}
    if not forward:
        return outcome
    values = {**forward, **trace.values}
    sources = {**dict.fromkeys(forward, "exported"), **trace.sources}
    order = [name for name in expected_shapes(experiment.case) if name in values]
    return replace(outcome, trace=Trace({name: values[name] for name in order}, sources))


def accepted(experiment: Experiment, inputs: Inputs, schedule: int = 0) -> tuple[Trace, Execution]:
    """A further run in a layout that the target accepted before, and its results.

    Raises:
        TargetFailure: it refuses the layout now.
    """
    made = execute(experiment, inputs, schedule)
    if made.outcome.trace is None:
        name = experiment.target.name
        raise TargetFailure(f"target {name!r} refused {inputs.layout} after accepting it before")
    return made.outcome.trace, made.without_tensors()


def observe(
    experiment: Experiment, inputs: Inputs, *, banded: bool = True, copies: bool = False, schedule: int = 0
) -> Execution:
    """Runs a target once, and looks at what it does to memory that is not its own.

    The guard bands around the inputs are compared after the run. Where Triton's interpreter runs the kernels, every
    address is looked at, and what the target allocates lies in guard bands too. An access beyond its storage is then
    not executed: it would spoil the memory of this process. Where only the run imports Triton, a second is watched.

    Args:
        banded: whether what the target allocates lies in guard bands, whatever runs its kernels.
        copies: whether what `contiguous`, `clone` and `to` return does so too.
        schedule: the order of the threads of CUDA kernels on the CPU.

    Raises:
        UsageFailure: the case uses what the target does not take.
        TargetFailure: the target raised where it may not, or returned what it may not.
    """
    if experiment.case.ranks is not None and (in_ranks := experiment.target.ranks) is not None:
        made: Execution = in_ranks(experiment, inputs, banded=banded, copies=copies)
        return made
    guards, given = Guards(inputs.tensors, inputs.fill), InputsBefore(inputs, experiment.case.inplace)
    run = partial(_run, experiment, inputs, banded, copies, schedule)
    was_there = interprets_triton()
    outcome, watch, bands = run()
    if interprets_triton() and not was_there:
        given.restore()
        outcome, watch, bands = run()
    breaches = [*guards.breaches(), *(bands.breaches(dict(outcome.storages)) if bands else ())]
    memory = gathered("memory", iter, [found.finding for found in watch.findings]) if watch else []
    memory += gathered("memory/cuda", iter, outcome.findings)
    memory += gathered("memory/bands", partial(map, of_breach), breaches)
    memory += outcome.shared
    if outcome.trace is not None:
        memory += of_dtypes(outcome.trace, inputs.values)
        memory += _overwritten(experiment, inputs, given, run, watch.writers if watch else {})
    return Execution(inputs, outcome, tuple(memory), tuple(watch.failures) if watch else ())


def _run(
    experiment: Experiment, inputs: Inputs, banded: bool, copies: bool, schedule: int, steps: Steps | None = None
) -> tuple[Outcome, Any, Allocations | None]:
    """Runs the target: its outcome, the interpreter's watch where there is one, and the bands around what it allocates.

    Where there are steps, they are told of each.
    """
    of, unwritten, is_triton, bands = experiment, empty_outputs(inputs), interprets_triton(), None
    if banded or is_triton:
        bands = Allocations(of.fill, of.unwritten, unwritten, copies=copies, spread=of.spread)
    around = (bands, of.spread.asking() if of.spread else None, steps.operations() if steps else None)
    with _watched(inputs, unwritten) if is_triton else nullcontext() as watch:
        outcome = run_target(
            of.target, of.case, inputs, _all_entered(*around),
            schedule=schedule, unwritten=unwritten, launched=steps.launched if steps else lambda kernel: None,
        )  # fmt: skip
    return outcome, watch, bands


@contextlib.contextmanager
def _all_entered(*several: AbstractContextManager[Any] | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for one in filter(None, several):
            stack.enter_context(one)
        yield


def _overwritten(
    experiment: Experiment, inputs: Inputs, given: InputsBefore, run: Callable[..., object], watched: Mapping[str, Any]
) -> list[MemoryFinding]:
    """The inputs that a run changed, each with the kernel or line that did.

    Where nothing saw that, the target runs once more and the inputs are compared after each of its steps.
    """
    changes = given.changes(experiment.case.input_axes)
    if not changes:
        return []
    given.restore()
    writers: dict[str, Writer] = dict(watched)
    if any(change.lanes and change.tensor not in writers for change in changes):
        steps = Steps(given)
        with contextlib.suppress(Failure):
            run(steps=steps)
        given.restore()
        writers = {**steps.writers, **writers}
    return [written_by(change, *writers.get(change.tensor, ("", None))) for change in changes]


def empty_outputs(inputs: Inputs) -> Unwritten:
    """The tensors that a target is to write its gradients into, none of which has a value before."""
    unwritten = Unwritten()
    for name in OUTPUTS:
        if name in inputs.tensors:
            unwritten.allocated(inputs.tensors[name])
    return unwritten


def _watched(inputs: Inputs, unwritten: Unwritten) -> AbstractContextManager[Any]:
    """Every access of Triton's interpreter, which imports Triton."""
    from ..frontends.triton.interpreter.memory.memory_watch import watched_memory

    return watched_memory(inputs.tensors, unwritten)


def interprets_triton() -> bool:
    """Whether kernels of Triton that are launched now are interpreted. A target without any need not pay its import."""
    return interpreting() and "triton" in sys.modules
