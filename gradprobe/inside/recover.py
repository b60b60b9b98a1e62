"""Recovers P, dP, delta and dS of a target that exposes gradients alone, from its answers to one-hot problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..cases.case import Case
from ..judging.compare import TILE_ELEMENTS, attention_of
from ..reference import Attention, tiles
from ..running.trace import Trace, expected_shapes
from .onehot import ZERO_KEYS, Plan, end_to_end, plan, problem, read_probe
from .recovery import Recovery, slope_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Elements of q that one call is given at most: many small probes fit one call, large ones take several.
CALL_ELEMENTS = 1 << 22
GRADIENTS = ("dQ", "dK", "dV")

Answer = Callable[[Case, Mapping[str, "Tensor"], Mapping[str, "Tensor"]], Trace]
"""Runs the target on several probes, in the layout under examination; given the first of them alone as well."""


@dataclass(frozen=True)
class Recovered:
    """What the one-hot problems showed."""

    values: Mapping[str, Tensor]
    """The inputs of the first probe, which stand for all: they are one problem."""
    trace: Trace
    """The first probe's own results, with P, dP, delta and dS recovered."""
    by_dk: Tensor | None
    """[B, H, M, N] dS as the kernel of dK has it, where the trace holds that of the kernel of dQ."""
    recovery: Recovery


def recoverable(case: Case, trace: Trace) -> bool:
    """Whether there is something to recover, and the gradients to do it."""
    missing = {"P", "dS"} - trace.values.keys()
    return bool(missing) and bool(set(GRADIENTS) & trace.values.keys()) and plan(case) is not None


def recover(
    case: Case, values: Mapping[str, Tensor], answer: Answer, *, one_by_one: bool = False, with_p: bool = True
) -> Recovered:
    """Puts the one-hot problems of a case to a target and reads its intermediates.

    Args:
        one_by_one: one probe a call, in the case's own shapes; else as many as fit, end to end along the batch.
        with_p: whether to recover P, which takes another dO in every probe.
    """
    layout = plan(case, with_p=with_p)
    assert layout is not None
    one_by_one = one_by_one or case.cu_seqlens_q is not None
    first: Trace | None = None
    shown: dict[str, Tensor] = {}
    for indices in _calls(case, layout, one_by_one):
        problems = [problem(case, layout, values, index) for index in indices]
        several = replace(case, batch=case.batch * len(problems), seqlens=(case.seqlens or ()) * len(problems) or None)
        trace = answer(several, end_to_end(case, problems), problems[0])
        first = first or _of_first(trace, case)
        shown = shown or _nothing(case, trace, with_p=with_p)
        for place, index in enumerate(indices):
            batch = slice(place * case.batch, (place + 1) * case.batch)
            read_probe(case, layout, index, {name: trace.values[name][batch] for name in _gradients(trace)}, shown)
    assert first is not None
    return _recovered(case, layout, problem(case, layout, values, 0), first, shown)


def _calls(case: Case, layout: Plan, one_by_one: bool) -> list[range]:
    size = case.batch * case.heads * max(case.seqlen_q, case.seqlen_k) * max(case.head_dim, case.head_dim_v)
    step = 1 if one_by_one else max(1, CALL_ELEMENTS // size)
    return [range(at, min(at + step, layout.count)) for at in range(0, layout.count, step)]


def _gradients(trace: Trace) -> list[str]:
    return [name for name in GRADIENTS if name in trace.values]


def _of_first(trace: Trace, case: Case) -> Trace:
    """The first probe's share of a call, of what belongs to its batches alone."""
    kept = {
        name: tensor[: case.batch]
        for name, tensor in trace.values.items()
        if case.axes(name)[0] == "b" and name not in ("P", "dP", "delta", "dS")
    }
    return Trace(kept, {name: trace.sources[name] for name in kept})


def _nothing(case: Case, trace: Trace, *, with_p: bool) -> dict[str, Tensor]:
    import torch

    names = {"dQ": "dS by dQ", "dK": "dS by dK"} | ({"dV": "P"} if with_p and not case.dropout else {})
    shape, device = expected_shapes(case)["P"], next(iter(trace.values.values())).device
    return {names[name]: torch.zeros(shape, device=device) for name in _gradients(trace) if name in names}


def _recovered(
    case: Case, layout: Plan, values: Mapping[str, Tensor], first: Trace, shown: Mapping[str, Tensor]
) -> Recovered:
    ds = shown.get("dS by dQ", shown.get("dS by dK"))
    found = {name: tensor for name, tensor in (("P", shown.get("P")), ("dS", ds)) if tensor is not None}
    unseen = next(iter(first.values.values())).new_full(expected_shapes(case)["LSE"], -1).long()
    recovery = Recovery(_dtype(first, "dV"), _dtype(first, "dQ", "dK"), abs(layout.factor), unseen)
    recovered = Recovered(values, first, shown.get("dS by dK") if "dS by dQ" in shown else None, recovery)
    return with_matrices(recovered, case, found)


def with_matrices(recovered: Recovered, case: Case, found: Mapping[str, Tensor]) -> Recovered:
    """The same with other P or dS, and the delta and dP that follow from them."""
    values, recovery = {**recovered.trace.values, **found}, recovered.recovery
    if {"P", "dS"} <= values.keys():
        recovery = replace(recovery, zero_key=_zero_key(values["P"]))
        values |= _quotients(attention_of(case, recovered.values), values["P"], values["dS"], recovery.zero_key)
    order = [name for name in expected_shapes(case) if name in values]
    sources = {name: recovered.trace.sources.get(name, "recovered") for name in order}
    trace = Trace({name: values[name] for name in order}, sources)
    return replace(recovered, trace=trace, recovery=recovery)


def _dtype(trace: Trace, *names: str) -> torch.dtype:
    import torch

    dtypes = [trace.values[name].dtype for name in names if name in trace.values]
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _zero_key(p: Tensor) -> Tensor:
    """[B, H, M] of the keys without a value, the one that each row sees best; -1 where it sees none."""
    best = p[..., ::ZERO_KEYS].max(-1)
    return (best.indices * ZERO_KEYS).masked_fill(~(best.values > 0), -1)


def _quotients(x: Attention, p: Tensor, ds: Tensor, zero_key: Tensor) -> dict[str, Tensor]:
    """delta = -dS / (P * slope) where dP is 0, and dP = dS / (P * slope) + delta; 0 where P is, as behind a mask."""
    import torch

    found = {"delta": torch.zeros_like(p[..., 0]), "dP": torch.zeros_like(p)}
    for tile in tiles(x, rows=max(1, TILE_ELEMENTS // x.n_key), heads=1):
        place = (tile.batch, tile.heads, tile.rows)
        g = (ds[place] / (p[place] * slope_of(x, tile))).masked_fill(p[place] == 0, 0.0)
        key = zero_key[place][..., None]
        delta = -g.gather(-1, key.clamp(min=0)).masked_fill(key < 0, 0.0)
        found["delta"][place] = delta[..., 0].to(p.dtype)
        found["dP"][place] = (g + delta).masked_fill(p[place] == 0, 0.0).to(p.dtype)
    return found
