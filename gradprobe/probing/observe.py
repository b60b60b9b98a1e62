"""One run of a target with the memory around its tensors watched, and every access where kernels are interpreted."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..cases.case import OUTPUTS, Case
from ..cases.guards import ORDINARY, Guards
from ..cases.layouts import Inputs
from ..cuda.unwritten import Unwritten as CudaUnwritten
from ..judging.strays import Stray, of_access, of_breach, of_cuda
from ..running.allocations import Allocations, Register
from ..running.backend import interpreting
from ..running.run import Outcome, run_target
from ..running.taps import Tap
from ..targets.find import Target

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class WatchedRun:
    """What one run gave, and what it did to memory."""

    inputs: Inputs
    outcome: Outcome
    strays: tuple[Stray, ...]
    unwatched: tuple[str, ...] = ()
    """What went wrong in watching: the accesses concerned were executed, and not judged."""


def observe(
    target: Target,
    case: Case,
    inputs: Inputs,
    taps: Sequence[Tap] = (),
    *,
    fill: str = ORDINARY,
    unwritten: float = math.nan,
    banded: bool = True,
    copies: bool = False,
    schedule: int = 0,
) -> WatchedRun:
    """Runs a target once, and looks at what it does to memory that is not its own.

    The guard bands around the inputs are compared after the run. Where Triton's interpreter runs the kernels, every
    address is looked at, and what the target allocates lies in guard bands too. An access beyond its storage is then
    not executed: it would spoil the memory of this process. Where only the run imports Triton, a second is watched.

    Args:
        fill: what guard bands hold, one of guards.FILLS.
        unwritten: what memory without values holds.
        banded: whether what the target allocates lies in guard bands, whatever runs its kernels.
        copies: whether what `contiguous`, `clone` and `to` return does so too.
        schedule: the order of the threads of CUDA kernels on the CPU.

    Raises:
        UsageFailure: the case uses what the target does not take.
        TargetFailure: the target raised where it may not, or returned what it may not.
    """
    guards = Guards(inputs.tensors)

    def run() -> WatchedRun:
        cuda = empty_outputs(inputs)
        watching = _watching(inputs, cuda) if _interprets_triton() else _not_watching(cuda)
        with watching as (register, accesses, failures):
            bands = banded or _interprets_triton()
            around = Allocations(fill, unwritten, register, copies=copies) if bands else None
            outcome = run_target(
                target, case, inputs, taps, around or nullcontext(), schedule=schedule, unwritten=cuda
            )  # fmt: skip
        breaches = [*guards.breaches(), *(around.breaches(dict(outcome.storages)) if around else ())]
        strays = (*accesses(), *map(of_cuda, outcome.findings), *map(of_breach, breaches))
        return WatchedRun(inputs, outcome, strays, failures())

    was_there = _interprets_triton()
    first = run()
    return run() if _interprets_triton() and not was_there else first


def empty_outputs(inputs: Inputs) -> CudaUnwritten:
    """The tensors that a target is to write its gradients into, none of which has a value before."""
    unwritten = CudaUnwritten()
    for tensor in _outputs(inputs):
        unwritten.allocated(tensor)
    return unwritten


def _outputs(inputs: Inputs) -> list[Tensor]:
    return [inputs.tensors[name] for name in OUTPUTS if name in inputs.tensors]


def _interprets_triton() -> bool:
    """Whether kernels of Triton that are launched now are interpreted. A target without any need not pay its import."""
    return interpreting() and "triton" in sys.modules


@dataclass(frozen=True)
class _Both:
    """Two registers of memory that has no value as yet."""

    one: Register
    other: Register

    def allocated(self, tensor: Tensor) -> None:
        for register in (self.one, self.other):
            register.allocated(tensor)

    def written(self, tensor: Tensor) -> None:
        for register in (self.one, self.other):
            register.written(tensor)


_Watching = Iterator[tuple[Register, Callable[[], tuple[Stray, ...]], Callable[[], tuple[str, ...]]]]


@contextlib.contextmanager
def _not_watching(cuda: CudaUnwritten) -> _Watching:
    yield cuda, tuple, tuple


@contextlib.contextmanager
def _watching(inputs: Inputs, cuda: CudaUnwritten) -> _Watching:
    """Who is told of memory without values; what kernels did at addresses that are none of theirs; what failed."""
    from ..running.interpreter.memory import Unwritten, watched_memory

    unwritten = Unwritten()
    for tensor in _outputs(inputs):
        unwritten.allocated(tensor)
    with watched_memory(inputs.tensors, unwritten) as memory:
        found: Any = memory
        yield _Both(unwritten, cuda), lambda: tuple(map(of_access, found.findings)), lambda: tuple(found.failures)
