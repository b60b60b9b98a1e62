"""Slopes: whether a head errs more than the roundings that its own errors show, so that no other head is needed.

What each rounding of just these values moves a result by is known: an emulation of it, one rounding at a time. The
errors of a head, regressed on all of these, have a slope of 1 for what its kernel rounds, and less where something else
was rounded before (of two roundings of numbers d spacings apart the errors correlate by 1 - 6 d (1 - d), at most 1),
and 0 for what it does not round. A slope of 2 is twice an error: no order of roundings has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from ..reference import Attention, Tile, evaluate
from ..reference.attention import BY_KEY
from .declared_precision import Precision, nearest
from .evenness import FALSE_ALARMS, HeadScatter, student

# Halfway between an error once and twice.
BETWEEN = 1.5
EFFECTS = {
    "S": "S", "shifted": "S less its maximum", "product": "q k", "q": "scale * q", "k": "scale * k", "P": "P",
    "PE": "P", "late": "P", "dP": "dP", "spread": "dP - delta", "delta": "delta", "dS": "dS", "scaled": "scale * dS",
    "part": "each query head's part", "stored": "the result",
}  # fmt: skip
"""What is said of each effect."""


def steepest(
    x: Attention, result: str, head: HeadScatter, errors: Tensor, expected: Tensor, precision: Precision, checks: int
) -> tuple[float, float, str]:
    """Of the steepest slope: the least of it less chance, and of it over BETWEEN; the slope; and what is rounded.

    Where that is beyond 1 the head errs more than its roundings. Of twice the errors it is where the slope of one
    rounding is known to be a half at least.

    Args:
        errors: [R, C] of the head.
        expected: [R, C] likewise.
        checks: how many heads are judged in all.
    """
    moved = {**effects(x, result, head.place, precision), "stored": nearest(precision, expected) - expected}
    names = [name for name, effect in moved.items() if bool(effect.any())]
    if not names:
        return 0.0, 0.0, ""
    columns = torch.stack([moved[name] for name in names], -1)
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
    deviations = (weights * rest[..., None]).sum(1).square().sum(0).sqrt()
    of_rows = weights.square().sum(1)
    rows = (of_rows.sum(0) ** 2 / of_rows.square().sum(0)).clamp(max=head.rows)
    found = []
    for at, name in enumerate(names):
        slope, deviation = float(slopes[at] / sizes[at]), float(deviations[at] / sizes[at])
        freedom = float(rows[at]) - 1
        chance = student(FALSE_ALARMS / (3 * checks * len(names)), freedom) * deviation if freedom >= 1 else math.inf
        found.append((min(slope - chance, slope / BETWEEN), slope, EFFECTS[name]))
    return max(found)


def effects(x: Attention, result: str, place: tuple[int, int], precision: Precision) -> dict[str, Tensor]:
    """[R, C] of what each rounding by itself moves one head of a result by, to first order in a score's error."""
    (batch, head), group = place, x.n_heads // x.k.shape[1]
    heads = slice(head * group, (head + 1) * group) if result in BY_KEY else slice(head, head + 1)
    tile = Tile(batch, heads, slice(0, x.n_query))
    values, (q, k, v, do) = evaluate(x, tile), x.tensors(tile)
    matrices, err = (_of_p if result in ("O", "dV") else _of_ds), _errors(precision)
    turned = {"O": lambda matrix: matrix @ v, "dV": lambda matrix: matrix.mT @ do}
    turned |= {"dQ": lambda matrix: x.scale * matrix @ k, "dK": lambda matrix: x.scale * matrix.mT @ q}
    moved = {name: turned[result](matrix).sum(0) for name, matrix in matrices(x, values, q, k, err)}
    return moved | ({"part": err(values[result]).sum(0)} if len(q) > 1 else {})


Matrices = Iterator[tuple[str, Tensor]]


def _of_scores(x: Attention, values: Mapping[str, Tensor], q: Tensor, k: Tensor, err: Err) -> Matrices:
    """By what share each P moves, the row's sum with it: of S, the product before the scale, and scaled operands."""

    def share(moved: Tensor) -> Tensor:
        return moved - (values["P"] * moved).sum(-1, keepdim=True)

    score = values["S"].masked_fill(~values["valid"], 0.0)
    yield "S", share(err(score))
    yield "q", share(err(x.scale * q) @ k.mT)
    yield "k", share(q @ err(x.scale * k).mT)
    yield "shifted", share(err(score - values["S"].amax(-1, keepdim=True)).masked_fill(~values["valid"], 0.0))
    if not _is_power_of_two(x.scale):
        yield "product", share(x.scale * err(score / x.scale))


def _of_p(x: Attention, values: Mapping[str, Tensor], q: Tensor, k: Tensor, err: Err) -> Matrices:
    pe = values["PE"]
    largest = pe.amax(-1, keepdim=True)
    yield "PE", err(pe)
    yield "late", (largest * err(pe / largest)).nan_to_num(0.0)
    for name, share in _of_scores(x, values, q, k, err):
        yield name, pe * share


def _of_ds(x: Attention, values: Mapping[str, Tensor], q: Tensor, k: Tensor, err: Err) -> Matrices:
    p, dp, ds, delta = values["P"], values["dP"], values["dS"], values["delta"][..., None]
    yield "dS", err(ds)
    yield "P", err(p) * (dp - delta)
    yield "dP", p * err(dp)
    yield "spread", p * err(dp - delta)
    yield "delta", -p * err(delta)
    if not _is_power_of_two(x.scale):
        yield "scaled", err(x.scale * ds) / x.scale
    for name, share in _of_scores(x, values, q, k, err):
        yield name, ds * share - p * (p * share * dp).sum(-1, keepdim=True)


Err = Callable[[Tensor], Tensor]


def _errors(precision: Precision) -> Err:
    return lambda values: nearest(precision, values) - values


def _is_power_of_two(scale: float) -> bool:
    return abs(math.frexp(scale)[0]) == 0.5
