"""Identities of a run that no reference judges: each in O(N D), and what it may err by estimated in O(N D^2).

Without P nobody knows how a row spreads over its keys. O tells it: a mean of n values of size v is of size v/sqrt(n).
From that follow the sizes of dP and dS, hence what the roundings of a row cost. Rows add up in quadrature, times
LAMBDA, and what they share adds up as it is. 16-bit accumulators are allowed: they are not told from so little.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..model.case import Case
from ..model.intermediates import PRODUCTS
from ..model.number import LAMBDA
from ..reference import Attention, Tile
from ..reference.attention import MATRICES
from ..runtime.trace import Trace
from .declared_precision import U32, U_FUNCTION, Precision, long_sum
from .identities import LINEAR_IN_DO, Invariant, reversed_in, worst

_NEEDS = {"I1": ("dV",), "I2": ("dK",), "I3": ("dQ", "dK"), "I4": ("dV", "O")}
# Least share of a row's spread, where it is divided by.
_LEAST = 2.0**-40
# Rows after which PyTorch's 16-bit accumulators round, at the least.
_ROUNDED_EVERY = 64


def identities_alone(case: Case, x: Attention, trace: Trace, precision: Precision) -> list[Invariant]:
    """I1 to I4, as far as the target gave what they need and the options leave them true."""
    sums = _Sums(case, without_padding(x), trace, precision)
    return [worst(key, "target", sums.residual(key, left), allowed) for key, left, allowed in sums.all()]


def without_padding(x: Attention) -> Attention:
    """The problem with zeros at and beyond the length of each padded sequence."""
    if x.seqlens is None:
        return x
    dead = torch.arange(x.n_query, device=x.q.device) >= x.seqlens[:, None]
    return replace(
        x, **{name: getattr(x, name).masked_fill(dead[:, None, :, None], 0.0) for name in ("q", "k", "v", "do")}
    )


def seen_keys(x: Attention) -> tuple[Tensor, Tensor]:
    """The keys that each row sees, from the first to before the second, [B, M] both; equal where it sees none.

    A padding mask, which may hide any of them, is not looked at.
    """
    whole = Tile(0, slice(0, 1), slice(0, x.n_query))
    diagonal, (left, right) = x.diagonal(whole)[:, 0], x.window or (-1, -1)
    first, end = torch.zeros_like(diagonal), torch.full_like(diagonal, x.n_key)
    end = end.minimum(diagonal + 1) if x.causal else end
    first = first.maximum(diagonal - left) if left >= 0 else first
    end = end.minimum(diagonal + right + 1) if right >= 0 else end
    if x.cu_seqlens_q is not None and x.cu_seqlens_k is not None:
        rows = torch.arange(x.n_query, device=diagonal.device)
        of_row = torch.bucketize(rows, x.cu_seqlens_q.long()[1:], right=True)
        first = first.maximum(x.cu_seqlens_k.long()[of_row])
        end = end.minimum(x.cu_seqlens_k.long()[of_row + 1])
    first, end = (each.expand(x.n_batch, -1) for each in (first, end))
    if x.seqlens is not None:
        lengths = x.seqlens.long()[:, None]
        is_live = torch.arange(x.n_query, device=diagonal.device) < lengths
        end = end.minimum(lengths) * is_live
    return first, end.maximum(first)


@dataclass(frozen=True)
class _Sums:
    """The sums of one run, and what each may err by. Tensors of rows are [B, H, M], of keys [B, Hkv, N]."""

    case: Case
    x: Attention
    trace: Trace
    precision: Precision

    def all(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        case, x, values = self.case, self.x, self.values
        unbalanced = x.sinks is not None or case.softcap is not None
        if "dV" in values and case.family == "softmax" and x.sinks is None:
            arriving = x.do * self.live[..., None]
            of_rows = self._over_group(LAMBDA * self._norm(self.of_p[..., None] * arriving, 2), squared=True)
            shared = 2 * self._group(self.of_p).amax((2, 3))[..., None] * self._by_key_head(arriving).abs()
            left = values["dV"].sum(2) - self._by_key_head(arriving)
            summed = self._long(x.n_query) * self._over_group(arriving.abs().sum(2))
            yield "I1", left, of_rows + shared + summed + self._rounded("dV", values["dV"], (2,))
        if "dK" in values and not unbalanced:
            of_rows = self._over_group(LAMBDA * self._norm(self.of_ds[..., None] * x.q, 2), squared=True)
            mean = self._group(self.of_delta).mean((2, 3))[..., None]
            shared = 2 * mean * self._by_key_head(x.q).abs()
            cut = self._long(x.n_key) * self._over_group((self.delta_terms[..., None] * x.q).abs().sum(2))
            allowed = abs(x.scale) * (of_rows + shared + cut) + self._rounded("dK", values["dK"], (2,))
            yield "I2", values["dK"].sum(2), allowed
        if {"dQ", "dK"} <= values.keys():
            products = {"dQ": x.q * values["dQ"], "dK": x.k * values["dK"]}
            terms = ((self.of_product + self.of_score) * self.ds + self.of_delta) * self.score
            of_rows = LAMBDA * self._over_group(self._norm(terms, 2), squared=True)
            yield "I3", *self._difference(products, of_rows)
        if {"dV", "O"} <= values.keys():
            products = {"O": x.do * values["O"], "dV": x.v * values["dV"]}
            terms = (self.of_product + self.spread * self.of_score) * self.p_dp + self.of_p * self.delta
            of_rows = LAMBDA * self._over_group(self._norm(terms, 2), squared=True)
            shared = 2 * self._group(self.of_p).mean((2, 3)) * self._over_group(products["O"].sum((2, 3))).abs()
            yield "I4", *self._difference(products, of_rows + shared)

    def _difference(self, products: Mapping[str, Tensor], of_rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of two inner products, one over query rows and one over keys: their difference, and what it may be."""
        (of_queries, queries), (of_keys, keys) = products.items()
        left = self._over_group(queries.sum((2, 3))) - keys.sum((2, 3))
        rounded = self._over_group(self._rounded(of_queries, queries, (2, 3)))
        return left, of_rows + rounded + self._rounded(of_keys, keys, (2, 3))

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """The results, with 0 for what is not finite."""
        given = self.trace.values
        return {name: given[name].double().nan_to_num(0.0, 0.0, 0.0) for name in PRODUCTS if name in given}

    def residual(self, key: str, left: Tensor) -> Tensor:
        """What an identity leaves; NaN where one of its results is not finite."""
        is_finite = all(bool(self.trace.values[name].isfinite().all()) for name in _NEEDS[key])
        return left if is_finite else left * torch.nan

    @cached_property
    def keys(self) -> Tensor:
        """How many keys each row sees, of those that no padding mask hides: for an error, at least one."""
        first, end = seen_keys(self.x)
        return (end - first).clamp(min=1).double()[:, None].expand(-1, self.x.n_heads, -1)

    @cached_property
    def live(self) -> Tensor:
        """Whether a row sees a key."""
        first, end = seen_keys(self.x)
        if self.x.mask is None:
            return (end > first)[:, None].expand(-1, self.x.n_heads, -1)
        hidden = self.x.mask[:, 0, 0].expand(self.x.n_batch, -1).long().cumsum(-1)
        count = torch.nn.functional.pad(hidden, (1, 0))
        return (count.gather(1, end) > count.gather(1, first))[:, None].expand(-1, self.x.n_heads, -1)

    @cached_property
    def spread(self) -> Tensor:
        """sqrt(sum_j P^2), as O tells it: 1 where a row looks at one key, 1 / sqrt(n) where it looks at n alike."""
        least = (1 + (self.x.tau.abs().max() if self.x.tau is not None else 0.0)) / self.keys.sqrt()
        if "O" not in self.values:
            return torch.ones_like(least)
        usual = self._of_heads((self.x.v**2).sum(-1).mean(-1).sqrt())[..., None]
        return (_length(self.values["O"]) / usual).nan_to_num(1.0, 1.0).maximum(least).clamp(max=1.0)

    @cached_property
    def p_dp(self) -> Tensor:
        """sqrt(sum_j (P dP)^2)."""
        return self.spread * self._quadratic(self.x.do, self.x.v)

    @cached_property
    def delta(self) -> Tensor:
        """|sum_d dO O|, or the most it may be."""
        return (self.x.do * self.values["O"]).sum(-1).abs() if "O" in self.values else self.delta_terms

    @cached_property
    def delta_terms(self) -> Tensor:
        """sum_d |dO O|, or the most it may be."""
        if "O" in self.values:
            return (self.x.do * self.values["O"]).abs().sum(-1)
        return _length(self.x.do) * self._largest(self.x.v)

    @cached_property
    def ds(self) -> Tensor:
        """sqrt(sum_j dS^2)."""
        return self.p_dp + self.spread * self.delta

    @cached_property
    def score(self) -> Tensor:
        """The size of the scores that a row looks at: the usual one, or where it looks at few of many the largest."""
        usual = abs(self.x.scale) * self._quadratic(self.x.q, self.x.k)
        most = abs(self.x.scale) * _length(self.x.q) * self._largest(self.x.k)
        # The largest of n normal numbers is below sqrt(2 log n).
        return most.minimum(usual * (1 + self.spread * (2 * self.keys.log()).sqrt()))

    @cached_property
    def of_score(self) -> Tensor:
        """By how much a score may be off. Right 16-bit kernels may round an operand of it once more."""
        x, p = self.x, self.precision
        operand: Tensor = 1.5 * max(p.operand, p.matrix) * self.score
        summed = self._long(x.q.shape[-1]) * abs(x.scale) * _length(x.q) * self._largest(x.k)
        added = [float(each.abs().max()) for each in (x.bias, x.tau) if each is not None and each.numel()]
        added += [float(x.alibi.abs().max()) * x.n_key] if x.alibi is not None else []
        capped = x.softcap * (2.0**-11 if p.matrix else 2 * U_FUNCTION) if x.softcap is not None else 0.0
        return operand + summed + 4 * U32 * (self.score + sum(added)) + capped + U_FUNCTION

    @cached_property
    def of_product(self) -> Tensor:
        """By what share an entry of P or dS may be off where it is multiplied."""
        x, p = self.x, self.precision
        usual = self.spread.clamp(min=_LEAST) / self.keys.sqrt()
        return (p.matrix + p.operand + U_FUNCTION + p.floor / (min(1.0, abs(x.scale) or 1.0) * usual)).clamp(max=1.0)

    @cached_property
    def of_p(self) -> Tensor:
        """By what share the sum of a row of P may be off: its entries may all round alike."""
        alike = self._of_heads(_length(self.x.k.mean(2)) / self._largest_by_head(self.x.k))[..., None].nan_to_num(1.0)
        spread = (self.spread + alike).clamp(max=1.0)
        return self.of_product + spread * self.of_score + self._long(self.x.n_key)

    @cached_property
    def of_delta(self) -> Tensor:
        """By how much the sum of a row of dS may be off by what delta is made of."""
        x, p = self.x, self.precision
        known = "O" in self.values
        rounded = _length(x.do * self.values["O"]) if known else self.delta_terms
        size = _length(x.do) * (_length(self.values["O"]) if known else self._largest(x.v))
        products = self.spread * _length(x.do) * self._largest(x.v)
        long = self._long(x.n_key) * size + self._long(x.v.shape[-1]) * products
        return (p.matrix + U32) * rounded + (self.of_product + self.of_score) * self.p_dp + p.operand * products + long

    @cached_property
    def of_ds(self) -> Tensor:
        """By how much the sum of a row of dS may be off in all."""
        return self.of_delta + (self.of_product + self.of_score) * self.ds

    def of_order(self, name: str, value: Tensor, factor: float) -> Tensor:
        """What another order of its sums may change of each head of an intermediate."""
        x, dtype = self.x, self.trace.values[name].dtype
        relative = torch.finfo(dtype).eps + self.precision.matrix + self._long(x.n_key + x.n_query)
        # A sum whose terms cancel errs by its terms: those of dQ and dK add up to no more than sqrt(n) |dS| |K|.
        terms = self._norm(self.keys.sqrt() * self.ds, -1) * abs(x.scale)
        cancelled = {"dQ": terms * self._largest(x.k)[..., 0], "dK": self._over_group(terms * _length(x.q).amax(-1))}
        added = cancelled[name].flatten() * factor if name in cancelled else 0.0
        return LAMBDA * (relative * _by_head(value) + self._long(x.n_key + x.n_query) * added)

    def _rounded(self, name: str, terms: Tensor, over: tuple[int, ...]) -> Tensor:
        """What the rounding of a result, and of the sums that it is made of, adds to a sum of terms of it."""
        dtype = self.trace.values[name].dtype
        length = self.x.n_key if name in ("O", "dQ") else self.x.n_query * self.x.n_heads // self.x.k.shape[1]
        unit = torch.finfo(dtype).eps / 2
        unit *= max(1.0, math.sqrt(length / _ROUNDED_EVERY) / 2) if dtype.itemsize == 2 else 1.0
        unit += self._long(length)
        squares = (terms**2).sum(over).sqrt()
        return LAMBDA * unit * squares + 2 * unit * terms.sum(over).abs()

    def _long(self, terms: int) -> float:
        return self.precision.accumulate * long_sum(terms)

    def _norm(self, terms: Tensor, axis: int) -> Tensor:
        return terms.pow(2).sum(axis).sqrt()

    def _group(self, tensor: Tensor) -> Tensor:
        """[B, H, ...] as [B, Hkv, group, ...]."""
        grouped: Tensor = tensor.unflatten(1, (self.x.k.shape[1], -1))
        return grouped

    def _over_group(self, tensor: Tensor, *, squared: bool = False) -> Tensor:
        """[B, H, ...] added up over the query heads of each key head."""
        grouped = self._group(tensor)
        return grouped.pow(2).sum(2).sqrt() if squared else grouped.sum(2)

    def _by_key_head(self, rows: Tensor) -> Tensor:
        return self._group(rows).sum((2, 3))

    def _of_heads(self, of_keys: Tensor) -> Tensor:
        """[B, Hkv, ...] repeated for each query head."""
        return of_keys.repeat_interleave(self.x.n_heads // self.x.k.shape[1], 1)

    def _largest_by_head(self, keys: Tensor) -> Tensor:
        return _length(keys).amax(-1)

    def _largest(self, keys: Tensor) -> Tensor:
        """[B, H, 1] the length of the longest vector of the head's keys or values."""
        return self._of_heads(self._largest_by_head(keys))[..., None]

    def _quadratic(self, rows: Tensor, keys: Tensor) -> Tensor:
        """The root of the mean square of each row's products with all keys."""
        moments = self._of_heads(keys.mT @ keys / max(1, keys.shape[2]))
        return ((rows @ moments) * rows).sum(-1).clamp(min=0.0).sqrt()


def _length(vectors: Tensor) -> Tensor:
    return vectors.pow(2).sum(-1).sqrt()


def agreement_alone(
    key: str,
    case: Case,
    x: Attention,
    first: Trace,
    second: Trace,
    precision: Precision,
    *,
    factor: float = 1.0,
    reverse: bool = False,
) -> Invariant:
    """Whether a second run gives what the first implies, head by head: the length of the difference.

    Both are of one arithmetic on the same numbers, so that only the order of sums may differ, as that of atomics does.

    Args:
        factor: what the second run's dO was multiplied by.
        reverse: whether its heads and batches stood in reverse.
    """
    sums = _Sums(case, without_padding(x), first, precision)
    left, allowed = [], []
    for name in (name for name in first.values if name in second.values and name not in MATRICES):
        by = factor if name in LINEAR_IN_DO else 1.0
        before, after = first.values[name].double() * by, second.values[name].double()
        before = reversed_in(before, case.axes(name), case) if reverse else before
        same = (before == after) | (before.isnan() & after.isnan())
        left.append(_by_head((after - before).masked_fill(same, 0.0)))
        allowed.append(sums.of_order(name, before.nan_to_num(0.0, 0.0, 0.0), by))
    return worst(key, "target", torch.cat(left), torch.cat(allowed))


def _by_head(tensor: Tensor) -> Tensor:
    """The length of each head's part; of what has no heads, of all."""
    parts = tensor.flatten(0, 1).flatten(1) if tensor.dim() > 2 else tensor.reshape(1, -1)
    return _length(parts)


def silenced(values: Mapping[str, Tensor], case: Case, x: Attention) -> dict[str, Tensor]:
    """The values without dO in the later rows of every second key head and in the earlier ones of the others."""
    return {**values, "do": values["do"] * _kept(case, x).to(values["do"].device)[..., None]}


def _kept(case: Case, x: Attention) -> Tensor:
    """[B, H, M] bool: the rows that keep their dO, of those that see a key."""
    first, end = seen_keys(x)
    heads = torch.arange(case.heads, device=end.device) // (case.heads // case.kv_heads)
    later = (torch.arange(case.batch, device=end.device)[:, None] + heads) % 2 == 1
    is_later = torch.arange(case.seqlen_q, device=end.device) > case.seqlen_q // 2
    return (is_later == later[..., None]) & (end > first)[:, None]


def beyond_the_mask(case: Case, x: Attention, trace: Trace) -> Invariant | None:
    """I6 of a run with `silenced` values: what no row with a dO sees gets no gradient, not even a tiny one."""
    kept, (first, end) = _kept(case, x), seen_keys(x)
    is_heard = kept.unflatten(1, (case.kv_heads, -1)).any(2)
    edges = torch.zeros(case.batch, case.kv_heads, case.seqlen_k + 1, device=end.device)
    for at, step in ((first, 1.0), (end, -1.0)):
        edges.scatter_add_(2, at[:, None].expand_as(is_heard), step * is_heard)
    reached = edges.cumsum(2)[..., :-1] > 0
    places = {"dK": ~reached, "dV": ~reached, "dQ": ~kept}
    strays = [
        trace.values[name].double()[where].abs().flatten() for name, where in places.items() if name in trace.values
    ]
    most = torch.cat(strays) if strays else None
    if most is None or not len(most):
        return None
    return worst("I6", "target", most, torch.zeros_like(most))


_OF_P = "P: a mask, a bias, a scale or LSE that the backward does not have as the forward does"
_OF_DV = "dO or V is read wrongly, P is off by a factor of each row (LSE), or dV is scaled or not added up whole"
# The first whose identities are all broken.
_FAMILIES = (
    (("repeat",), "it differs from call to call: a race, or something that a call leaves behind"),
    (("I10",), "an address: other results where the same values lie otherwise"),
    (("I9",), "heads or batches are mixed up: an index, a stride or a map of heads"),
    (("I8",), "what dO goes through is not linear, or holds what was there before"),
    (("I6",), "a mask, or rows that are mixed up: gradients where nothing arrives"),
    (("I1", "I2"), _OF_P),
    (("I2", "I4"), _OF_P),
    (("I2", "I3"), "a part of dK or dQ that is missing or stored elsewhere"),
    (("I2",), "delta: rows of dS do not sum to 0"),
    (("I1",), _OF_DV),
    (("I4",), _OF_DV),
    (("I3",), "the scale of dQ or dK alone, or how one of them is added up"),
)
BLIND = (
    "what forward and backward do wrongly alike (a scale, a bias, a softcap, the base of LSE, keys that both leave "
    "out), a factor that dQ and dK have in common, and what a sum of thousands hides: one wrong row, one element"
)
"""What these identities hold in spite of, to be told beside every match."""


def family_of(broken: Collection[str]) -> str:
    """Which family of faults breaks these identities, in words; "" where none is known."""
    return next((words for keys, words in _FAMILIES if set(keys) <= set(broken)), "")
