"""Problem -> Probed, of the problem as it is or of what the target takes in its place."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace

from ..inputs.options import flags
from ..model.case import ranked
from ..model.failures import TargetFailure
from ..model.report import NAMED
from ..model.run import MISMATCH
from ..numerics.evidence import Probed, Run
from ..probing.experiment import Tick
from .fit import OF_LENGTH, WHOLE_BLOCKS, WRONG_THROUGHOUT, Fit, fit, given_as, refuses, share_wrong, tried
from .probe import probe
from .resolve import Problem

Told = Callable[[Probed], object]


def probed(
    problem: Problem, repro_command: str, tick: Tick, told: Told = lambda so_far: None
) -> tuple[Probed, Problem]:
    """The report, and the problem that it is about: another one where the target does not take the one given.

    Args:
        repro_command: the command line that repeats it; what is found out stands in the report's.
        told: from `probe`.

    Raises:
        Failure: from `probe`.
    """
    first: list[Run] = []

    def look(run: Run) -> None:
        first.append(run)
        if share_wrong(run) > WRONG_THROUGHOUT and (found := fit(problem, None, share_wrong(run))) is not None:
            raise _Otherwise(found)

    found = Fit(problem)
    try:
        report = _report(found, repro_command, (tick, told), look)
    except _Otherwise as otherwise:
        found = otherwise.fit
        report = _report(found, repro_command, (tick, told), first.append)
    except TargetFailure as failure:
        other = None if any(run.measured for run in first) else fit(problem, failure)
        if other is None:
            raise _with_groups(_with_shapes(failure, problem), problem) from failure.__cause__
        found = other
        report = _report(found, repro_command, (tick, told), first.append)
    return _with_known(report, found.problem), found.problem


def _with_shapes(failure: TargetFailure, problem: Problem) -> TargetFailure:
    """The failure. Its way out names the shape of a bias or mask that was refused, and how to give another."""
    there = [name for name in ("bias", "mask") if (ranked(name, problem.case) and getattr(problem.case, name))]
    if there and refuses(failure):
        said = [
            f"{given_as(name, problem.case)} was given; --{name}-axes and --{name}-rank say another" for name in there
        ]
        failure.way_out = "; ".join([*said, *([failure.way_out] if failure.way_out else [])])
    return failure


def _with_groups(failure: TargetFailure, problem: Problem) -> TargetFailure:
    """The failure. Its way out says so where the target only takes as many key heads as query heads."""
    if refuses(failure) and (words := _right_without_groups(problem)):
        failure.way_out = "; ".join(filter(None, (words, failure.way_out)))
    return failure


class _Otherwise(Exception):
    """The target takes its tensors for something else."""

    def __init__(self, fit: Fit) -> None:
        super().__init__()
        self.fit = fit


def _report(found: Fit, repro_command: str, telling: tuple[Tick, Told], first: Callable[[Run], None]) -> Probed:
    problem = found.problem
    line = shlex.join([*shlex.split(repro_command), *flags(found.options)]) if repro_command else ""
    return probe(
        problem.case, problem.target, reference=problem.reference, saved=problem.saved, reproduce=line,
        tick=telling[0], told=telling[1], given=problem.given, first=first, found_out=found.sentences,
    )  # fmt: skip


def _with_known(report: Probed, problem: Problem) -> Probed:
    """The report, with a sentence where another length or number of key heads is right."""
    # What a kernel does to memory may itself come of them.
    explained = any(one.explained >= NAMED for one in report.diagnoses) and not report.runs[0].memory
    if report.runs[0].verdict != MISMATCH or explained:
        return report
    words = _right_in_whole_blocks(problem) or _right_without_groups(problem)
    return replace(report, known=(f"{report.runs[0].layout}, {words}", *report.known)) if words else report


def _right_in_whole_blocks(problem: Problem) -> str:
    """Says that whole blocks are right in the first layout; "" where they are not, or where a length was given."""
    given = set(OF_LENGTH) & problem.request.options.keys()
    if given or problem.saved is not None or not tried(problem, {"seqlen": WHOLE_BLOCKS}).matches:
        return ""
    return f"it is right at --seqlen {WHOLE_BLOCKS}: it takes multiples of a block, and does not refuse other lengths"


def _right_without_groups(problem: Problem) -> str:
    """Says that as many key heads as query heads are right in the first layout; "" where they are not."""
    case, heads = problem.case, problem.case.heads
    if case.kv_heads == heads or problem.saved is not None or not tried(problem, {"kv_heads": heads}).matches:
        return ""
    return f"it is right at --kv-heads {heads}: it takes a key head for each query head"
