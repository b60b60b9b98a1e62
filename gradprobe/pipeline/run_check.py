"""CheckRequest -> Probed: of the problem as it is or of what the target takes in its place; and misread inputs."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..inputs.history import CheckRequest
from ..inputs.options import flags
from ..inputs.saved import Saved
from ..model.case import ranked
from ..model.diagnosis import NAMED
from ..model.failures import TargetFailure
from ..numerics.evidence import MISMATCH, Measured, Probed, Run
from ..probing.experiment import Tick
from ..reference import Attention, Tile, evaluate
from ..targets.find import Target
from .fit import OF_LENGTH, WHOLE_BLOCKS, WRONG_THROUGHOUT, Fit, fit, given_as, refuses, share_wrong, tried
from .probe import probe
from .resolve import Problem, resolve_problem

if TYPE_CHECKING:
    from torch import Tensor

    from ..numerics.evidence import Probed
    from ..probing.experiment import Tick

# O of another reading differs by about its own size; the roundings of 16-bit kernels by a hundredth of it.
_ALIKE = 0.02
_MOST_HEADS = 2


def refuse_misreading(measured: Measured | None, saved: Saved, target: Target) -> None:
    """Does nothing where O is right as the inputs were read, or wrong however they are read.

    Args:
        measured: the first run that is wrong, by its own results; None where there is none.

    Raises:
        TargetFailure: O is wrong as the inputs were read, and right as they may be read as well.
    """
    if measured is None or not _is_plain(measured.x) or "o" in saved.values:
        return
    if "O" not in measured.trace.values or not measured.comparison.findings["O"].mismatched:
        return
    for x, swapped, words, way_out in _readings(measured.x, target.takes.keys()):
        if _agrees(measured, x, swapped=swapped):
            raise TargetFailure(
                f"O of target {target.name!r} is wrong as its inputs were read, and right {words}", way_out
            )


def _is_plain(x: Attention) -> bool:
    """Whether q, k, v and do are all there is, so that their axes may be swapped."""
    others = ("bias", "seqlens", "mask", "alibi", "sinks", "keep", "cu_seqlens_q", "tau")
    return x.family == "softmax" and all(getattr(x, name, None) is None for name in others)


def _readings(x: Attention, takes: Collection[str]) -> Iterator[tuple[Attention, bool, str, str]]:
    """(problem, whether its axes are swapped, in words, the way out). What the target is told stays as it is."""
    turned = {name: getattr(x, name).transpose(1, 2) for name in ("q", "k", "v", "do")}
    for scale in [x.scale] if "scale" in takes else [x.scale, 1.0]:
        for causal in [x.causal] if "causal" in takes else [False, True]:
            changed = (["causal"] if causal != x.causal else []) + (["scale"] if scale != x.scale else [])
            if changed:
                words = f"where it is {'causal' if causal else 'not causal'} with scale {scale:g}"
                given = f"--implied {','.join(changed)}" + (f" --scale {scale:g}" if "scale" in changed else "")
                way_out = f"if it is so by itself: {given}"
                yield replace(x, causal=causal, scale=scale), False, words, way_out
            if x.q.shape[2] % x.k.shape[2] == 0:
                words = "where they are [B, L, H, D]; the order here is [B, H, L, D]"
                way_out = "keep them with --order blhd, and check it with --shapes blhd"
                yield replace(x, **turned, causal=causal, scale=scale), True, words, way_out


def _agrees(measured: Measured, x: Attention, *, swapped: bool) -> bool:
    """Whether O of the first heads of the first batch fits another reading."""
    heads = slice(0, min(_MOST_HEADS, x.n_heads))
    expected = evaluate(x, Tile(0, heads, slice(0, x.n_query)))["O"]
    actual: Tensor = measured.trace.values["O"]
    actual = (actual.transpose(1, 2) if swapped else actual)[0, heads].double()
    return bool((actual - expected).abs().max() <= _ALIKE * expected.abs().max())


Told = Callable[[Probed], object]


def probed(problem: Problem, again: str, tick: Tick, told: Told = lambda so_far: None) -> tuple[Probed, Problem]:
    """The report, and the problem that it is about: another one where the target does not take the one given.

    Args:
        again: the command line that repeats it; what is found out stands in the report's.
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
        report = _report(found, again, (tick, told), look)
    except _Otherwise as otherwise:
        found = otherwise.fit
        report = _report(found, again, (tick, told), first.append)
    except TargetFailure as failure:
        other = None if any(run.measured for run in first) else fit(problem, failure)
        if other is None:
            raise _with_groups(_with_shapes(failure, problem), problem) from failure.__cause__
        found = other
        report = _report(found, again, (tick, told), first.append)
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


def _report(found: Fit, again: str, telling: tuple[Tick, Told], first: Callable[[Run], None]) -> Probed:
    problem = found.problem
    line = shlex.join([*shlex.split(again), *flags(found.options)]) if again else ""
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


def run_check(
    request: CheckRequest,
    again: str,
    *,
    target: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    tick: Tick = lambda stage, fraction, layout="": None,
    told: Callable[[Probed], object] = lambda so_far: None,
) -> Probed:
    """The report that a target and its options ask for.

    Args:
        again: the command line that repeats it.
        target: a function to check in place of the one that is asked for by a word.
        reference: likewise.
        tick: told how far it is.
        told: given the report of what is measured so far, again and again.

    Raises:
        Failure: whatever keeps it from being made.
    """
    start = time.perf_counter()
    # What a target prints is no data of this command.
    with contextlib.redirect_stdout(sys.stderr):
        tick("importing torch and the target", 0.0)
        problem = resolve_problem(request, target=target, reference=reference)
        pass
        pass

        imported = time.perf_counter() - start
        report, problem = probed(problem, again, tick, told)
        if problem.saved is not None:
            wrong = report.failing[0].measured if report.failing else None
            refuse_misreading(wrong, problem.saved, problem.target)
    seconds = {"import": imported, **report.seconds, "total": time.perf_counter() - start}
    return replace(report, seconds=seconds)
