"""What a case can show: whether right arithmetic overflows on its values, which options it hides, what is 0 in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..model.case import Case
from ..model.failures import UsageFailure
from ..model.number import in_words, spans
from ..reference import Attention, Tile, evaluate, manual_attention_backward
from ..reference.attention import BY_ROW, MATRICES
from ..reference.problem import kept_share
from ..runtime.run import Trace
from .block import blocks
from .bounds import UNBOUNDED, score_errors
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
        is_narrow = case.dtype == "float16" and name in _ROUNDED
        for dtype in ("float32", "float16") if is_narrow else ("float32",):
            if not size <= _LARGEST[dtype]:
                limit = f"beyond the {_LARGEST[dtype]:.3g} of {dtype}"
                return (
                    f"{name} and the sums that make it may reach {size:.3g} here, {limit}: "
                    "a right kernel may give infinity or NaN, so none can be judged"
                )
    return ""


def _from_the_largest(case: Case, values: Mapping[str, Tensor]) -> dict[str, float]:
    """Upper bounds of all intermediates from the largest element of each input."""
    most = {name: _largest(value) for name, value in values.items() if value.is_floating_point()}
    q, k, v, do = (most[name] for name in ("q", "k", "v", "do"))
    scale = max(1.0, abs(case.scale or 0.0))
    bias, alibi = (most.get(name, 0) for name in ("bias", "alibi"))
    kept, rows = 1 / (1 - case.dropout), case.seqlen_q * case.heads // case.kv_heads
    pe = kept * (1 + most.get("tau", 0.0))
    dp = kept * case.head_dim_v * do * v
    ds = 2 * (dp + case.head_dim_v * do * pe * v)
    scores = scale * case.head_dim * q * k + bias + alibi * case.seqlen_k
    found = {
        "S": _LOG2E * scores,
        _ERROR: 8 * U32 * case.head_dim * scores,
        "O": pe * v,
        "dP": dp,
    }
    found |= {
        "dS": ds,
        "dQ": 2 * scale * ds * k,
        "dK": scale * rows * ds * q,
        "dV": rows * pe * do,
    }
    return found | {"dBias": case.batch * rows * case.seqlen_k * ds}


def _largest_of(case: Case, x: Attention, precision: Precision) -> dict[str, float]:
    """The same from all elements: the largest sum of absolute values, rounding included. A NaN counts as beyond."""

    def largest(sizes: Tensor) -> float:
        return float(sizes.nan_to_num(math.inf, math.inf, math.inf).max())

    found: dict[str, float] = {}
    sums = {"dK": torch.zeros_like(x.k), "dV": torch.zeros_like(x.v)}
    for tile in tiles_of(case, x):
        for name, sizes in _on(x, tile, precision).items():
            if name in sums:
                sums[name][tile.batch].index_add_(0, x.kv_heads(tile), sizes)
            else:
                found[name] = max(found.get(name, 0.0), largest(sizes))
    return found | {name: largest(sizes) for name, sizes in sums.items()}


def _on(x: Attention, tile: Tile, precision: Precision) -> dict[str, Tensor]:
    (q, k, v, do), values = (tensor.abs() for tensor in x.tensors(tile)), evaluate(x, tile)
    rows, valid = tile_budget(x, tile, values, precision).rows, values["valid"]
    scale, share = max(1.0, abs(x.scale)), kept_share(x, tile)
    kept = valid.double() if share is None else share
    # However far scores are off, P is a share of 1, and delta a mean of dP.
    p = (values["P"] + rows["P"]).nan_to_num(1.0).clamp(max=1.0) * valid
    dp = kept * (do @ v.mT) * valid
    off = rows["delta"].minimum(2 * dp.amax(-1))[..., None]
    ds = p * ((values["dP"] - values["delta"][..., None]).abs() + rows["dP"] + off)
    pe = kept * p + (values["PE"] - values["P"] * kept).clamp(min=0.0)
    scores = scale * (q @ k.mT) + values["S"].masked_fill(~valid, 0.0).abs()
    error = score_errors(x, tile, values, precision)[0].clamp(max=2 * (x.softcap or math.inf))
    # Of one key P = 1, whatever its score.
    found = {"S": _LOG2E * scores * valid, _ERROR: error * (valid.sum(-1, keepdim=True) > 1)}
    found |= {"O": pe @ v, "dP": dp, "delta": (do * (pe @ v)).sum(-1), "dS": ds}
    found |= {"dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": pe.mT @ do}
    return found | {"dBias": ds.sum((-2, -1))}


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
    for name in (name for name in given if _without(part, name) is not None):
        option = f"--{name.replace('_', '-')}"
        if case.scores > _MOST_SCORES:
            yield f"{option}: whether this case shows it was not tried: it is too large for it"
        elif not _is_shown(case, problem(), name, trace, precision):
            ignored = "without it, too, every intermediate is within budget"
            yield f"{option}: this case cannot show whether it is taken into account; {ignored}"


def _is_shown(case: Case, x: Attention, name: str, trace: Trace, precision: Precision) -> bool:
    """Whether a target that ignores an option is wrong; mostly the first tile tells."""
    off, dtypes = _without(x, name), {name: of.dtype for name, of in trace.values.items()}
    assert off is not None
    for tile in tiles_of(case, off):
        due, values = evaluate(x, tile), evaluate(off, tile)
        budget = allowed_on(x, tile, due, precision)
        for result in dtypes.keys() & {*BY_ROW}:
            value = values[result].to(dtypes[result])
            if not bool(judge(value, due, budget, result).right.all()):
                return True
    heads, rows = tile_size(case)
    options: dict[str, Any] = {one: getattr(off, one) for one in Attention.__dataclass_fields__}
    options |= {"head_tile": heads, "row_tile": rows}
    matrices = not dtypes.keys().isdisjoint(MATRICES)
    results = manual_attention_backward(**options, matrices=matrices)
    came = Trace({name: results[name].to(of) for name, of in dtypes.items()}, trace.sources)
    return not compare(case, x, came, precision, blame=False).matches


def _without(x: Attention, name: str) -> Attention | None:
    """The problem without an option; None where it has none. An input with a gradient becomes 0 or minus infinity."""
    changes: dict[str, Any] = {}
    if name == "scale":
        changes = {"scale": float(x.q.shape[-1]) ** -0.5}
    elif name in ("causal", "dropout") and x.family == "softmax":
        is_on = x.causal or name == "dropout"
        off = {"causal": False} if name == "causal" else {"dropout": 0.0, "keep": None}
        changes = off if is_on else {}
    elif name in ("seqlens", "cu_seqlens"):
        lengths = ("seqlens", "cu_seqlens_q", "cu_seqlens_k")
        has = any(getattr(x, one) is not None for one in lengths)
        changes = dict.fromkeys(lengths) if has else {}
    elif (value := getattr(x, name, None)) is not None:
        if name in ("window", "softcap", "alibi", "mask"):
            changes = {name: None}
        elif name in ("bias", "tau", "sinks"):
            changes = {name: value.new_full(value.shape, -math.inf if name == "sinks" else 0.0)}
    return replace(x, **changes) if changes else None


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
