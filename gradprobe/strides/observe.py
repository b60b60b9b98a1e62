"""One run of a target with everything around its tensors watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..cases.case import OUTPUTS
from ..cases.guards import Guards
from ..cases.layouts import Inputs
from ..cuda.unwritten import Unwritten as CudaUnwritten
from ..judging.strays import Stray, of_access, of_breach, of_cuda
from ..probing.session import Session, empty_outputs
from ..running.allocations import Allocations, Register
from ..running.backend import interpreting
from ..running.run import Outcome, run_target

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Observed:
    """What one run gave, and what it did to memory."""

    inputs: Inputs
    outcome: Outcome
    strays: tuple[Stray, ...]


def observe(session: Session, inputs: Inputs) -> Observed:
    """Runs the target once, inside guard bands of its own and of the caller's.

    Where Triton's interpreter runs the kernels every address is looked at too. An access beyond its storage is then
    not executed: it would spoil this process's memory, and with it the layouts that are tried next.

    Raises:
        UsageFailure: the case uses what the target does not take.
        TargetFailure: the target raised where it may not, or returned what it may not.
    """
    guards = Guards(inputs.tensors)
    cuda = empty_outputs(inputs)
    with _watching(session, inputs, cuda) as (allocations, accesses):
        outcome = run_target(session.target, session.case, inputs, session.taps, around=allocations, unwritten=cuda)
    session.outcomes.append(outcome)
    breaches = [*guards.breaches(), *allocations.breaches(dict(outcome.storages))]
    return Observed(inputs, outcome, (*accesses(), *map(of_cuda, outcome.findings), *map(of_breach, breaches)))


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


@contextlib.contextmanager
def _watching(
    session: Session, inputs: Inputs, cuda: CudaUnwritten
) -> Iterator[tuple[Allocations, Callable[[], tuple[Stray, ...]]]]:
    """The target's own allocations, and what its kernels did at addresses that are none of theirs."""
    copies = any(outcome.cuda for outcome in session.outcomes)
    if not interpreting():
        yield Allocations(session.fill, session.unwritten, cuda, copies=copies), tuple
        return
    from ..running.interpreter.memory import Unwritten, watched_memory

    unwritten = Unwritten()
    for name in OUTPUTS:
        if name in inputs.tensors:
            unwritten.allocated(inputs.tensors[name])
    with watched_memory(inputs.tensors, unwritten) as memory:
        allocations = Allocations(session.fill, session.unwritten, _Both(unwritten, cuda), copies=copies)
        yield allocations, lambda: tuple(of_access(finding) for finding in memory.findings)
