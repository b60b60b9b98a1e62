"""Recovers P, dP, delta and dS of a target that exposes gradients alone, from its answers to one-hot problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ...model.case import Case
from ...model.failures import TargetFailure
from ...model.intermediates import GRADIENT_OF, MATRIX_OF, PRODUCTS
from ...reference import Attention, Tile, evaluate
from ...runtime.run import Trace, expected_shapes
from ..budget import RECOVERABLE, Recovery, slope_of
from ..compare import attention_of, tiles_of
from ..range import out_of_range
from .onehot import ZERO_KEYS, ProbePlan, end_to_end, plan, problem, read_probe

# Elements of q, and of scores, that the probes of one call have at most: a target may hold its scores.
CALL_ELEMENTS = 1 << 22
CALL_SCORES = 1 << 24
# Scores of all probes together up to which a target is asked: they take no longer than a few runs.
MOST_SCORES = 1 << 24
GRADIENTS = tuple(MATRIX_OF)
SUMS = tuple(name for name in GRADIENT_OF.values() if name not in PRODUCTS)
QUOTIENTS = ("dP", "delta")
"""What is read off P and dS."""

Answer = Callable[[Case, Mapping[str, Tensor], Mapping[str, Tensor]], Trace]
"""Runs the target on several probes, in the layout under examination; given the first of them alone as well."""


@dataclass(frozen=True)
class RecoveredValues:
    """What the one-hot problems showed."""

    case: Case
    plan: ProbePlan
    values: Mapping[str, Tensor]
    """The inputs of the first probe, which stand for all: they are one problem."""
    trace: Trace
    """The first probe's own results, with P, dP, delta and dS recovered."""
    by: Mapping[str, Tensor]
    """[B, H, M, N] P as dV shows it, dS as dQ and as dK show it, by the gradient."""
    recovery: Recovery

    @cached_property
    def x(self) -> Attention:
        """The problem."""
        return attention_of(self.case, self.values)

    def tiles(self) -> Iterator[tuple[Tile, tuple[int, slice, slice], dict[str, Tensor]]]:
        """Each tile, its place in a tensor, and the reference there."""
        for tile in tiles_of(self.case, self.x):
            yield tile, (tile.batch, tile.heads, tile.rows), evaluate(self.x, tile)

    def is_read(self, name: str) -> bool:
        return self.trace.sources.get(name) == "recovered"

    def without(self, *names: str) -> RecoveredValues:
        """Without some of what was recovered; what the target exposes stays."""
        kept = [at for at in self.trace.values if at not in names or not self.is_read(at)]
        return replace(self, trace=self._traced({at: self.trace.values[at] for at in kept}, ""))

    def with_matrices(self, found: Mapping[str, Tensor]) -> RecoveredValues:
        """With other P or dS, and with delta and dP derived from them; exposed intermediates stay."""
        known = self.trace.values
        exposed = {name: value for name, value in known.items() if not self.is_read(name)}
        values, recovery = {**known, **found, **exposed}, self.recovery
        if {"P", "dS"} <= values.keys():
            quotients, zero_key = self._quotients(values["P"], values["dS"])
            values, recovery = values | quotients | exposed, replace(recovery, zero_key=zero_key)
        recovery = replace(recovery, names=frozenset(RECOVERABLE) - exposed.keys())
        return replace(self, trace=self._traced(values, "recovered"), recovery=recovery)

    def with_sums(self, alone: Trace) -> RecoveredValues:
        """With the totals of the first probe run alone: of several at once they are one sum."""
        sums = {name: value for name, value in alone.values.items() if name in SUMS}
        return replace(self, trace=self._traced({**sums, **self.trace.values}, "exported"))

    def _traced(self, values: Mapping[str, Tensor], source: str) -> Trace:
        order = [name for name in expected_shapes(self.case) if name in values]
        sources = {name: self.trace.sources.get(name, source) for name in order}
        return Trace({name: values[name] for name in order}, sources)

    def _quotients(self, p: Tensor, ds: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """delta = -dS / (P * slope) where dP is 0, and dP = dS / (P * slope) + delta; 0 where P * slope is.

        delta is read at the key without a value that its row sees best: the second result, -1 where it sees none.
        """
        delta, dp = torch.zeros_like(p[..., 0]), torch.zeros_like(p)
        zero_key = torch.full_like(delta, -1, dtype=torch.long)
        for tile in tiles_of(self.case, self.x):
            at = (tile.batch, tile.heads, tile.rows)
            share = p[at] * slope_of(self.x, tile)
            g = (ds[at] / share).masked_fill(share == 0, 0.0)
            best = share[..., ::ZERO_KEYS].max(-1, keepdim=True)
            keys, seen = best.indices * ZERO_KEYS, best.values > 0
            of_row = -g.gather(-1, keys).masked_fill(~seen, 0.0)
            zero_key[at] = keys.masked_fill(~seen, -1)[..., 0]
            delta[at] = of_row[..., 0].to(p.dtype)
            dp[at] = (g + of_row).masked_fill(share == 0, 0.0).to(p.dtype)
        return {"delta": delta, "dP": dp}, zero_key


def obstacle(case: Case, values: Mapping[str, Tensor]) -> str:
    """Why P and dS of a case with some values cannot be recovered; "" where they can be."""
    if case.scale == 0:
        return "at scale 0 nothing of dS reaches dQ and dK"
    layout = plan(case)
    if layout is None:
        return f"that takes 3 head dims of q and k and 2 of v, and there are {case.head_dim} and {case.head_dim_v}"
    if layout.count * case.scores > MOST_SCORES:
        return f"that takes {layout.count} problems of this size; a smaller --seqlen shows them"
    beyond = out_of_range(case, problem(case, layout, values, 0))
    return f"in one-hot problems {beyond}" if beyond else ""


def recover(
    case: Case,
    values: Mapping[str, Tensor],
    answer: Answer,
    *,
    one_by_one: bool = False,
    with_p: bool = True,
) -> RecoveredValues:
    """Runs a target on the one-hot problems of a case and reads its intermediates off the gradients.

    Args:
        one_by_one: one probe a call, in the case's own shapes; else as many as fit, end to end along the batch, where
            the target takes another batch than the case's.
        with_p: whether to recover P, which takes another dO in every probe.

    Raises:
        TargetFailure: the target raised on a probe, or refused it.
    """
    layout = plan(case, with_p=with_p and not case.dropout)
    assert layout is not None
    if not one_by_one and case.cu_seqlens_q is None:
        try:
            return _recover(case, values, answer, layout, _at_once(case))
        except TargetFailure:
            pass
    return _recover(case, values, answer, layout, 1)


def _at_once(case: Case) -> int:
    """How many probes a call may have."""
    rows, dims = max(case.seqlen_q, case.seqlen_k), max(case.head_dim, case.head_dim_v)
    size, scores = case.batch * case.heads * rows * dims, math.prod(expected_shapes(case)["P"])
    return max(1, min(CALL_ELEMENTS // size, CALL_SCORES // scores))


def _recover(
    case: Case, values: Mapping[str, Tensor], answer: Answer, layout: ProbePlan, at_once: int
) -> RecoveredValues:
    first, shown = None, dict[str, Tensor]()
    for start in range(0, layout.count, at_once):
        indices = range(start, min(start + at_once, layout.count))
        problems = [problem(case, layout, values, index) for index in indices]
        lengths = (case.seqlens or ()) * len(problems) or None
        several = replace(case, batch=case.batch * len(problems), seqlens=lengths)
        trace = answer(several, end_to_end(case, problems), problems[0])
        first = first or _of_first(trace, case)
        shown = shown or _nothing(case, layout, trace)
        for place, index in enumerate(indices):
            batch = slice(place * case.batch, (place + 1) * case.batch)
            read_probe(
                case, layout, index, {name: trace.values[name][batch] for name in shown}, shown
            )
    assert first is not None
    unseen = next(iter(shown.values())).new_full(expected_shapes(case)["LSE"], -1).long()
    recovery = Recovery(
        _dtype(first, "dV"), _dtype(first, "dQ", "dK"), abs(layout.factor), unseen
    )
    of_first = problem(case, layout, values, 0)
    recovered = RecoveredValues(case, layout, of_first, first, shown, recovery)
    # Of the two dS dQ's stands for both.
    return recovered.with_matrices({MATRIX_OF[name]: shown[name] for name in reversed(shown)})


def _of_first(trace: Trace, case: Case) -> Trace:
    """The results of the first probe of a call, as far as they belong to its batches alone."""
    kept = [name for name in trace.values if case.axes(name)[0] == "b"]
    values = {name: trace.values[name][: case.batch] for name in kept}
    return Trace(values, {name: trace.sources[name] for name in kept})


def _nothing(case: Case, layout: ProbePlan, trace: Trace) -> dict[str, Tensor]:
    shape, device = expected_shapes(case)["P"], next(iter(trace.values.values())).device
    names = [name for name in GRADIENTS if name in trace.values]
    return {
        name: torch.zeros(shape, device=device) for name in names if name != "dV" or layout.rows_v
    }


def _dtype(trace: Trace, *names: str) -> torch.dtype:
    dtypes = [trace.values[name].dtype for name in names if name in trace.values]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
