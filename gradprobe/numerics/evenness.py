"""Evenness: whether a head errs as much as others do, and no more than roundings to 16 bits make it.

The size of a head's errors is the mean over its rows of e^2 / (what all parts of `scatter_of` add if each is rounded
once). If part i is rounded w_i times, that is sum_i w_i share_i on average, so two heads of one kernel differ at most
as a linear programme over w says. Rows err each by itself, so the rest is chance: Welch's t of the logarithms.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor

from ..model.case import Case
from ..model.intermediates import PRODUCTS
from ..model.layout_run import Identity
from ..model.number import Number
from ..reference import Attention
from ..reference.attention import BY_KEY
from ..runtime.run import Trace
from .compare import Comparison
from .declared_precision import U32
from .scatter import Parts, Scatter, rounding, row_sums, scatter_of

NAME = "I11 heads round alike"
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


Heads = Mapping[str, Sequence[HeadScatter]]
"""How the heads of each result scatter."""


def heads_by_result(
    case: Case, x: Attention, trace: Trace, comparison: Comparison
) -> dict[str, list[HeadScatter]]:
    """How the heads of O, dQ, dK and dV scatter; nothing where that is not known.

    It is where 16 bits are rounded, softmax is taken, and nothing was recovered.
    """
    precision, is_read = comparison.precision, comparison.recovery is not None
    if case.dtype == "float32" or case.family != "softmax" or precision.exact or is_read:
        return {}
    found, spread = {}, scatter_of(case, x, precision)
    for result in PRODUCTS:
        came, expected = trace.values.get(result), comparison.expected[result]
        if came is not None and bool(came.isfinite().all()):
            errors = (came.double() - expected).square().sum(-1)
            parts = spread[result].with_stored(row_sums(rounding(precision, expected)))
            found[result] = list(
                _heads_of(x, result, spread[result], parts, errors, precision.matrix)
            )
    return found


def _heads_of(
    x: Attention, result: str, spread: Scatter, parts: Parts, errors: Tensor, unit: float
) -> Iterator[HeadScatter]:
    """Each head of which that is known, by the squares of its rows' errors [B, H, R].

    Entries of P that differ by less than a spacing round alike. Of a spread of s spacings 6 exp(-(2 pi s)^2) / pi^2 of
    the variance is common to a row (Widrow and Kollar, Quantization Noise, 2008): 3e-5 where s is a half, which scores
    make whose deviation is the unit roundoff.
    """
    parts = {name: part[..., 0] for name, part in parts.items()}
    finest = _IN_FLOAT32 * max(*x.q.shape[2:], x.k.shape[2]) * (U32 / unit) ** 2
    # A sum in 16 bits is a hundred times as coarse as the others, and few kernels have one.
    total = torch.stack([part for name, part in parts.items() if name != "sums"]).sum(0)
    for b, h in torch.cartesian_prod(*map(torch.arange, total.shape[:2])).tolist():
        live = total[b, h] > 0
        own, summed, directions, scores = _independence(x, result, b, h, live)
        whole = total[b, h][live]
        of_rows = errors[b, h][live] / whole
        size = float(of_rows.mean())
        if own < 2 or directions < DIRECTIONS or scores < unit or size <= finest:
            continue
        shares = {name: float((part[b, h][live] / whole).mean()) for name, part in parts.items()}
        in_common = 2 * shares["operand"] ** 2 / directions
        # n query rows of one size share n squares: their sum is off by 2 / n of its square. Of other sizes n is the
        # square of their sum over the sum of their squares.
        of_all, of_squares = spread.queries[:, b, h].tolist()
        if of_all:
            share = float((spread.parts["shared"][b, h, :, 0][live] / whole).mean())
            in_common += 2 * share**2 * of_squares / of_all**2
        scatter = float(of_rows.var()) / size**2 / own
        yield HeadScatter((b, h), size, scatter, in_common, own, summed, shares)


def _independence(
    x: Attention, result: str, b: int, h: int, live: Tensor
) -> tuple[float, float, float, float]:
    """How many rows of a head err each by itself (rows that come twice round alike), how often what they sum is
    repeated, the directions that q or k fill, and the deviation of a row's scores."""
    group = x.n_heads // x.k.shape[1]
    key_head, head = (h, h * group) if result in BY_KEY else (h // group, h)
    q, k = x.q[b, head], x.k[b, key_head]
    of_queries, of_keys = torch.cat([q, x.do[b, head]], -1), torch.cat([k, x.v[b, key_head]], -1)
    rows, others = (of_keys, of_queries) if result in BY_KEY else (of_queries, of_keys)
    own = int(live.sum()) / max(_repeated(rows[live]), 1.0)
    of_q, of_k = q.square().sum(-1).mean(), (k - k.mean(0)).square().mean()
    scores = abs(x.scale) * math.sqrt(float(of_q * of_k))
    return own, _repeated(others), min(map(_directions, (q, k))), scores


def _repeated(rows: Tensor) -> float:
    """How often a row comes on average."""
    counts = rows.unique(dim=0, return_counts=True)[1].double()
    return float(counts.square().sum() / counts.sum().clamp(min=1.0))


def _directions(rows: Tensor) -> float:
    """How many directions rows [r, D] fill: n equal eigenvalues of their Gram matrix make n."""
    gram = rows.mT @ rows
    return float(gram.trace() ** 2 / gram.square().sum().clamp(min=1e-300))


def _most(
    size: Tensor,
    gains: Mapping[str, Tensor],
    held: Mapping[str, float],
    often: Mapping[str, float],
) -> Tensor:
    """The largest sum_i w_i gains_i, where sum_i w_i held_i is at most `size`, and w_i at most `often`.

    A fractional knapsack: what gives most for its share of `held` goes in first (Dantzig, 1957).
    """
    names = [name for name in often if name in gains]
    gain = torch.stack([gains[name] / max(held[name], 1e-12) for name in names])
    room = gain.new_tensor([often[name] * held[name] for name in names])
    room = room.reshape(-1, *[1] * (gain.dim() - 1)).expand_as(gain)
    order = gain.argsort(0, descending=True)
    gain, room = gain.gather(0, order), room.gather(0, order)
    used = (size - (room.cumsum(0) - room)).clamp(min=0.0).minimum(room)
    return (gain * used).sum(0)


def _excess(heads: Heads, often: Mapping[str, float]) -> Iterator[tuple[float, str]]:
    """By which factor each head errs more than roundings, each as often as it may be, and than others of its result;
    and that in words."""
    checks = sum(map(len, heads.values()))
    for result, of_result in heads.items():
        for head in of_result:
            most_often = sum(often[name] * share for name, share in head.shares.items())
            allowed, beside = (
                most_often * math.exp(_by_chance(checks, head)),
                "roundings make it",
            )
            if others := [one for one in of_result if one is not head]:
                other, beside = _mean(others), "in the other heads"
                own = {name: torch.tensor(share) for name, share in head.shares.items()}
                most = _most(torch.tensor(other.size), own, other.shares, often)
                by_values = APART * float(most) * math.exp(_by_chance(checks, head, other))
                allowed = min(allowed, by_values)
            beyond = times = math.sqrt(head.size / max(head.repeated * allowed, 1e-300))
            if others:
                times = math.sqrt(head.size / other.size)
            place = f"batch {head.place[0]}, head {head.place[1]}"
            yield beyond, f"{result} of {place} errs {times:.1f} times as much as {beside}"


def evenness(heads: Heads) -> list[Identity]:
    """I11: the head that errs most beyond others, and by how much; empty where no head's errors are known."""
    if not any(heads.values()):
        return []
    most, where = max(_excess(heads, OFTEN))
    name = NAME if most <= 1.0 else f"{NAME}: {where}"
    return [Identity(name=name, holds=most <= 1.0, residual=Number(most), budget=Number(1.0))]


def _mean(heads: Sequence[HeadScatter]) -> HeadScatter:
    """What several heads come to on average, one as much as another."""
    size, count = sum(head.size for head in heads), len(heads)
    shares = {name: sum(head.shares[name] for head in heads) / count for name in heads[0].shares}
    return replace(
        heads[0],
        size=size / count,
        scatter=sum((head.size / size) ** 2 * head.scatter for head in heads),
        in_common=sum((head.size / size) ** 2 * head.in_common for head in heads),
        rows=sum(head.rows - 1 for head in heads) + 1,
        shares=shares,
    )


def _by_chance(checks: int, *heads: HeadScatter) -> float:
    """By how much the logarithms of sizes differ by chance: Student's t, of Welch's degrees of freedom, at the rate
    that leaves FALSE_ALARMS for all checks. A head has three: its size by itself, beside others, and its elements.

    Rows whose squares are a chi-square of four or more degrees keep that rate within a factor of two from three rows
    on, of one degree within a factor of seven (simulated; the logarithm takes most of their skewness away).
    """
    variance = sum(head.scatter + head.in_common for head in heads)
    freedom = variance**2 / max(sum(head.scatter**2 / (head.rows - 1) for head in heads), 1e-300)
    # Wallace (1959), within 2 % from three degrees of freedom on.
    z = (
        -NormalDist().inv_cdf(FALSE_ALARMS / (3 * checks))
        * (8 * freedom + 3)
        / (8 * freedom + 1)
    )
    by_chance = math.sqrt(freedom * math.expm1(min(z**2 / freedom, 700.0)) * variance)
    return min(by_chance, 300.0)  # of so few rows anything may be; exp holds that


def are_alike(heads: Heads, often: Mapping[str, float]) -> bool:
    """Whether the errors of each result are as large as so many roundings are, alike in all heads."""
    return all(most <= 1 for most, _ in _excess(heads, often))


def any_stands_out(
    trace: Trace,
    plain: Comparison,
    heads: Heads,
    spread: Mapping[str, Scatter],
    often: Mapping[str, float],
) -> bool:
    """Whether an element of a head errs more than roundings that make the head's errors can.

    An error uniform within half a spacing is strictly sub-Gaussian (E exp(l e) <= exp(l^2 var / 2)), and so is a sum of
    such errors: of n elements one is beyond t deviations at most 2 n exp(-t^2 / 2) of the time.
    """
    checks = sum(map(len, heads.values()))
    for result, of_result in heads.items():
        expected = plain.expected[result]
        parts = spread[result].with_stored(rounding(plain.precision, expected))
        squares = (trace.values[result].double() - expected).square()
        for head in of_result:
            of_head = squares[head.place]
            own = {name: of[head.place] for name, of in parts.items()}
            size = of_head.new_tensor(head.size * math.exp(_by_chance(checks, head)))
            variance = head.repeated * _most(size, own, head.shares, often)
            far = 2 * math.log(6 * of_head.numel() * checks / FALSE_ALARMS)
            if bool((of_head > far * variance).any()):
                return True
    return False
