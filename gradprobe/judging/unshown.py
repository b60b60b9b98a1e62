"""Options that a case cannot test: a target that ignored them would be within budget too."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..budgets.precision import Precision
from ..cases.case import Case
from ..reference import Attention, evaluate, manual_attention_backward
from ..running.trace import Trace
from .compare import BY_TILE, tile_size, tiles_of, within_budget, wrong_on

_MATRICES = ("P", "dP", "dS")
# Elements of all score matrices together beyond which nothing is tried: an option without effect takes two evaluations.
_MOST_SCORES = 1 << 24


def unshown(case: Case, x: Attention, trace: Trace, precision: Precision, given: Collection[str]) -> Iterator[str]:
    """A sentence for each `given` option that a target could ignore and still match in all that it exposes.

    Args:
        x: the problem of a run.
        trace: what came of it; its names and dtypes count.
    """
    every = {name: off for name in given if (off := without(x, name)) is not None}
    too_large = case.batch * case.heads * case.seqlen_q * case.seqlen_k > _MOST_SCORES
    for name, off in every.items():
        option = f"--{name.replace('_', '-')}"
        if too_large:
            yield f"{option}: whether this case shows it was not tried: it is too large for it"
        elif not _is_shown(case, x, off, trace, precision):
            yield (
                f"{option}: this case cannot show whether it is taken into account; without it, too, every "
                "intermediate is within budget"
            )


def _is_shown(case: Case, x: Attention, off: Attention, trace: Trace, precision: Precision) -> bool:
    """Whether a target that ignores an option is wrong; mostly the first tile tells."""
    for tile in tiles_of(case, off):
        values = evaluate(off, tile)
        came = {name: values[name].to(of.dtype) for name, of in trace.values.items() if name in BY_TILE}
        if wrong_on(x, tile, came, precision):
            return True
    return not within_budget(case, x, _of(case, off, trace), precision)


def without(x: Attention, name: str) -> Attention | None:
    """The problem without an option; None where it has none. An input with a gradient becomes 0 or minus infinity."""
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
    """The exact results of a problem, with the names and dtypes of a trace."""
    heads, rows = tile_size(case)
    options: Mapping[str, Any] = {name: getattr(x, name) for name in Attention.__dataclass_fields__}
    results = manual_attention_backward(
        **options, head_tile=heads, row_tile=rows, matrices=any(name in trace.values for name in _MATRICES)
    )
    values = {name: results[name].to(came.dtype) for name, came in trace.values.items()}
    return Trace(values, trace.sources)
