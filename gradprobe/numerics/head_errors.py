"""I11: whether all heads of each result err alike, and one head alone no more than its own roundings make it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..model.layout_run import Identity
from ..model.number import Number
from ..reference import Attention
from ..runtime.trace import Trace
from .compare import Comparison
from .evenness import HeadScatter, excess
from .slopes import steepest

NAME = "I11 heads round alike"


def evenness(
    x: Attention, trace: Trace, comparison: Comparison, heads: Mapping[str, Sequence[HeadScatter]]
) -> list[Identity]:
    """The head that errs most beyond that, and by how much; empty where no head's errors are known."""
    found = [
        _judged(x, trace, comparison, result, head, of_result, sum(map(len, heads.values())))
        for result, of_result in heads.items() for head in of_result
    ]  # fmt: skip
    return [_identity(*furthest) for furthest in sorted(found)[-1:]]


def _identity(most: float, where: str) -> Identity:
    holds = most <= 1.0
    name = NAME if holds else f"{NAME}: {where}"
    return Identity(name=name, holds=holds, residual=Number(most), budget=Number(1.0))


def _judged(
    x: Attention,
    trace: Trace,
    comparison: Comparison,
    result: str,
    head: HeadScatter,
    of_result: Sequence[HeadScatter],
    checks: int,
) -> tuple[float, str]:
    """By which factor a head errs too much, and what is said of it."""
    others = [one.size for one in of_result if one is not head]
    where = f"{result} of batch {head.place[0]}, head {head.place[1]} errs"
    beyond = excess(head, [one for one in of_result if one is not head], checks)
    if others:
        times = math.sqrt(head.size * len(others) / sum(others))
        return beyond, f"{where} {times:.1f} times as much as in the other heads"
    expected = comparison.expected[result][head.place]
    errors = trace.values[result][head.place].double() - expected
    slope, times, rounded = steepest(x, result, head, errors, expected, comparison.precision, checks)
    if slope < beyond:
        return beyond, f"{where} {beyond:.1f} times as much as roundings make it"
    return slope, f"{where} {times:.1f} times as much as the rounding of {rounded} makes it"
