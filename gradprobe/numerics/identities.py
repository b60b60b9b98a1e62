"""Identities of attention backwards that need no reference, and so judge the reference as readily as the target.

I1 sum_j dV = sum of dO over rows and group heads (softmax; not under dropout or sinks)
I2 sum_j dK = 0 (not under softcap or sinks)                      I3 <Q, dQ> = <K, dK>
I4 <V, dV> = <O, dO>                                              I5 rowsum dS = 0 (not under softcap or sinks)
I6 masked entries of P and dS are exactly 0                       I7 rowsum P = 1 on live rows (not under sinks)
I10 another layout of the same values changes nothing             I11 heads round alike

Each but I11 is allowed what the budgets of its elements add up to: where every element is within budget, it holds.
I1 to I7 and I11 are read off one run; I10 compares two. I11 is of 16 bits alone, and stands in `evenness`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..model.case import Case
from ..model.intermediates import GRADIENT_OF
from ..model.mechanisms import door
from ..reference import Attention, tiles
from ..reference.attention import BY_KEY, BY_ROW
from ..runtime.trace import Trace
from .block import Block, blocks, key_heads_at_once, parts_of
from .compare import Comparison, SieveResult, may_overflow
from .declared_precision import Precision, output_rounding

# A reference must be at least four bits better than the kernel that it judges.
REFERENCE_SHARE = 1 / 16
# Of an IEEE float32 kernel only float64 is, by 29 bits. Halfway, so that a float32 reference, whose independent errors
# average out in long sums, stands clearly beyond and a float64 one clearly within.
REFERENCE_SHARE_OF_FLOAT32 = 2.0**-14

NAMES = {
    "I1": "sum_j dV = sum of dO",
    "I2": "sum_j dK = 0",
    "I3": "<Q, dQ> = <K, dK>",
    "I4": "<V, dV> = <O, dO>",
    "I5": "rowsum dS = 0",
    "I6": "masked P and dS are 0",
    "I7": "rowsum P = 1",
    "I10": "same values, other layout",
    "I11": "heads round alike",
    "repeat": "same call, same results",
}


@dataclass(frozen=True)
class Invariant:
    """One identity, tried."""

    key: str
    """I1 to I11, or "repeat"."""
    of: str
    """"target" or "reference"."""
    residual: float
    budget: float
    where: str = ""
    """Of which result and head it says most, and what."""

    @property
    def name(self) -> str:
        name = f"{self.key} {NAMES[self.key]}"
        return name if self.holds or not self.where else f"{name}: {self.where}"

    @property
    def holds(self) -> bool:
        return self.residual <= self.budget


# The input that each of these meets in an inner product.
PARTNERS = {GRADIENT_OF[name]: name for name in "qkv"} | {"O": "do"}
Allowed = tuple[Tensor, Tensor]
"""A sum, and what the budgets of its terms add up to."""


@dataclass
class Sums:
    """What the identities of one run, or of a block of it, are made of; what a trace lacks is absent."""

    of: str
    """"target" or "reference"."""
    inner: dict[str, Allowed] = field(default_factory=dict)
    """[B, H] or [B, Hkv]: the inner product of dQ, dK, dV or O with its partner."""
    over_keys: dict[str, Allowed] = field(default_factory=dict)
    """[B, Hkv, D]: dK and dV summed over keys."""
    over_row: dict[str, Allowed] = field(default_factory=dict)
    """[B, H, M]: P and dS summed over a row."""
    leaks: int | None = None
    """How many masked entries of P and dS are not 0; None without P and dS."""

    def add(self, name: str, partner: Tensor, value: Tensor, bound: Tensor) -> None:
        """Adds some rows [B, h, r, D] of dQ, dK, dV or O, beside the same rows of its partner."""
        found = ((partner * value).sum((2, 3)), (partner.abs() * bound).sum((2, 3)))
        self.inner[name] = _added(self.inner.get(name), found)
        if name in BY_KEY:
            self.over_keys[name] = _added(self.over_keys.get(name), (value.sum(2), bound.sum(2)))


def _added(known: Allowed | None, more: Allowed) -> Allowed:
    return more if known is None else (known[0] + more[0], known[1] + more[1])


@door("identities", lambda *args: [])
def identities(case: Case, x: Attention, trace: Trace, comparison: Comparison) -> list[Invariant]:
    """I1 to I7 on the target's results, then on the reference's; those whose intermediates are there."""
    live = torch.stack([x.valid(tile).any(-1).expand(x.n_heads, -1) for tile in tiles(x)])
    sides = both_sums(x, trace, comparison)
    arriving = (x.do * live[..., None]).sum(2)
    return [worst(key, side.of, *sizes) for side in sides for key, *sizes in residuals(case, side, arriving, live)]


def both_sums(x: Attention, trace: Trace, comparison: Comparison) -> tuple[Sums, Sums]:
    """Of the target and of the reference."""
    return _target_sums(x, trace, comparison), _reference_sums(x, comparison)


def _target_sums(x: Attention, trace: Trace, comparison: Comparison) -> Sums:
    """The target's values; where an infinity is right, the reference's value in its place."""
    bounds = allowed(comparison, {name: tensor.dtype for name, tensor in trace.values.items()})
    rows = {name: (actual, budget) for name, (actual, _, budget) in comparison.row_sums.items()}
    sums = Sums("target", over_row=rows, leaks=sum(comparison.leaks.values()) if comparison.leaks else None)
    for name in PARTNERS.keys() & bounds.keys():
        value = trace.values[name].double()
        if not comparison.findings[name].mismatched:
            value = comparison.expected[name].where(value.isinf(), value)
        sums.add(name, getattr(x, PARTNERS[name]), value, bounds[name])
    return sums


def _reference_sums(x: Attention, comparison: Comparison) -> Sums:
    share = share_of_reference(comparison.precision)
    rows = {name: (expected, budget * share) for name, (_, expected, budget) in comparison.row_sums.items()}
    sums = Sums("reference", over_row=rows, leaks=0 if comparison.leaks else None)
    for name in PARTNERS.keys() & comparison.bounds.keys():
        sums.add(name, getattr(x, PARTNERS[name]), comparison.expected[name], comparison.bounds[name] * share)
    return sums


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


def worst(key: str, subject: str, residual: Tensor, budget: Tensor) -> Invariant:
    """The entry of an identity with the largest ratio of residual to budget."""
    residual, budget = residual.abs().flatten(), _finite_or_unbounded(budget.flatten())
    at = int(_ratios(residual, budget).argmax())
    return Invariant(key, subject, float(residual[at].nan_to_num(float("inf"))), float(budget[at]))


def _finite_or_unbounded(budget: Tensor) -> Tensor:
    """An allowance that is not known, as 0 times one without bound, allows all."""
    return budget.nan_to_num(float("inf"), float("inf"))


def _ratios(residual: Tensor, budget: Tensor) -> Tensor:
    ratio = (residual.abs() / _finite_or_unbounded(budget)).nan_to_num(float("inf")).masked_fill(residual == 0, 0.0)
    return ratio.flatten()


def residuals(case: Case, sums: Sums, arriving: Tensor, live: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """I1 to I7: what each should be 0, and what is allowed of it.

    Args:
        arriving: [B, H, Dv], dO summed over the live rows.
        live: [B, H, M] bool, the rows that see a key.
    """
    # A sink takes its share of every row, from P and, with it, of what dS sums to; dropout takes from what P weighs.
    unbalanced = case.sinks or case.softcap is not None
    if "dV" in sums.over_keys and case.family == "softmax" and not (case.sinks or case.dropout):
        total, budget = sums.over_keys["dV"]
        yield "I1", total - _of_groups(case, arriving), budget
    if "dK" in sums.over_keys and not unbalanced:
        yield "I2", *sums.over_keys["dK"]
    for key, of_queries, of_keys in (("I3", "dQ", "dK"), ("I4", "O", "dV")):
        if {of_queries, of_keys} <= sums.inner.keys():
            queries, keys = sums.inner[of_queries], sums.inner[of_keys]
            yield key, _of_groups(case, queries[0]) - keys[0], _of_groups(case, queries[1]) + keys[1]
    if "dS" in sums.over_row and not unbalanced:
        yield "I5", *sums.over_row["dS"]
    if sums.leaks is not None:
        leaks = arriving.new_tensor([float(sums.leaks)])
        yield "I6", leaks, leaks * 0
    if "P" in sums.over_row and not case.sinks:
        total, budget = sums.over_row["P"]
        yield "I7", total - live.double(), budget


def _of_groups(case: Case, of_heads: Tensor) -> Tensor:
    """[B, H, ...] summed over the query heads of each key head."""
    batch, _, *others = of_heads.shape
    return of_heads.reshape(batch, case.kv_heads, -1, *others).sum(2)


def agreement(
    key: str,
    case: Case,
    first: Trace,
    second: Trace,
    comparison: Comparison,
) -> Invariant:
    """Whether a second run of the same values gives the same, in all intermediates of linear size.

    Args:
        comparison: of the first run; twice what it allows (one budget a run) is allowed of the difference.
    """
    sieve = comparison.by_sieve
    dtypes = {name: tensor.dtype for name, tensor in first.values.items()}
    every, runs = list(blocks(case, key_heads_at_once(case))), _TwoRuns(case, first, second)
    bounds = sieve.bounds if sieve is not None else allowed(comparison, dtypes)
    found = [runs.furthest_off(block, bounds) for block in every]
    if sieve is not None:
        off = torch.stack([residual.abs() > budget for residual, budget in found])
        totals = [name not in (*BY_ROW, *BY_KEY) for name in bounds if name in second.values]
        if bool(off[:, totals].any()):  # what all blocks add to is known by the whole budget of all of them alone
            bounds = allowed(comparison, dtypes)
            found = [runs.furthest_off(block, bounds) for block in every]
        else:
            for at in off.any(1).nonzero()[:, 0].tolist():
                found[at] = runs.furthest_of(every[at], sieve, dtypes)
    return worst(key, "target", *(torch.cat(parts) for parts in zip(*found, strict=True)))


# By how much the bounds that are kept may lie below those of the whole budget, where they came of it.
_KEPT_OFF = 1 + 2.0**-6


@dataclass(frozen=True)
class _TwoRuns:
    """Two runs of the same values."""

    case: Case
    first: Trace
    second: Trace

    def furthest_of(self, block: Block, sieve: SieveResult, dtypes: Mapping[str, torch.dtype]) -> tuple[Tensor, Tensor]:
        """The same of a block that is off by what the sieve knows: what is off by the whole budget, too."""
        found = [self._by_budget(one, sieve, dtypes) for one in parts_of(block)]
        residuals, budgets = (torch.stack(parts) for parts in zip(*found, strict=True))
        at = _ratios(residuals, budgets).reshape(residuals.shape).argmax(0, keepdim=True)
        return residuals.gather(0, at)[0], budgets.gather(0, at)[0]

    def _by_budget(self, block: Block, sieve: SieveResult, dtypes: Mapping[str, torch.dtype]) -> tuple[Tensor, Tensor]:
        """Of one key head."""
        residual, budget = self.furthest_off(block, sieve.bounds)
        off = residual.abs() > budget
        if (block.batch, block.kv_heads.start) in sieve.whole:
            off &= residual.abs() <= budget * _KEPT_OFF
        if not bool(off.any()):
            return residual, budget
        return self.furthest_off(block, allowed(sieve.compared(block), dtypes), of_block=True)

    def furthest_off(
        self, block: Block, bounds: Mapping[str, Tensor], *, of_block: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Of each intermediate of a block the element that is furthest off, and what is allowed of it.

        Args:
            bounds: what one run is allowed.
            of_block: whether these are of the block alone.
        """
        found = []
        for name in (name for name in bounds if name in self.second.values):
            axes = self.case.axes(name)
            before, after = block.of(self.first.values[name], axes), block.of(self.second.values[name], axes)
            bound = bounds[name] if of_block else block.of(bounds[name], axes)
            found.append(_off(before, after, bound))
        residuals, budgets = zip(*found, strict=True)
        return torch.stack(residuals), torch.stack(budgets)


def _off(before: Tensor, after: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Of one intermediate the difference that is furthest off, and what is allowed of it."""
    # Nearly all that is made without atomics comes out bit for bit.
    if before.dtype == after.dtype and before.equal(after):
        return bound.new_zeros((), dtype=torch.double), 2 * bound.flatten()[0].double()
    dtype, before, after, bound = after.dtype, before.double(), after.double(), 2 * bound.double()
    beyond = may_overflow(after, before, bound, dtype) | may_overflow(before, after, bound, dtype)
    difference, bound = (after - before).masked_fill((after == before) | beyond, 0.0).flatten(), bound.flatten()
    at = _ratios(difference, bound).argmax()
    return difference[at], bound[at]
