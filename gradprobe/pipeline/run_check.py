"""CheckRequest -> Probed: imports what the words need, resolves the case, and probes."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..inputs.history import CheckRequest
from ..inputs.versions import untested
from ..model.allowance import NOTHING, Allowance
from ..model.layout_run import MATCH
from ..model.mechanisms import door
from ..model.writing import safe
from .resolve import Problem, resolve_problem

if TYPE_CHECKING:
    from ..numerics.evidence import Probed
    from ..probing.experiment import Tick

# Elements of all score matrices up to which a check takes no time that anybody waits for; seconds from which they are
# told; lengths of the small runs from which they are estimated, whole blocks of any kernel.
_QUICK = 1 << 20
_LONG = 30.0
_LENGTHS = (128, 256)
# Of each of q, k, v and dO there are the values, and the layout with as much room behind it for reads that go wrong;
# and three gradients come.
_INPUTS = 4 * (1 + 2) + 3


def run_check(
    request: CheckRequest,
    repro_command: str,
    *,
    target: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    tick: Tick = lambda stage, fraction, layout="": None,
    told: Callable[[Probed], object] = lambda so_far: None,
    budget: Callable[[], Allowance] = lambda: NOTHING,
    beyond: bool = False,
) -> Probed:
    """The report that a target and its options ask for.

    Args:
        repro_command: the command line that repeats it.
        target, reference: a function in place of the one that is asked for by a word.
        tick: told how far it is.
        told: given the report of what is measured so far, again and again.
        budget: from `probe`.
        beyond: whether a target that matches is run on small second cases of what this one does not use.

    Raises:
        Failure: whatever keeps it from being made.
    """
    start = perf_counter()
    # What a target prints is no data of this command.
    with contextlib.redirect_stdout(sys.stderr):
        tick("importing torch and the target", 0.0)
        problem = resolve_problem(request, target=target, reference=reference)
        from .probe import probed

        imported = perf_counter() - start
        if beyond and problem.case.scores > _QUICK and (words := cost_in_words(problem)):
            sys.stderr.write(safe(f"gradprobe: {words}\n"))
        report, problem = probed(problem, repro_command, tick, told, budget)
        if beyond and report.verdict == MATCH:
            from .second_cases import with_second_cases

            report, problem = with_second_cases(report, problem, tick, told, budget)
        if problem.saved is not None:
            from .fit import refuse_misreading

            wrong = report.failing[0].measured if report.failing else None
            refuse_misreading(wrong, problem.saved, problem.target)
    if words := untested():
        report = replace(report, notes=(words, *report.notes))
    seconds = {"import": imported, **report.seconds, "total": perf_counter() - start}
    return replace(report, seconds=seconds)


@door("cost", lambda problem: "")
def cost_in_words(problem: Problem) -> str:
    """`8 GiB an input, 3 layouts, about 12 min`, and whether the memory is too little; "" of a check that is short."""
    import torch

    from ..probing.experiment import layouts_of
    from ..processes.resource_limits import in_words, limit

    case = problem.case
    if case.device != "cpu" or case.ranks:
        return ""
    largest = max(math.prod(map(case.size, case.input_axes(name))) for name in ("q", "k"))
    size, layouts = largest * getattr(torch, case.dtype).itemsize, len(layouts_of(case))
    seconds = _seconds(problem, layouts * case.repeat)
    words = f"{in_words(size)} an input, {layouts} {'layout' if layouts == 1 else 'layouts'}"
    if seconds is not None:
        words += f", about {_duration(seconds)}"
    if size * _INPUTS > limit():
        return f"{words}; it needs {in_words(size * _INPUTS)} or more, and may take {in_words(limit())} (--max-memory)"
    return words if seconds is None or seconds > _LONG else ""


def _seconds(problem: Problem, runs: int) -> float | None:
    """How long so many runs take, by two small ones whose difference grows with the scores; None where none ran."""
    from .fit import tried

    sizes = {"batch": 1} if "batch" not in problem.fixed or problem.case.batch > 1 else {}
    lengths = {"seqlen_q", "seqlen_k"} & problem.request.options.keys() or {"seqlen"}
    scores, seconds = [], []
    for length in _LENGTHS:
        begun = perf_counter()
        trial = tried(problem, sizes | dict.fromkeys(lengths, length))
        if trial.failure is not None:
            return None
        seconds.append(perf_counter() - begun)
        scores.append(trial.problem.case.scores)
    each = max(0.0, seconds[1] - seconds[0]) / (scores[1] - scores[0])
    return runs * (seconds[0] + each * (problem.case.scores - scores[0]))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
