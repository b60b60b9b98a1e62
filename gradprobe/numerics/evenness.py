"""Evenness: whether a head errs as much as others do, and no more than roundings make it.

A bound says what one element may err by at most. A head that errs twice as much as it should may stay within it, but
its rows, all together, do not: a kernel rounds alike in all of its heads, and what a rounding adds is known (`spread`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, evaluate
from ..reference.attention import BY_KEY
from ..runtime.trace import Trace
from .compare import Comparison, tiles_of
from .identities import Invariant
from .spread import RESULTS, Scatter, Spread, tile_parts

ROUNDING = 1 / (8 * math.log(2))
"""The variance of a rounding, in squares of u x: the mean of 1 / (3 m^2) for significands 1 <= m < 2, as 1 / m spread.

The error is anywhere in half a spacing, u / m of x, and the square of that is a third of its largest on average.
"""
# Fewer rows than that tell nothing.
ROWS = 12
# How far apart heads are that do not round alike: standard deviations, of which this many come by chance once in
# thirty thousand, and beyond these a factor of the squares. Twice the error makes four.
DEVIATIONS, APART = 4.0, 1.25
# Values with a mean as large as their deviation fill fewer directions, and so does what has rank 2.
DIRECTIONS = 4
# A share of a row's variance below which its error tells no more: of a float32 kernel 1e-2, of exact results nothing.
LEAST = 1e-4


@dataclass(frozen=True)
class Head:
    """How one head scatters."""

    place: tuple[int, int]
    level: float
    """The mean logarithm of its rows' squared errors, as multiples of what all parts together add."""
    deviation: float
    """The standard deviation of that mean."""
    furthest: float
    """The largest error, as a multiple of what its element errs by at this level."""
    shares: Mapping[str, float]
    """The mean share of each part."""


def heads_of(x: Attention, result: str, scatter: Scatter, expected: Tensor, squares: Tensor) -> Iterator[Head]:
    """Each head that has rows enough, which err each by itself.

    Args:
        expected: [B, H, R, C].
        squares: of the errors of the same, in squares of the unit.
    """
    parts = scatter.with_stored(expected)
    # A sum in 16 bits is a hundred times as coarse as the others, and few kernels have one.
    total = torch.stack([part for name, part in parts.items() if name != "sums"]).sum(0)
    for b, h in torch.cartesian_prod(*map(torch.arange, total.shape[:2])).tolist():
        live = total[b, h] > 0
        if int(live.sum()) < ROWS or _share_errors(x, result, b, h, live):
            continue
        whole = ROUNDING * total[b, h][live]
        of_elements = squares[b, h][live] / whole[:, None]
        level = (of_elements.sum(-1) + LEAST).log()
        shares = {name: float((part[b, h] / total[b, h])[live].mean()) for name, part in parts.items()}
        stored = expected[b, h][live].square()
        # Of an element its own storing, and of the others what its row has of them on average.
        of_each = ROUNDING * (stored + (total[b, h][live, None] - stored.sum(-1, keepdim=True)) / stored.shape[-1])
        furthest = math.sqrt(float((squares[b, h][live] / of_each).max() / level.mean().exp()))
        deviation = _deviation(level, scatter, (b, h), live, total[b, h][live])
        yield Head((b, h), float(level.mean()), deviation, furthest, shares)


def _deviation(level: Tensor, scatter: Scatter, place: tuple[int, int], live: Tensor, whole: Tensor) -> float:
    """Of the mean of rows that err each by itself, but for what they share.

    n query rows of one size share n squares: their sum is off by 2 / n of its square. Of other sizes n is
    the square of their sum over the sum of their squares.
    """
    of_all, of_squares = scatter.queries[(slice(None), *place)].tolist()
    share = float((scatter.shared[place][live] / whole).mean())
    in_common = 2 * share**2 * of_squares / of_all**2 if of_all else 0.0
    return math.sqrt(float(level.var()) / len(level) + in_common)


def _share_errors(x: Attention, result: str, b: int, h: int, live: Tensor) -> bool:
    """Whether rows of a head err alike: one error then counts as several.

    Rows that come twice round alike. Where those of q or k lie along few directions, what rounds one operand of the
    scores moves all rows of the other in one way.
    """
    group = x.n_heads // x.k.shape[1]
    key_head, head = (h, h * group) if result in BY_KEY else (h // group, h)
    q, k = x.q[b, head], x.k[b, key_head]
    of_queries, of_keys = torch.cat([q, x.do[b, head]], -1), torch.cat([k, x.v[b, key_head]], -1)
    made_of = [of_keys[live], of_queries] if result in BY_KEY else [of_queries[live]]
    return any(len(one.unique(dim=0)) < 0.9 * len(one) for one in made_of) or min(map(_directions, (q, k))) < DIRECTIONS


def _directions(rows: Tensor) -> float:
    """How many directions rows [r, D] fill: n equal eigenvalues of their Gram matrix make n."""
    gram = rows.mT @ rows
    return float(gram.trace() ** 2 / gram.square().sum().clamp(min=1e-300))


def excess(head: Head, others: Sequence[Head]) -> float:
    """By which factor a head errs more than its values and chance explain, beside each other one; the least of them.

    A kernel may round any part as often as it likes: the squares of two heads differ at most as those of some part do.
    """
    found = math.inf
    for other in others:
        by_values = max(share / max(other.shares[name], 1e-12) for name, share in head.shares.items())
        by_chance = DEVIATIONS * math.hypot(head.deviation, other.deviation) + math.log(APART)
        found = min(found, head.level - other.level - math.log(max(by_values, 1.0)) - by_chance)
    return math.exp(found / 2) if others else 0.0


def exceeds(head: Head, often: Mapping[str, float]) -> bool:
    """Whether a head errs more than if each part were rounded so often, chance apart."""
    most = math.log(sum(often[name] * share for name, share in head.shares.items()))
    return head.level > most + DEVIATIONS * head.deviation


def heads_by_result(case: Case, x: Attention, trace: Trace, comparison: Comparison) -> dict[str, list[Head]]:
    """How the heads of each of RESULTS that is there scatter; nothing where that is not known.

    It is where 16 bits are rounded, softmax is taken, and nothing was recovered.
    """
    precision, given = comparison.precision, trace.values
    if case.dtype == "float32" or case.family != "softmax" or precision.exact or comparison.recovery is not None:
        return {}
    spread = Spread(x)
    for tile in tiles_of(case, x):
        spread.add(tile, tile_parts(x, tile, evaluate(x, tile)))
    found = {}
    for result in (name for name in RESULTS if name in given and bool(given[name].isfinite().all())):
        expected = comparison.expected[result]
        errors = ((given[result].double() - expected) / precision.matrix).square()
        found[result] = list(heads_of(x, result, spread.of[result], expected, errors))
    return found


def evenness(heads: Mapping[str, Sequence[Head]]) -> list[Invariant]:
    """Whether all heads of each result err alike, and which does not most; empty where that is not known."""
    found = [
        (excess(head, [one for one in of_result if one is not head]), result, head)
        for result, of_result in heads.items() if len(of_result) > 1 for head in of_result
    ]  # fmt: skip
    if not found:
        return []
    most, result, head = max(found, key=lambda one: one[0])
    batch, of_head = head.place
    others = [one.level for one in heads[result] if one is not head]
    times = math.exp((head.level - sum(others) / len(others)) / 2)
    where = f"{result} of batch {batch}, head {of_head} errs {times:.1f} times as much as in the other heads"
    return [Invariant("I11", "target", most, 1.0, where)]
