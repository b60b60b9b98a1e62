"""I11: whether all heads of each result err alike, and a head alone no more than the roundings that its errors show.

What each rounding of just these values moves a result by is known: an emulation of it, one rounding at a time. The
errors of a head, regressed on all of these, have a slope of 1 for what its kernel rounds, and less where something else
was rounded before (of two roundings of numbers d spacings apart the errors correlate by 1 - 6 d (1 - d), at most 1),
and 0 for what it does not round. A slope of 2 is twice an error: no order of roundings has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..model.layout_run import Identity
from ..model.number import Number
from ..reference import Attention, Tile, evaluate
from ..reference.attention import BY_KEY
from ..runtime.run import Trace
from .compare import Comparison
from .declared_precision import Precision, nearest
from .evenness import FALSE_ALARMS, HeadScatter, excess, student

NAME = "I11 heads round alike"
# Halfway between an error once and twice.
BETWEEN = 1.5


def evenness(
    x: Attention, trace: Trace, comparison: Comparison, heads: Mapping[str, Sequence[HeadScatter]]
) -> list[Identity]:
    """The head that errs most beyond that, and by how much; empty where no head's errors are known."""
    checks, found = sum(map(len, heads.values())), list[tuple[float, str]]()
    for result, of_result in heads.items():
        for head in of_result:
            others = [one for one in of_result if one is not head]
            most, beside = excess(head, others, checks), "as roundings make it"
            if others:
                times = math.sqrt(head.size * len(others) / sum(one.size for one in others))
                beside = "as in the other heads"
            else:
                slope, steepest = _slope(x, trace, comparison, result, head, checks)
                times = most if slope < most else steepest
                most = max(slope, most)
            place = f"batch {head.place[0]}, head {head.place[1]}"
            found.append((most, f"{result} of {place} errs {times:.1f} times as much {beside}"))
    if not found:
        return []
    most, where = max(found)
    name = NAME if most <= 1.0 else f"{NAME}: {where}"
    return [Identity(name=name, holds=most <= 1.0, residual=Number(most), budget=Number(1.0))]


def _slope(
    x: Attention,
    trace: Trace,
    comparison: Comparison,
    result: str,
    head: HeadScatter,
    checks: int,
) -> tuple[float, float]:
    """Of the steepest slope: the least of it less chance, and of it over BETWEEN; and the slope.

    Where the first is beyond 1 the head errs more than its roundings. Of twice the errors it is where the slope of one
    rounding is known to be a half at least.
    """
    expected, precision = comparison.expected[result][head.place], comparison.precision
    errors = trace.values[result][head.place].double() - expected
    moved = [*_effects(x, result, head.place, precision), nearest(precision, expected) - expected]
    moved = [effect for effect in moved if bool(effect.any())]
    if not moved:
        return 0.0, 0.0
    columns = torch.stack(moved, -1)
    # Each row counts alike, by what all effects make of it.
    of_row = columns.square().sum((1, 2), keepdim=True).sqrt().clamp(min=1e-300)
    columns, errors = columns / of_row, errors / of_row[..., 0]
    sizes = columns.square().sum((0, 1)).sqrt()
    columns = columns / sizes
    flat = columns.flatten(0, 1)
    inverse = torch.linalg.pinv(flat.mT @ flat, hermitian=True)
    slopes = inverse @ (flat.mT @ errors.flatten())
    # Errors of a row have its roundings in common, so the row is what errs by itself (Liang and Zeger, 1986); as many
    # rows count as the effect is spread over (Carter, Schnepel and Steigerwald, 2017).
    rest, weights = errors - columns @ slopes, columns @ inverse
    deviations = (weights * rest[..., None]).sum(1).square().sum(0).sqrt() / sizes
    of_rows = weights.square().sum(1)
    rows = (of_rows.sum(0) ** 2 / of_rows.square().sum(0)).clamp(max=head.rows)
    rate, found = FALSE_ALARMS / (3 * checks * len(moved)), list[tuple[float, float]]()
    of_each = ((slopes / sizes).tolist(), deviations.tolist(), rows.tolist())
    for slope, deviation, count in zip(*of_each, strict=True):
        chance = student(rate, count - 1) * deviation if count >= 2 else math.inf
        found.append((min(slope - chance, slope / BETWEEN), slope))
    return max(found)


def _effects(
    x: Attention, result: str, place: tuple[int, int], precision: Precision
) -> list[Tensor]:
    """[R, C] of what each rounding by itself moves one head of a result by, to first order in a score's error."""
    (batch, head), group = place, x.n_heads // x.k.shape[1]
    heads = slice(head * group, (head + 1) * group) if result in BY_KEY else slice(head, head + 1)
    tile = Tile(batch, heads, slice(0, x.n_query))
    values, (q, k, v, do) = evaluate(x, tile), x.tensors(tile)
    other = {"O": v, "dV": do, "dQ": x.scale * k, "dK": x.scale * q}[result]

    def err(of: Tensor) -> Tensor:
        return nearest(precision, of) - of

    shares = _of_scores(x, values, q, k, err)
    is_of_p = result in ("O", "dV")
    matrices = _of_p(values, shares, err) if is_of_p else _of_ds(x, values, shares, err)
    moved = [((one.mT if result in BY_KEY else one) @ other).sum(0) for one in matrices]
    return moved + ([err(values[result]).sum(0)] if len(q) > 1 else [])  # each query head's part


Rounded = Callable[[Tensor], Tensor]
"""By what rounding moves values."""


def _of_scores(
    x: Attention, values: Mapping[str, Tensor], q: Tensor, k: Tensor, err: Rounded
) -> list[Tensor]:
    """By what share each P moves, the row's sum with it: of S, scaled operands, S less its maximum, and q k."""
    score = values["S"].masked_fill(~values["valid"], 0.0)
    shifted = (score - values["S"].amax(-1, keepdim=True)).masked_fill(~values["valid"], 0.0)
    moved = [err(score), err(x.scale * q) @ k.mT, q @ err(x.scale * k).mT, err(shifted)]
    moved += [] if _is_power_of_two(x.scale) else [x.scale * err(score / x.scale)]
    return [one - (values["P"] * one).sum(-1, keepdim=True) for one in moved]


def _of_p(values: Mapping[str, Tensor], shares: Sequence[Tensor], err: Rounded) -> list[Tensor]:
    pe = values["PE"]
    largest = pe.amax(-1, keepdim=True)
    undivided = (largest * err(pe / largest)).nan_to_num(0.0)
    return [err(pe), undivided, *(pe * share for share in shares)]


def _of_ds(
    x: Attention, values: Mapping[str, Tensor], shares: Sequence[Tensor], err: Rounded
) -> list[Tensor]:
    p, dp, ds, delta = values["P"], values["dP"], values["dS"], values["delta"][..., None]
    moved = [err(ds), err(p) * (dp - delta), p * err(dp), p * err(dp - delta), -p * err(delta)]
    moved += [] if _is_power_of_two(x.scale) else [err(x.scale * ds) / x.scale]
    for share in shares:
        moved.append(ds * share - p * (p * share * dp).sum(-1, keepdim=True))
    return moved


def _is_power_of_two(scale: float) -> bool:
    return abs(math.frexp(scale)[0]) == 0.5
