"""What a case can show: whether right arithmetic overflows on its values, which options it hides, what is 0 in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..model.case import Case
from ..model.failures import UsageFailure
from ..model.number import in_words, spans
from ..reference import Attention, Tile, evaluate, manual_attention_backward
from ..reference.attention import BY_ROW, MATRICES
from ..reference.problem import kept_share
from ..runtime.run import Trace
from .block import blocks
from .bounds import UNBOUNDED, score_error
from .budget import tile_budget
from .compare import allowed_on, attention_of, compare, judge, tile_size, tiles_of
from .declared_precision import U32, Precision, precision_of

_LARGEST = {"float32": (2 - 2.0**-23) * 2.0**127, "float16": 65504.0}
# What float16 kernels hold in float16 on the way, rather than only give.
_ROUNDED = ("O", "dS")
_LOG2E = 1 / math.log(2)
_ERROR = "the error of S"


def out_of_range(case: Case, values: Mapping[str, Tensor]) -> str:
    """What right arithmetic holds beyond its range, in words; "" where all stays inside.

    Results alone may lie beyond the range of their own dtype: there an infinity is right.
    """
    if not _beyond(case, _from_the_largest(case, values)):
        return ""
    x = attention_of(case, values)
    return _beyond(case, _largest_of(case, x, precision_of(case.dtype, case.dots or "ieee")))


def refuse_out_of_range(case: Case, values: Mapping[str, Tensor]) -> None:
    """Raises UsageFailure where a right kernel may give NaN on a case's values."""
    if beyond := out_of_range(case, values):
        largest = max(_largest(values[name]) for name in ("q", "k", "v", "do"))
        sizes = f"scale {case.scale:g}, inputs of up to {largest:.3g}"
        raise UsageFailure(f"{beyond} ({sizes})", "make --scale or the inputs smaller")


def _largest(value: Tensor) -> float:
    return float(value.nan_to_num(0.0, 0.0, 0.0).abs().max())


def _beyond(case: Case, sizes: Mapping[str, float]) -> str:
    for name, size in sizes.items():
        if name == _ERROR:
            if not size <= UNBOUNDED:
                words = f"scores err by {size:.3g} in right float32 arithmetic here"
                return f"{words}: every P is right, so none can be judged"
            continue
        for dtype in (
            ("float32", "float16")
            if case.dtype == "float16" and name in _ROUNDED
            else ("float32",)
        ):
            if not size <= _LARGEST[dtype]:
                return (
                    f"{name} and the sums that make it may reach {size:.3g} here, beyond the {_LARGEST[dtype]:.3g} of "
                    f"{dtype}: a right kernel may give infinity or NaN, so none can be judged"
                )
    return ""


def _from_the_largest(case: Case, values: Mapping[str, Tensor]) -> dict[str, float]:
    """Upper bounds of all intermediates from the largest element of each input."""

    def largest(name: str) -> float:
        return _largest(values[name]) if name in values else 0.0

    q, k, v, do, scale = (*map(largest, ("q", "k", "v", "do")), max(1.0, abs(case.scale or 0.0)))
    kept, rows = 1 / (1 - case.dropout), case.seqlen_q * case.heads // case.kv_heads
    added = largest("bias") + largest("alibi") * case.seqlen_k
    o = kept * (1 + largest("tau")) * v
    dp = kept * case.head_dim_v * do * v
    ds = 2 * (dp + case.head_dim_v * do * o)
    scores = scale * case.head_dim * q * k + added
    return {
        "S": _LOG2E * scores,
        _ERROR: 8 * U32 * case.head_dim * scores,
        "O": o,
        "dP": dp,
        "dS": ds,
        "dQ": 2 * scale * ds * k,
        "dK": scale * rows * ds * q,
        "dV": rows * kept * (1 + largest("tau")) * do,
        "dBias": case.batch * rows * case.seqlen_k * ds,
    }


def _largest_of(case: Case, x: Attention, precision: Precision) -> dict[str, float]:
    """The same from all elements: the largest sum of absolute values, rounding included."""
    found: dict[str, float] = {}
    sums = {name: x.q.new_zeros(like.shape) for name, like in (("dK", x.k), ("dV", x.v))}
    for tile in tiles_of(case, x):
        for name, size in _on(x, tile, precision):
            if name in sums:
                sums[name][tile.batch].index_add_(0, x.kv_heads(tile), size)
            else:
                # A NaN counts as beyond.
                found[name] = max(
                    found.get(name, 0.0),
                    float(size.nan_to_num(math.inf, math.inf, math.inf).max()),
                )
    return found | {
        name: float(size.nan_to_num(math.inf, math.inf, math.inf).max())
        for name, size in sums.items()
    }


def _on(x: Attention, tile: Tile, precision: Precision) -> Iterator[tuple[str, Tensor]]:
    q, k, v, do = (tensor.abs() for tensor in x.tensors(tile))
    values = evaluate(x, tile)
    rows, valid, scale = (
        tile_budget(x, tile, values, precision).rows,
        values["valid"],
        max(1.0, abs(x.scale)),
    )
    share = kept_share(x, tile)
    kept = values["valid"].double() if share is None else share
    # However far scores are off, P is a share of 1, and delta a mean of dP.
    p = (values["P"] + rows["P"]).nan_to_num(1.0).clamp(max=1.0) * valid
    dp = kept * (do @ v.mT) * valid
    off = rows["delta"].minimum(2 * dp.amax(-1))[..., None]
    ds = p * ((values["dP"] - values["delta"][..., None]).abs() + rows["dP"] + off)
    pe = kept * p + (values["PE"] - values["P"] * kept).clamp(min=0.0)
    yield "S", _LOG2E * (scale * (q @ k.mT) + values["S"].masked_fill(~valid, 0.0).abs()) * valid
    # A row of one key has P = 1 whatever its score.
    several = valid.sum(-1, keepdim=True) > 1
    yield (
        _ERROR,
        score_error(x, tile, values, precision).clamp(max=2 * (x.softcap or math.inf)) * several,
    )
    yield "O", pe @ v
    yield "dP", dp
    yield "delta", (do * (pe @ v)).sum(-1)
    yield "dS", ds
    yield "dQ", scale * ds @ k
    yield "dK", scale * ds.mT @ q
    yield "dV", pe.mT @ do
    yield "dBias", ds.sum((-2, -1))


# Elements of all score matrices together beyond which nothing is tried: an option without effect takes two evaluations.
_MOST_SCORES = 1 << 24


def unshown(
    case: Case,
    values: Mapping[str, Tensor],
    problem: Callable[[], Attention],
    trace: Trace,
    precision: Precision,
    given: Collection[str],
) -> Iterator[str]:
    """A sentence for each `given` option that a target could ignore and still match in all that it exposes.

    Args:
        values: the inputs of a run.
        problem: makes the reference's problem for them, which of a large case takes much memory.
        trace: what came of it; its names and dtypes count.
    """
    block = next(blocks(case, 1))
    part = attention_of(block.case(case), block.inputs(case, values))
    for name in (name for name in given if without(part, name) is not None):
        option = f"--{name.replace('_', '-')}"
        if case.scores > _MOST_SCORES:
            yield f"{option}: whether this case shows it was not tried: it is too large for it"
        elif not _is_shown(case, problem(), name, trace, precision):
            yield (
                f"{option}: this case cannot show whether it is taken into account; without it, too, every "
                "intermediate is within budget"
            )


def _is_shown(case: Case, x: Attention, name: str, trace: Trace, precision: Precision) -> bool:
    """Whether a target that ignores an option is wrong; mostly the first tile tells."""
    off = without(x, name)
    assert off is not None
    for tile in tiles_of(case, off):
        due, values = evaluate(x, tile), evaluate(off, tile)
        came = {
            name: values[name].to(of.dtype) for name, of in trace.values.items() if name in BY_ROW
        }
        budget = allowed_on(x, tile, due, precision)
        if not all(
            bool(judge(value, due, budget, name).right.all()) for name, value in came.items()
        ):
            return True
    return not compare(case, x, _of(case, off, trace), precision, blame=False).matches


def without(x: Attention, name: str) -> Attention | None:
    """The problem without an option; None where it has none. An input with a gradient becomes 0 or minus infinity."""
    changes: dict[str, Any] = {}
    if name in ("window", "softcap", "alibi", "mask"):
        changes = {name: None} if getattr(x, name) is not None else {}
    elif name in ("seqlens", "cu_seqlens") and (
        x.seqlens is not None or x.cu_seqlens_q is not None
    ):
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
    options: Mapping[str, Any] = {
        name: getattr(x, name) for name in Attention.__dataclass_fields__
    }
    results = manual_attention_backward(
        **options,
        head_tile=heads,
        row_tile=rows,
        matrices=any(name in trace.values for name in MATRICES),
    )
    values = {name: results[name].to(came.dtype) for name, came in trace.values.items()}
    return Trace(values, trace.sources)


def zeros_by_design(case: Case) -> Iterator[str]:
    """Sentences about what is 0 by mathematics, which looks like a bug and is none."""
    rows, keys, is_top_left = case.seqlen_q, case.seqlen_k, case.align == "top-left"
    if case.causal and (rows == keys or is_top_left) and case.window is None and not case.sinks:
        yield "row 0 of dS and dQ is 0 by design: it sees one key, so P = 1"
    at_kink = spans([head for head, tau in enumerate(case.tau or ()) if tau <= -1.0])
    if at_kink:
        yield f"row 0 of O is 0 by design where tau <= -1 cancels P = 1: head {in_words(at_kink, 4)}"
    if case.causal and rows != keys:
        aligned = "top left, j <= i" if is_top_left else "bottom right, j <= i + N - M"
        other = "bottom-right" if is_top_left else "top-left"
        yield f"causal is aligned to the {aligned}; a {other} kernel differs in every row: for one, --align {other}"
        if rows > keys and not is_top_left:
            yield f"rows 0 to {rows - keys - 1} see no key (M > N): their P, O and gradients are 0 by design"
    if case.seqlens is not None and min(case.seqlens) < rows:
        yield "rows at or beyond a batch's length are 0 by design, in O and in every gradient"
