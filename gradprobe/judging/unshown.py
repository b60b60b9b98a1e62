"""Options that a case cannot show: without them, too, every intermediate that came stays within its budget."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..budgets.precision import Precision
from ..cases.case import Case
from ..reference import Attention, manual_attention_backward
from ..running.trace import Trace
from .compare import compare, tile_size

_MATRICES = ("P", "dP", "dS")


def unshown(
    case: Case, x: Attention, trace: Trace, precision: Precision, given: Collection[str]
) -> Iterator[str]:  # fmt: skip
    """The options among those `given` without which a target would be judged right, as far as it exposes anything.

    Args:
        x: the problem of a run.
        trace: what came of it; its names and dtypes count.
    """
    for name in given:
        off = without(x, name)
        if off is not None and compare(case, x, _of(case, off, trace), precision).matches:
            yield name


def without(x: Attention, name: str) -> Attention | None:
    """The problem without an option; None where it has no such option. What has a gradient is 0, or minus infinity."""
    changes: dict[str, Any] = {}
    if name in ("window", "softcap", "alibi", "mask"):
        changes = {name: None} if getattr(x, name) is not None else {}
    elif name in ("seqlens", "cu_seqlens") and (x.seqlens is not None or x.cu_seqlens_q is not None):
        changes = {"seqlens": None, "cu_seqlens_q": None, "cu_seqlens_k": None}
    elif name == "causal" and x.causal and x.family == "softmax":
        changes = {"causal": False}
    elif name == "dropout" and x.family == "softmax":
        changes = {"dropout": 0.0, "keep": None}
    elif name in ("bias", "tau") and getattr(x, name) is not None:
        changes = {name: getattr(x, name).new_zeros(getattr(x, name).shape)}
    elif name == "sinks" and x.sinks is not None:
        changes = {"sinks": x.sinks.new_full(x.sinks.shape, -float("inf"))}
    elif name == "scale":
        changes = {"scale": float(x.q.shape[-1]) ** -0.5}
    return replace(x, **changes) if changes else None


def _of(case: Case, x: Attention, trace: Trace) -> Trace:
    """What a target gives that computes a problem, in the names and dtypes of a trace."""
    heads, rows = tile_size(case)
    options: Mapping[str, Any] = {name: getattr(x, name) for name in Attention.__dataclass_fields__}
    results = manual_attention_backward(
        **options, head_tile=heads, row_tile=rows, matrices=any(name in trace.values for name in _MATRICES)
    )
    values = {name: results[name].to(came.dtype) for name, came in trace.values.items()}
    return Trace(values, trace.sources)
