"""One run of a target on a case, to see whether it takes it, and as what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..failures import Failure, Refusal, TargetFailure
from ..probing.experiment import experiment_of
from ..probing.runs import records_of
from ..problem import Problem
from ..verdict import Run

# The intermediates by which a meaning is judged: O, which nothing of the backward enters; else the gradients.
_FORWARD, _GRADIENTS = ("O",), ("dQ", "dK", "dV")


@dataclass(frozen=True)
class Tried:
    """What came of one run."""

    problem: Problem
    failure: Failure | None
    """Why there is no result; None where there is one."""
    wrong: float
    """The share of the wrong elements among those that tell most of a meaning; 1 where there is no result."""
    matches: bool = False
    """Whether all that came is right."""


def tried(problem: Problem, options: Mapping[str, Any]) -> Tried:
    """One run of the target in the first layout, with further options."""
    try:
        problem = problem.with_options(options)
        run = _run(problem)
    except Failure as failure:
        return Tried(problem, failure, 1.0)
    return Tried(problem, None, share_wrong(run), run.matches)


def refuses(failure: Failure) -> bool:
    """Whether the target's own code raised. A wrong result, or harm to memory or the device, is a fault instead."""
    return isinstance(failure, Refusal) or (type(failure) is TargetFailure and failure.__cause__ is not None)


def _run(problem: Problem) -> Run:
    case = replace(problem.case, repeat=1, schedules=0, configs="first", taps=())
    run = next(records_of(experiment_of(case, problem.target, saved=problem.saved))).run
    if run is None or run.measured is None:
        raise Refusal((run and run.skipped) or "it refused")
    return run


def share_wrong(run: Run) -> float:
    """The share of wrong elements in O, else in the gradients, else in all that came; 0 where nothing came."""
    findings = run.measured.comparison.findings if run.measured is not None else {}
    names = next((some for some in (_FORWARD, _GRADIENTS) if set(some) & findings.keys()), tuple(findings))
    chosen = [findings[name] for name in names if name in findings]
    total = sum(finding.total for finding in chosen)
    return sum(finding.mismatched for finding in chosen) / total if total else 0.0
