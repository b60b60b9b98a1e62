"""One run of a target with everything around its tensors watched."""

from __future__ import annotations

from dataclasses import dataclass

from ..cases.guards import Guards
from ..cases.layouts import Inputs
from ..probing.session import Session
from ..running.allocations import Allocations
from ..running.run import Outcome, run_target
from .strays import Stray, of_breach


@dataclass(frozen=True)
class Observed:
    """What one run gave, and what it did to memory."""

    inputs: Inputs
    outcome: Outcome
    strays: tuple[Stray, ...]


def observe(session: Session, inputs: Inputs) -> Observed:
    """Runs the target once, inside guard bands of its own and of the caller's.

    Raises:
        UsageFailure: the case uses what the target does not take.
        TargetFailure: the target raised where it may not, or returned what it may not.
    """
    guards = Guards(inputs.tensors)
    allocations = Allocations(session.fill, session.unwritten)
    outcome = run_target(session.target, session.case, inputs, session.taps, around=allocations)
    session.outcomes.append(outcome)
    breaches = [*guards.breaches(), *allocations.breaches(dict(outcome.storages))]
    return Observed(inputs, outcome, tuple(of_breach(breach) for breach in breaches))
