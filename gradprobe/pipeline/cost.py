"""What a check costs before it takes long: an estimate from two small runs and from the elements of its inputs."""

from __future__ import annotations

import math
from time import perf_counter

from ..model.mechanisms import door
from ..probing.experiment import layouts_of
from ..processes.resource_limits import in_words, limit
from .fit import tried
from .resolve import Problem

# Seconds from which they are told.
_LONG = 30.0
# Lengths of the small runs: whole blocks of any kernel.
_LENGTHS = (128, 256)
# Of each of q, k, v and dO there are the values, and the layout with as much room behind it for reads that go wrong;
# and three gradients come.
_INPUTS = 4 * (1 + 2) + 3


@door("cost", lambda problem: "")
def cost_in_words(problem: Problem) -> str:
    """`8 GiB an input, 3 layouts, about 12 min`, and whether the memory is too little; "" of a check that is short."""
    import torch

    case = problem.case
    if case.device != "cpu" or case.ranks:
        return ""
    largest = max(math.prod(map(case.size, case.input_axes(name))) for name in ("q", "k"))
    size, runs = largest * getattr(torch, case.dtype).itemsize, len(layouts_of(case)) * case.repeat
    seconds = _seconds(problem, runs)
    words = f"{in_words(size)} an input, {runs} {'layout' if runs == 1 else 'layouts'}"
    words += f", about {_time(seconds)}" if seconds is not None else ""
    if size * _INPUTS > limit():
        return f"{words}; it needs {in_words(size * _INPUTS)} or more, and may take {in_words(limit())} (--max-memory)"
    return words if seconds is None or seconds > _LONG else ""


def _seconds(problem: Problem, runs: int) -> float | None:
    """How long so many runs take, by two small ones whose difference grows with the scores; None where none ran."""
    sizes = {"batch": 1} if "batch" not in problem.fixed or problem.case.batch > 1 else {}
    lengths = {"seqlen_q", "seqlen_k"} & problem.request.options.keys() or {"seqlen"}
    scores, seconds = [], []
    for length in _LENGTHS:
        begun = perf_counter()
        came = tried(problem, sizes | dict.fromkeys(lengths, length))
        if came.failure is not None:
            return None
        seconds.append(perf_counter() - begun)
        scores.append(came.problem.case.scores)
    each = max(0.0, seconds[1] - seconds[0]) / (scores[1] - scores[0])
    return runs * (seconds[0] + each * (problem.case.scores - scores[0]))


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
