"""One-hot problems, through whose dQ, dK and dV a black box shows P, dP, delta and dS, element by element.

The head dims are shared out. A quarter, "own", carries the case's values; the others hold one-hot rows where their
partner holds zeros, so they change no score, no O and no delta:

    q = [own | 0       | c e_i ]        do = [own | e_i ]
    k = [own | c e_j   | 0     ]        v  = [own | 0   ]

Then dQ's middle columns are c * scale * dS[:, j], dK's last ones c * scale * dS[i, :], and dV's last ones P[i, :]. All
probes are one and the same problem, of which each shows other rows and columns. Every eighth key's own value is 0:
there dP = 0 and dS = -P * delta, which tells delta from dP. The own dims are spread over all, the last among them:
dims that a kernel leaves out of a dot are then missed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..inputs.draw import MEANS
from ..model.case import Case
from ..model.failures import TargetFailure
from ..model.intermediates import GRADIENT_OF, MATRIX_OF, PRODUCTS
from ..reference import Attention, Tile, evaluate
from ..runtime.run import Trace, expected_shapes
from .budget import RECOVERABLE, Recovery, slope_of
from .compare import attention_of, tiles_of
from .declared_precision import Tensors
from .range import out_of_range

# Every so many keys have no value of their own.
ZERO_KEYS = 8
# float16 holds powers of two to 2^15, and 2^-14 before its numbers become subnormal.
_HIGHEST = 14
# Elements of q, and of scores, that the probes of one call have at most: a target may hold its scores. All probes
# together have no more scores either: they take no longer than a few runs.
CALL_ELEMENTS, CALL_SCORES = 1 << 22, 1 << 24
MOST_SCORES = CALL_SCORES
SUMS = tuple(name for name in GRADIENT_OF.values() if name not in PRODUCTS)
QUOTIENTS = ("dP", "delta")
"""What is read off P and dS."""
Answer = Callable[[Case, Tensors, Tensors], Trace]
"""Runs the target on several probes, in the layout under examination; given the first of them alone as well."""


@dataclass(frozen=True)
class ProbePlan:
    """How the head dims of a case are shared out, and how many probes then show everything."""

    own: tuple[int, ...]
    """The dims of q and k that carry the case's values."""
    own_v: tuple[int, ...]
    """The dims of do and v that do."""
    keys: tuple[int, ...]
    """The dims of k's one-hot rows: as many columns of dS a probe shows through dQ."""
    rows: tuple[int, ...]
    """The dims of q's one-hot rows: as many rows of dS it shows through dK."""
    rows_v: tuple[int, ...]
    """The dims of do's one-hot rows, none where P is not shown."""
    count: int
    height: float
    """c: of the powers of two that float16 holds the one that brings the factor nearest to 1."""
    factor: float
    """c * scale, what dQ and dK multiply dS by."""


def plan(case: Case, *, with_p: bool = True) -> ProbePlan | None:
    """The plan for a case; None where its head dims or its scale leave no room for one.

    Args:
        with_p: whether to show P too. Without, every probe has one and the same dO.
    """
    if case.head_dim < 3 or case.head_dim_v < 2 or case.scale == 0:
        return None
    (own, free), (own_v, rows_v) = _shared_out(case.head_dim), _shared_out(case.head_dim_v)
    rows_v = rows_v if with_p else ()
    n_rows, n_keys = _rows(case), case.seqlen_k
    keys = min(max(round(len(free) * n_keys / (n_keys + n_rows)), 1), len(free) - 1)
    shown = ((n_keys, keys), (n_rows, len(free) - keys), (n_rows, len(rows_v)))
    count = max(-(-every // size) for every, size in shown if size)
    height = 2.0 ** -min(max(round(math.log2(abs(case.scale))), -_HIGHEST), _HIGHEST)
    parts = (own, own_v, free[:keys], free[keys:], rows_v)
    return ProbePlan(*parts, count, height, height * case.scale)


def _shared_out(dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A quarter of the dims, spread over all of them with the last one among them; and the others."""
    count = -(-dims // 4)
    own = {dims - 1 - (dims - 1) * at // max(count - 1, 1) for at in range(count)}
    return tuple(sorted(own)), tuple(dim for dim in range(dims) if dim not in own)


def _rows(case: Case) -> int:
    """Rows that share one key/value head: those of every query head of its group."""
    return case.seqlen_q * case.heads // case.kv_heads


def _shown(index: int, dims: Sequence[int], end: int) -> tuple[Tensor, Tensor]:
    """Which of `end` rows or keys a probe shows, and in which dims."""
    start = min(index * len(dims), end)
    slots = torch.arange(start, min(start + len(dims), end))
    return slots, slots.new_tensor(dims)[: len(slots)]


def _shown_rows(
    case: Case, index: int, dims: Sequence[int]
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """[Hkv, slots] query heads and [slots] rows, those of a group's first head before its second; and their dims."""
    slots, of = _shown(index, dims, _rows(case))
    first = torch.arange(case.kv_heads)[:, None] * (case.heads // case.kv_heads)
    return (first + slots // case.seqlen_q, slots % case.seqlen_q), of


def problem(case: Case, plan: ProbePlan, values: Tensors, index: int) -> dict[str, Tensor]:
    """The inputs of one probe, in the shapes of the case's own; tau is 0, so that PE = P."""
    zeroed = [name for name in ("q", "k", "v", "do", "tau") if name in values]
    made = dict(values) | {name: torch.zeros_like(values[name]) for name in zeroed}
    for name, own in (("q", plan.own), ("k", plan.own), ("v", plan.own_v), ("do", plan.own_v)):
        made[name][..., own] = values[name][..., own]
    # A quarter of the terms, each twice as large: the scores keep their spread. Their mean takes both factors so.
    made["q"] *= 2
    if case.pattern in MEANS:
        made["k"][..., plan.own] += values["k"][..., plan.own].mean(2, keepdim=True)
    made["v"][:, :, ::ZERO_KEYS] = 0
    keys, dims = _shown(index, plan.keys, case.seqlen_k)
    made["k"][:, :, keys, dims] = plan.height
    for name, of, height in (("q", plan.rows, plan.height), ("do", plan.rows_v, 1.0)):
        (heads, rows), dims = _shown_rows(case, index, of)
        made[name][:, heads, rows, dims] = height
    return made


def _read_probe(
    case: Case, plan: ProbePlan, index: int, came: Tensors, into: Tensors
) -> None:  # fmt: skip
    """Writes what one probe's dQ, dK and dV show of dS, dS and P, each [B, H, M, N], by the gradient."""
    for name, shown in into.items():
        factor = 1.0 if name == "dV" else plan.factor
        divided = (came[name].double() / factor).to(shown.dtype)
        if name == "dQ":
            keys, dims = _shown(index, plan.keys, case.seqlen_k)
            shown[..., keys] = divided[..., dims]
        else:
            of = plan.rows if name == "dK" else plan.rows_v
            (heads, rows), dims = _shown_rows(case, index, of)
            shown[:, heads, rows] = divided[..., dims].mT


def end_to_end(case: Case, problems: Sequence[Tensors]) -> dict[str, Tensor]:
    """Several probes as one: end to end along the batch, where an input has one."""
    joined = dict(problems[0])
    for name in joined if len(problems) > 1 else ():
        if case.input_axes(name)[:1] == "b":
            joined[name] = torch.cat([problem[name] for problem in problems])
    return joined


@dataclass(frozen=True)
class RecoveredValues:
    """What the one-hot problems showed."""

    case: Case
    plan: ProbePlan
    values: Tensors
    """The inputs of the first probe, which stand for all: they are one problem."""
    trace: Trace
    """The first probe's own results, with P, dP, delta and dS recovered."""
    by: Tensors
    """[B, H, M, N] P as dV shows it, dS as dQ and as dK show it, by the gradient."""
    recovery: Recovery

    @cached_property
    def x(self) -> Attention:
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

    def with_matrices(self, found: Tensors) -> RecoveredValues:
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

    def _traced(self, values: Tensors, source: str) -> Trace:
        """Values in dataflow order; those that are new have a source."""
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


def obstacle(case: Case, values: Tensors) -> str:
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
    case: Case, values: Tensors, answer: Answer, *, one_by_one: bool = False, with_p: bool = True
) -> RecoveredValues:  # fmt: skip
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
        longest, dims = max(case.seqlen_q, case.seqlen_k), max(case.head_dim, case.head_dim_v)
        most = CALL_ELEMENTS // (case.batch * case.heads * longest * dims)
        most = max(1, min(most, CALL_SCORES // math.prod(expected_shapes(case)["P"])))
        with contextlib.suppress(TargetFailure):
            return _recover(case, values, answer, layout, most)
    return _recover(case, values, answer, layout, 1)


def _recover(
    case: Case, values: Tensors, answer: Answer, layout: ProbePlan, at_once: int
) -> RecoveredValues:
    shape, results, shown = expected_shapes(case)["P"], dict[str, Tensor](), dict[str, Tensor]()
    for start in range(0, layout.count, at_once):
        indices = range(start, min(start + at_once, layout.count))
        problems = [problem(case, layout, values, index) for index in indices]
        lengths = (case.seqlens or ()) * len(problems) or None
        several = replace(case, batch=case.batch * len(problems), seqlens=lengths)
        trace = answer(several, end_to_end(case, problems), problems[0])
        if not results:  # of the first probe, as far as they belong to its batches alone
            own = [name for name in trace.values if case.axes(name)[0] == "b"]
            results = {name: trace.values[name][: case.batch] for name in own}
            sources = {name: trace.sources[name] for name in own}
            for name in MATRIX_OF:
                if name in own and (name != "dV" or layout.rows_v):
                    shown[name] = torch.zeros(shape, device=results[name].device)
        for place, index in enumerate(indices):
            batch = slice(place * case.batch, (place + 1) * case.batch)
            gradients = {name: trace.values[name][batch] for name in shown}
            _read_probe(case, layout, index, gradients, shown)
    unseen = next(iter(shown.values())).new_full(expected_shapes(case)["LSE"], -1).long()
    dtypes = _coarsest(results, "dV"), _coarsest(results, "dQ", "dK")
    recovery = Recovery(*dtypes, abs(layout.factor), unseen)
    first = problem(case, layout, values, 0), Trace(results, sources)
    recovered = RecoveredValues(case, layout, *first, shown, recovery)
    # Of the two dS dQ's stands for both.
    return recovered.with_matrices({MATRIX_OF[name]: shown[name] for name in reversed(shown)})


def _coarsest(results: Tensors, *names: str) -> torch.dtype:
    dtypes = [results[name].dtype for name in names if name in results]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
