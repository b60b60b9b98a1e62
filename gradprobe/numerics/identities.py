"""Identities of attention backwards that need no reference, and so judge the reference as readily as the target.

I1 sum_j dV = sum of dO over rows and group heads (softmax; not under dropout or sinks)
I2 sum_j dK = 0 (not under softcap or sinks)                      I3 <Q, dQ> = <K, dK>
I4 <V, dV> = <O, dO>                                              I5 rowsum dS = 0 (not under softcap or sinks)
I6 masked entries of P and dS are exactly 0                       I7 rowsum P = 1 on live rows (not under sinks)
I8 linear in dO                   I9 heads and batches permute    I10 another layout of the same values changes nothing

Each is allowed what the budgets of its elements add up to: where every element is within budget, every identity holds.
I1 to I7 are read off one run; I8 to I10 compare two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.case import Case
from ..reference import Attention, tiles
from ..runtime.trace import Trace
from .compare import Comparison, may_overflow
from .precision import Precision, output_rounding

# A reference must be at least four bits better than the kernel that it judges.
REFERENCE_SHARE = 1 / 16
# Of an IEEE float32 kernel only float64 is, by 29 bits. Halfway, so that a float32 reference, whose independent errors
# average out in long sums, stands clearly beyond and a float64 one clearly within.
REFERENCE_SHARE_OF_FLOAT32 = 2.0**-14

# Of the intermediates, those that dO enters linearly; LSE, P and O do not see it.
LINEAR_IN_DO = ("dP", "delta", "dS", "dQ", "dK", "dV", "dBias", "dSink", "dTau")

NAMES = {
    "I1": "sum_j dV = sum of dO",
    "I2": "sum_j dK = 0",
    "I3": "<Q, dQ> = <K, dK>",
    "I4": "<V, dV> = <O, dO>",
    "I5": "rowsum dS = 0",
    "I6": "masked P and dS are 0",
    "I7": "rowsum P = 1",
    "I8": "linear in dO",
    "I9": "heads and batches permute",
    "I10": "same values, other layout",
    "repeat": "same call, same results",
}


@dataclass(frozen=True)
class Invariant:
    """One identity, tried."""

    key: str
    """I1 to I10, or "repeat"."""
    of: str
    """"target" or "reference"."""
    residual: float
    budget: float

    @property
    def name(self) -> str:
        return f"{self.key} {NAMES[self.key]}"

    @property
    def holds(self) -> bool:
        return self.residual <= self.budget


@dataclass(frozen=True)
class _Side:
    """One trace with the errors allowed to it; what it lacks is absent."""

    of: str
    values: Mapping[str, Tensor]
    bounds: Mapping[str, Tensor]
    row_sums: Mapping[str, tuple[Tensor, Tensor]]
    leaks: Mapping[str, int]


def identities(case: Case, x: Attention, trace: Trace, comparison: Comparison) -> list[Invariant]:
    """I1 to I7 on the target's results, then on the reference's; those whose intermediates are there."""
    sides = (_target_side(trace, comparison), _reference_side(comparison))
    return [worst(key, side.of, *sizes) for side in sides for key, *sizes in _residuals(case, x, side)]


def _target_side(trace: Trace, comparison: Comparison) -> _Side:
    """The target's values; where an infinity is right, the reference's value in its place."""
    bounds = allowed(comparison, {name: tensor.dtype for name, tensor in trace.values.items()})
    values = {name: trace.values[name].double() for name in bounds}
    for name in bounds:
        if not comparison.findings[name].mismatched:
            values[name] = comparison.expected[name].where(values[name].isinf(), values[name])
    sums = {name: (actual, budget) for name, (actual, _, budget) in comparison.row_sums.items()}
    return _Side("target", values, bounds, sums, comparison.leaks)


def _reference_side(comparison: Comparison) -> _Side:
    by = share_of_reference(comparison.precision)
    share = {name: bound * by for name, bound in comparison.bounds.items()}
    sums = {name: (expected, budget * by) for name, (_, expected, budget) in comparison.row_sums.items()}
    return _Side("reference", comparison.expected, share, sums, dict.fromkeys(comparison.leaks, 0))


def share_of_reference(precision: Precision) -> float:
    """The share of a kernel's budget that its reference may use up."""
    return REFERENCE_SHARE if precision.matrix else REFERENCE_SHARE_OF_FLOAT32


def allowed(comparison: Comparison, dtypes: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """The whole allowance of each linear intermediate, the rounding of its own dtype included."""
    return {
        name: bound + output_rounding(comparison.expected[name], bound, dtypes[name])
        for name, bound in comparison.bounds.items()
        if name in dtypes
    }


def worst(key: str, of: str, residual: Tensor, budget: Tensor) -> Invariant:
    """The entry of an identity with the largest ratio of residual to budget."""
    # An allowance that is not known, as 0 times one without bound, allows all.
    residual, budget = residual.abs().flatten(), budget.flatten().nan_to_num(float("inf"), float("inf"))
    ratio = (residual / budget).nan_to_num(float("inf")).masked_fill(residual == 0, 0.0)
    at = int(ratio.argmax())
    return Invariant(key, of, float(residual[at].nan_to_num(float("inf"))), float(budget[at]))


def _residuals(case: Case, x: Attention, side: _Side) -> Iterator[tuple[str, Tensor, Tensor]]:
    values, bounds = side.values, side.bounds
    # A sink takes its share of every row, from P and, with it, of what dS sums to; dropout takes from what P weighs.
    sinks = x.sinks is not None
    unbalanced = sinks or case.softcap is not None
    if "dV" in values and case.family == "softmax" and not (sinks or x.keep is not None):
        arriving = (x.do * _live(x)[..., None]).unflatten(1, (case.kv_heads, -1)).sum((2, 3))
        yield "I1", values["dV"].sum(2) - arriving, bounds["dV"].sum(2)
    if "dK" in values and not unbalanced:
        yield "I2", values["dK"].sum(2), bounds["dK"].sum(2)
    if {"dQ", "dK"} <= values.keys():
        yield "I3", *_inner_products(case, (x.q, values["dQ"], bounds["dQ"]), (x.k, values["dK"], bounds["dK"]))
    if {"dV", "O"} <= values.keys():
        yield "I4", *_inner_products(case, (x.do, values["O"], bounds["O"]), (x.v, values["dV"], bounds["dV"]))
    if "dS" in side.row_sums and not unbalanced:
        yield "I5", *side.row_sums["dS"]
    if side.leaks:
        leaks = x.q.new_tensor([float(sum(side.leaks.values()))])
        yield "I6", leaks, leaks * 0
    if "P" in side.row_sums and not sinks:
        sums, budget = side.row_sums["P"]
        yield "I7", sums - _live(x).double(), budget


def _inner_products(
    case: Case, queries: tuple[Tensor, Tensor, Tensor], keys: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Per batch and key/value head: the two inner products' difference, and what the budgets allow of it."""
    x, dx, bound = queries
    of_queries = [part.sum((2, 3)).unflatten(1, (case.kv_heads, -1)).sum(2) for part in (x * dx, x.abs() * bound)]
    y, dy, bound = keys
    of_keys = [part.sum((2, 3)) for part in (y * dy, y.abs() * bound)]
    return of_queries[0] - of_keys[0], of_queries[1] + of_keys[1]


def _live(x: Attention) -> Tensor:
    """[B, H, M] bool: the rows that see a key."""
    return torch.stack([x.valid(tile).any(-1).expand(x.n_heads, -1) for tile in tiles(x)])


def doubled(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values with twice the dO: exact in every dtype, short of overflow."""
    return {**values, "do": values["do"] * 2}


def permuted(values: Mapping[str, Tensor], case: Case) -> dict[str, Tensor]:
    """The values with batches and key/value heads in reverse order, query heads following their group."""
    return {name: reversed_in(value, case.input_axes(name), case) for name, value in values.items()}


def reversed_in(tensor: Tensor, axes: str, case: Case) -> Tensor:
    """A tensor of these axes with batches and key/value heads in reverse order, query heads following their group."""
    for axis, letter in enumerate(axes):
        if tensor.shape[axis] == 1:  # broadcast
            continue
        if letter == "h":
            group = case.heads // case.kv_heads
            tensor = tensor.unflatten(axis, (-1, group)).flip(axis).flatten(axis, axis + 1)
        elif letter in "bg":
            tensor = tensor.flip(axis)
    return tensor.contiguous()


def agreement(
    key: str,
    case: Case,
    first: Trace,
    second: Trace,
    comparison: Comparison,
    *,
    factor: float = 1.0,
    reverse: bool = False,
) -> Invariant:
    """Whether a second run gives what the first implies, in all intermediates of linear size.

    Args:
        comparison: of the first run; twice what it allows (one budget a run) is allowed of the difference.
        factor: what the second run's dO was multiplied by.
        reverse: whether its heads and batches stood in reverse.
    """
    bounds = allowed(comparison, {name: tensor.dtype for name, tensor in first.values.items()})
    residuals, budgets = [], []
    for name in (name for name in bounds if name in second.values):
        by = factor if name in LINEAR_IN_DO else 1.0
        before, after, bound = first.values[name].double() * by, second.values[name].double(), 2 * by * bounds[name]
        if reverse:
            axes = comparison.findings[name].axes
            before, bound = reversed_in(before, axes, case), reversed_in(bound, axes, case)
        dtype = second.values[name].dtype
        beyond = may_overflow(after, before, bound, dtype) | may_overflow(before, after, bound, dtype)
        difference = (after - before).masked_fill((after == before) | beyond, 0.0)
        residuals.append(difference.flatten())
        budgets.append(bound.flatten())
    return worst(key, "target", torch.cat(residuals), torch.cat(budgets))
