"""Evenness: whether a head errs as much as others do, and no more than roundings make it.

A bound says what one element may err by at most. A head that errs twice as much as it should may stay within it, but
its rows, all together, do not: a kernel rounds alike in all of its heads, and what a rounding adds is known (`spread`).

The size of a head's errors is the mean over its rows of e^2 / (what all parts add if each is rounded once). If part i
is rounded w_i times, that is sum_i w_i share_i on average, exactly, so two heads of one kernel differ at most as a
linear programme over w says (`most`). Each row errs by itself, so the rest is chance: by Welch's t, of the logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, evaluate
from ..reference.attention import BY_KEY
from ..runtime.run import Trace
from .compare import Comparison, tiles_of
from .declared_precision import U32, Precision
from .rounding_spread import RESULTS, Parts, Scatter, Spread, rounding, tile_parts

FALSE_ALARMS = 1e-6
"""How often chance alone may accuse a right kernel in a whole check: of a million, one."""
TILES = (0, 64, 16)
"""Terms between two roundings of a sum in 16 bits, from none to the smallest tile in use."""
OFTEN = {
    "product": 3.0, "exactly": 1.0, "late": 1.0, "S": 3.0, "shifted": 1.0, "P": 1.0, "dP": 2.0, "spread": 1.0,
    "delta": 2.0, "operand": 1.0, "stored": 2.0, "sums": 1 / min(TILES[1:]),
}  # fmt: skip
"""How often each part is rounded at most: P or dS, that scaled, and the operand; q k, that scaled, and with what is
added; dP, and what dropout makes of it; O and delta; a query head's part of dK or dV, and their sum."""
# What first order leaves of two heads that differ, as a factor of squares. It is measured: without it right kernels of
# four heads, q and dO times 1/8 to 4, used 0.96 of what is allowed at lengths to 2,200, where chance is least. How the
# error of one rounding moves the next one has no general form.
APART = 1.25
DIRECTIONS = 4
"""Errors of scores of one rounded operand correlate as its rows do, by 1 / sqrt(directions) on average. From four on
that is at most a half, and they add in quadrature nearly as `spread` says; below, no size is known."""
# What float32 leaves, as a multiple of n (U32 / unit)^2. Of squares a sum of n terms, each rounded by itself, adds
# n U32^2 / 3, an exponential that errs evenly within two units 16 U32^2 / 3, and a rounding to 16 bits unit^2 / 6: no
# more from 16 terms on. Errors no larger say nothing of 16 bits: where dS cancels, dK is such a remainder, or zero.
_IN_FLOAT32 = 4.0


@dataclass(frozen=True)
class HeadScatter:
    """How one head scatters."""

    place: tuple[int, int]
    size: float
    """The mean of its rows' squared errors, as multiples of what all parts together add."""
    scatter: float
    """The variance of the logarithm of that mean."""
    in_common: float
    """What is added to it by what the rows share."""
    rows: float
    """How many rows err each by itself."""
    repeated: float
    """How often what is summed comes on average, whose roundings are then one."""
    shares: Mapping[str, float]
    """The mean share of each part."""


def heads_of(
    x: Attention, result: str, scatter: Scatter, stored: Tensor, squares: Tensor, unit: float
) -> Iterator[HeadScatter]:
    """Each head of which that is known.

    Entries of P that differ by less than a spacing round alike. Of a spread of s spacings 6 exp(-(2 pi s)^2) / pi^2 of
    the variance is common to a row (Widrow and Kollar, Quantization Noise, 2008): 3e-5 where s is a half, which scores
    make whose deviation is the unit roundoff.

    Args:
        stored: [B, H, R, 1], the variance of storing the rows.
        squares: [B, H, R], of their errors.
        unit: the unit roundoff.
    """
    parts = {name: part[..., 0] for name, part in scatter.with_stored(stored).items()}
    finest = _IN_FLOAT32 * max(*x.q.shape[2:], x.k.shape[2]) * (U32 / unit) ** 2
    # A sum in 16 bits is a hundred times as coarse as the others, and few kernels have one.
    total = torch.stack([part for name, part in parts.items() if name != "sums"]).sum(0)
    for b, h in torch.cartesian_prod(*map(torch.arange, total.shape[:2])).tolist():
        live = total[b, h] > 0
        own, summed, directions, scores = _apart(x, result, b, h, live)
        whole = total[b, h][live]
        of_rows = squares[b, h][live] / whole
        size = float(of_rows.mean())
        if own < 2 or directions < DIRECTIONS or scores < unit or size <= finest:
            continue
        shares = {name: float((part[b, h][live] / whole).mean()) for name, part in parts.items()}
        in_common = 2 * shares["operand"] ** 2 / directions + _in_common(
            scatter, (b, h), live, whole
        )
        yield HeadScatter(
            (b, h), size, float(of_rows.var()) / size**2 / own, in_common, own, summed, shares
        )


def _in_common(scatter: Scatter, place: tuple[int, int], live: Tensor, whole: Tensor) -> float:
    """n query rows of one size share n squares: their sum is off by 2 / n of its square. Of other sizes n is the square
    of their sum over the sum of their squares.
    """
    of_all, of_squares = scatter.queries[(slice(None), *place)].tolist()
    share = float((scatter.shared[place][live] / whole).mean())
    return 2 * share**2 * of_squares / of_all**2 if of_all else 0.0


def _apart(
    x: Attention, result: str, b: int, h: int, live: Tensor
) -> tuple[float, float, float, float]:
    """How many rows of a head err each by itself, how often what they sum is repeated, the directions that q or k fill,
    and the deviation of a row's scores.

    Rows that come twice round alike.
    """
    group = x.n_heads // x.k.shape[1]
    key_head, head = (h, h * group) if result in BY_KEY else (h // group, h)
    q, k = x.q[b, head], x.k[b, key_head]
    of_queries, of_keys = torch.cat([q, x.do[b, head]], -1), torch.cat([k, x.v[b, key_head]], -1)
    rows, others = (of_keys, of_queries) if result in BY_KEY else (of_queries, of_keys)
    own = int(live.sum()) / max(_repeated(rows[live]), 1.0)
    apart = k - k.mean(0)
    scores = abs(x.scale) * math.sqrt(
        float((q.square().sum(-1)).mean()) * float(apart.square().mean())
    )
    return own, _repeated(others), min(map(_directions, (q, k))), scores


def _repeated(rows: Tensor) -> float:
    """How often a row comes on average."""
    counts = rows.unique(dim=0, return_counts=True)[1].double()
    return float(counts.square().sum() / counts.sum().clamp(min=1.0))


def _directions(rows: Tensor) -> float:
    """How many directions rows [r, D] fill: n equal eigenvalues of their Gram matrix make n."""
    gram = rows.mT @ rows
    return float(gram.trace() ** 2 / gram.square().sum().clamp(min=1e-300))


def most(
    size: Tensor,
    gains: Mapping[str, Tensor],
    held: Mapping[str, Tensor],
    often: Mapping[str, float],
) -> Tensor:
    """The largest sum_i w_i of_i, where sum_i w_i held_i is at most `size`, and w_i at most `often`.

    A fractional knapsack: what gives most of `of` for its share of `held` goes in first (Dantzig, 1957).
    """
    names = [name for name in often if name in gains]
    gain = torch.stack([gains[name] / held[name].clamp(min=1e-12) for name in names])
    room = torch.stack([(often[name] * held[name]).expand_as(gain[0]) for name in names])
    order = gain.argsort(0, descending=True)
    gain, room = gain.gather(0, order), room.gather(0, order)
    used = (size - (room.cumsum(0) - room)).clamp(min=0.0).minimum(room)
    return (gain * used).sum(0)


def excess(
    head: HeadScatter,
    others: Sequence[HeadScatter],
    checks: int,
    often: Mapping[str, float] = OFTEN,
) -> float:
    """By which factor a head errs more than roundings, each as often as it may be, and than others of its result.

    Args:
        checks: how many heads are judged in all.
    """
    most_often = sum(often[name] * share for name, share in head.shares.items())
    allowed = most_often * math.exp(by_chance(checks, head))
    if others:
        other = _mean(others)
        own, theirs = (
            {name: torch.tensor(share) for name, share in one.shares.items()}
            for one in (head, other)
        )
        by_values = APART * float(most(torch.tensor(other.size), own, theirs, often))
        allowed = min(allowed, by_values * math.exp(by_chance(checks, head, other)))
    return math.sqrt(head.size / max(head.repeated * allowed, 1e-300))


def _mean(heads: Sequence[HeadScatter]) -> HeadScatter:
    """What several heads come to on average, one as much as another."""
    size, count = sum(head.size for head in heads), len(heads)
    weights = [(head.size / size) ** 2 for head in heads]
    scatter, in_common = (
        sum(weight * one for weight, one in zip(weights, of_heads, strict=True))
        for of_heads in ([head.scatter for head in heads], [head.in_common for head in heads])
    )
    shares = {name: sum(head.shares[name] for head in heads) / count for name in heads[0].shares}
    return replace(
        heads[0],
        size=size / count,
        scatter=scatter,
        in_common=in_common,
        rows=sum(h.rows - 1 for h in heads) + 1,
        shares=shares,
    )


def stand_out(
    head: HeadScatter, parts: Parts, squares: Tensor, checks: int, often: Mapping[str, float]
) -> Tensor:
    """Which elements of a head err more than roundings that make its size can.

    An error uniform within half a spacing is strictly sub-Gaussian (E exp(l e) <= exp(l^2 var / 2)), and so is a sum of
    such errors: of n elements one is beyond t deviations at most 2 n exp(-t^2 / 2) of the time.

    Args:
        parts: [R, C] each, of the head's elements.
        squares: [R, C], of their errors.
        checks: how many heads are judged in all.
    """
    shares = {name: torch.tensor(share).to(squares) for name, share in head.shares.items()}
    size = torch.tensor(head.size * math.exp(by_chance(checks, head))).to(squares)
    variance = head.repeated * most(size, parts, shares, often)
    return squares > 2 * math.log(6 * squares.numel() * checks / FALSE_ALARMS) * variance


def by_chance(checks: int, *heads: HeadScatter) -> float:
    """By how much the logarithms of sizes differ by chance: Student's t, of Welch's degrees of freedom, at the rate
    that leaves FALSE_ALARMS for all checks together. A head has three: its size by itself, beside others, and its
    slopes or elements.

    Rows whose squares are a chi-square of four or more degrees keep that rate within a factor of two from three rows
    on, of one degree within a factor of seven (simulated; the logarithm takes most of their skewness away).
    """
    variance = sum(head.scatter + head.in_common for head in heads)
    freedom = variance**2 / max(sum(head.scatter**2 / (head.rows - 1) for head in heads), 1e-300)
    return student(FALSE_ALARMS / (3 * checks), freedom) * math.sqrt(variance)


def student(rate: float, freedom: float) -> float:
    """What Student's t exceeds so often (Wallace, 1959, which is within 2 % from three degrees of freedom on)."""
    z = -NormalDist().inv_cdf(rate) * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(min(z**2 / freedom, 700.0)))


def scatter_of(
    case: Case, x: Attention, precision: Precision, *, by_element: bool = False
) -> dict[str, Scatter]:
    """What scatters each of RESULTS."""
    spread = Spread(x)
    for tile in tiles_of(case, x):
        spread.add(tile, tile_parts(x, tile, evaluate(x, tile), precision, by_element=by_element))
    return spread.of


def heads_by_result(
    case: Case, x: Attention, trace: Trace, comparison: Comparison
) -> dict[str, list[HeadScatter]]:
    """How the heads of each of RESULTS that is there scatter; nothing where that is not known.

    It is where 16 bits are rounded, softmax is taken, and nothing was recovered.
    """
    precision, given = comparison.precision, trace.values
    if (
        case.dtype == "float32"
        or case.family != "softmax"
        or precision.exact
        or comparison.recovery is not None
    ):
        return {}
    found, scatter = {}, scatter_of(case, x, precision)
    for result in (
        name for name in RESULTS if name in given and bool(given[name].isfinite().all())
    ):
        expected = comparison.expected[result]
        squares = (given[result].double() - expected).square().sum(-1)
        stored = rounding(precision, expected).sum(-1, keepdim=True)
        found[result] = list(
            heads_of(x, result, scatter[result], stored, squares, precision.matrix)
        )
    return found
