"""Recovers P, dP, delta and dS of a target that exposes gradients alone, from its answers to one-hot problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..cases.case import Case
from ..failures import TargetFailure
from ..judging.compare import TILE_ELEMENTS, attention_of
from ..judging.range import out_of_range
from ..reference import Attention, tiles
from ..running.trace import Trace, expected_shapes
from .onehot import ZERO_KEYS, Plan, end_to_end, plan, problem, read_probe
from .recovery import RECOVERABLE, Recovery, slope_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Elements of q, and of scores, that the probes of one call have at most: a target may hold its scores.
CALL_ELEMENTS = 1 << 22
CALL_SCORES = 1 << 24
# Elements of each recovered matrix, all of which are held.
MOST_SCORES = 1 << 26
SHOWN = {"dQ": "dS", "dK": "dS", "dV": "P"}
"""What each gradient shows."""
GRADIENTS = tuple(SHOWN)
SUMS = ("dBias", "dSink", "dTau")

Answer = Callable[[Case, Mapping[str, "Tensor"], Mapping[str, "Tensor"]], Trace]
"""Runs the target on several probes, in the layout under examination; given the first of them alone as well."""


@dataclass(frozen=True)
class Recovered:
    """What the one-hot problems showed."""

    values: Mapping[str, Tensor]
    """The inputs of the first probe, which stand for all: they are one problem."""
    trace: Trace
    """The first probe's own results, with P, dP, delta and dS recovered."""
    by: Mapping[str, Tensor]
    """[B, H, M, N] P as dV shows it, dS as dQ and as dK show it, by the gradient."""
    recovery: Recovery


def recoverable(trace: Trace) -> bool:
    """Whether there is something to recover, and the gradients to do it."""
    return bool({"P", "dS"} - trace.values.keys()) and bool(set(GRADIENTS) & trace.values.keys())


def obstacle(case: Case, values: Mapping[str, Tensor]) -> str:
    """Why P and dS of a case with some values cannot be recovered; "" where they can be."""
    scores = math.prod(expected_shapes(case)["P"])
    if scores > MOST_SCORES:
        return f"each would take {scores:,} elements, and at most {MOST_SCORES:,} are held; check shorter sequences"
    if case.scale == 0:
        return "at scale 0 nothing of dS reaches dQ and dK"
    layout = plan(case)
    if layout is None:
        return f"that takes 3 head dims of q and k and 2 of v, and there are {case.head_dim} and {case.head_dim_v}"
    beyond = out_of_range(case, problem(case, layout, values, 0))
    return f"in one-hot problems {beyond}" if beyond else ""


def recover(
    case: Case, values: Mapping[str, Tensor], answer: Answer, *, one_by_one: bool = False, with_p: bool = True
) -> Recovered:
    """Runs a target on the one-hot problems of a case and reads its intermediates off the gradients.

    Args:
        one_by_one: one probe a call, in the case's own shapes; else as many as fit, end to end along the batch, where
            the target takes another batch than the case's.
        with_p: whether to recover P, which takes another dO in every probe.

    Raises:
        TargetFailure: the target raised on a probe, or refused it.
    """
    with_p = with_p and not case.dropout
    if one_by_one or case.cu_seqlens_q is not None:
        return _recover(case, values, answer, one_by_one=True, with_p=with_p)
    try:
        return _recover(case, values, answer, one_by_one=False, with_p=with_p)
    except TargetFailure:
        return _recover(case, values, answer, one_by_one=True, with_p=with_p)


def _recover(case: Case, values: Mapping[str, Tensor], answer: Answer, *, one_by_one: bool, with_p: bool) -> Recovered:
    layout = plan(case, with_p=with_p)
    assert layout is not None
    first: Trace | None = None
    shown: dict[str, Tensor] = {}
    for indices in _calls(case, layout, one_by_one):
        problems = [problem(case, layout, values, index) for index in indices]
        several = replace(case, batch=case.batch * len(problems), seqlens=(case.seqlens or ()) * len(problems) or None)
        trace = answer(several, end_to_end(case, problems), problems[0])
        first = first or _of_first(trace, case)
        shown = shown or _nothing(case, layout, trace)
        for place, index in enumerate(indices):
            batch = slice(place * case.batch, (place + 1) * case.batch)
            read_probe(case, layout, index, {name: trace.values[name][batch] for name in _gradients(trace)}, shown)
    assert first is not None
    return _recovered(case, layout, problem(case, layout, values, 0), first, shown)


def _calls(case: Case, layout: Plan, one_by_one: bool) -> list[range]:
    size = case.batch * case.heads * max(case.seqlen_q, case.seqlen_k) * max(case.head_dim, case.head_dim_v)
    scores = math.prod(expected_shapes(case)["P"])
    step = 1 if one_by_one else max(1, min(CALL_ELEMENTS // size, CALL_SCORES // scores))
    return [range(at, min(at + step, layout.count)) for at in range(0, layout.count, step)]


def _gradients(trace: Trace) -> list[str]:
    return [name for name in GRADIENTS if name in trace.values]


def _of_first(trace: Trace, case: Case) -> Trace:
    """The results of the first probe of a call, as far as they belong to its batches alone."""
    kept = {name: tensor[: case.batch] for name, tensor in trace.values.items() if case.axes(name)[0] == "b"}
    return Trace(kept, {name: trace.sources[name] for name in kept})


def _nothing(case: Case, layout: Plan, trace: Trace) -> dict[str, Tensor]:
    import torch

    shape, device = expected_shapes(case)["P"], next(iter(trace.values.values())).device
    names = [name for name in _gradients(trace) if name != "dV" or layout.rows_v]
    return {name: torch.zeros(shape, device=device) for name in names}


def _recovered(
    case: Case, layout: Plan, values: Mapping[str, Tensor], first: Trace, shown: Mapping[str, Tensor]
) -> Recovered:
    found = {SHOWN[name]: shown[name] for name in reversed(GRADIENTS) if name in shown}
    unseen = next(iter(first.values.values())).new_full(expected_shapes(case)["LSE"], -1).long()
    recovery = Recovery(_dtype(first, "dV"), _dtype(first, "dQ", "dK"), abs(layout.factor), unseen)
    return with_matrices(Recovered(values, first, shown, recovery), case, found)


def with_matrices(recovered: Recovered, case: Case, found: Mapping[str, Tensor]) -> Recovered:
    """The same with other P or dS, and with delta and dP derived from them; exposed intermediates stay."""
    known, recovery = recovered.trace, recovered.recovery
    exposed = {name: value for name, value in known.values.items() if known.sources[name] != "recovered"}
    values = {**known.values, **found, **exposed}
    if {"P", "dS"} <= values.keys():
        quotients, zero_key = _quotients(attention_of(case, recovered.values), values["P"], values["dS"])
        values, recovery = values | quotients | exposed, replace(recovery, zero_key=zero_key)
    order = [name for name in expected_shapes(case) if name in values]
    sources = {name: known.sources.get(name, "recovered") for name in order}
    names = frozenset(RECOVERABLE) - exposed.keys()
    trace = Trace({name: values[name] for name in order}, sources)
    return replace(recovered, trace=trace, recovery=replace(recovery, names=names))


def with_sums(recovered: Recovered, case: Case, alone: Trace) -> Recovered:
    """The same with dBias, dSink and dTau of the first probe run alone: of several at once they are one sum."""
    known = recovered.trace
    order = [name for name in expected_shapes(case) if name in known.values or (name in SUMS and name in alone.values)]
    values = {name: known.values[name] if name in known.values else alone.values[name] for name in order}
    return replace(recovered, trace=Trace(values, {name: known.sources.get(name, "exported") for name in order}))


def _dtype(trace: Trace, *names: str) -> torch.dtype:
    import torch

    dtypes = [trace.values[name].dtype for name in names if name in trace.values]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _quotients(x: Attention, p: Tensor, ds: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """delta = -dS / (P * slope) where dP is 0, and dP = dS / (P * slope) + delta; 0 where P * slope is.

    delta is read at the key without a value that its row sees best: the second result, -1 where it sees none.
    """
    import torch

    found = {"delta": torch.zeros_like(p[..., 0]), "dP": torch.zeros_like(p)}
    zero_key = torch.full_like(p[..., 0], -1, dtype=torch.long)
    for tile in tiles(x, rows=max(1, TILE_ELEMENTS // x.n_key), heads=1):
        place = (tile.batch, tile.heads, tile.rows)
        share = p[place] * slope_of(x, tile)
        g = (ds[place] / share).masked_fill(share == 0, 0.0)
        best = share[..., ::ZERO_KEYS].max(-1)
        seen = best.values > 0
        delta = -g.gather(-1, best.indices[..., None] * ZERO_KEYS).masked_fill(~seen[..., None], 0.0)
        zero_key[place] = (best.indices * ZERO_KEYS).masked_fill(~seen, -1)
        found["delta"][place] = delta[..., 0].to(p.dtype)
        found["dP"][place] = (g + delta).masked_fill(share == 0, 0.0).to(p.dtype)
    return found, zero_key
