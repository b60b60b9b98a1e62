"""What a case can show: whether right arithmetic overflows on its values, and what is 0 in it."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..model.case import Case
from ..model.failures import UsageFailure
from ..model.number import in_words, spans
from ..reference import Attention, Tile, evaluate
from ..reference.problem import kept_share
from .bounds import UNBOUNDED, score_errors
from .budget import tile_budget
from .compare import attention_of, tiles_of
from .declared_precision import U32, Precision, Tensors, precision_of

_LARGEST = {"float32": (2 - 2.0**-23) * 2.0**127, "float16": 65504.0}
# What float16 kernels hold in float16 on the way, rather than only give.
_ROUNDED = ("O", "dS")
_LOG2E = 1 / math.log(2)
_ERROR = "the error of S"


def out_of_range(case: Case, values: Tensors) -> str:
    """What right arithmetic holds beyond its range, in words; "" where all stays inside.

    Results alone may lie beyond the range of their own dtype: there an infinity is right.
    """
    if not _beyond(case, _from_the_largest(case, values)):
        return ""
    x = attention_of(case, values)
    return _beyond(case, _largest_of(case, x, precision_of(case.dtype, case.dots or "ieee")))


def refuse_out_of_range(case: Case, values: Tensors) -> None:
    """Raises UsageFailure where a right kernel may give NaN on a case's values."""
    if beyond := out_of_range(case, values):
        largest = max(_largest(values[name]) for name in ("q", "k", "v", "do"))
        sizes = f"scale {case.scale:g}, inputs of up to {largest:.3g}"
        raise UsageFailure(f"{beyond} ({sizes})", "make --scale or the inputs smaller")


def _largest(value: Tensor) -> float:
    return float(value.nan_to_num(0.0, 0.0, 0.0).abs().max())


def _beyond(case: Case, sizes: Mapping[str, float]) -> str:
    for name, size in sizes.items():
        if name == _ERROR and not size <= UNBOUNDED:
            words = f"scores err by {size:.3g} in right float32 arithmetic here"
            return f"{words}: every P is right, so none can be judged"
        is_narrow = case.dtype == "float16" and name in _ROUNDED
        for dtype in ("float32", "float16") if is_narrow else ("float32",):
            if name != _ERROR and not size <= _LARGEST[dtype]:
                limit = f"beyond the {_LARGEST[dtype]:.3g} of {dtype}"
                return (
                    f"{name} and the sums that make it may reach {size:.3g} here, {limit}: "
                    "a right kernel may give infinity or NaN, so none can be judged"
                )
    return ""


def _from_the_largest(case: Case, values: Tensors) -> dict[str, float]:
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
    found = {"S": _LOG2E * scores, _ERROR: 8 * U32 * case.head_dim * scores, "O": pe * v}
    found |= {"dP": dp, "dS": ds, "dQ": 2 * scale * ds * k, "dK": scale * rows * ds * q}
    return found | {"dV": rows * pe * do, "dBias": case.batch * rows * case.seqlen_k * ds}


def _largest_of(case: Case, x: Attention, precision: Precision) -> dict[str, float]:
    """The same from all elements: the largest sum of absolute values, rounding included. A NaN counts as beyond."""
    largest = dict[str, Tensor]()
    sums = {"dK": torch.zeros_like(x.k), "dV": torch.zeros_like(x.v)}
    for tile in tiles_of(case, x):
        for name, sizes in _on(x, tile, precision).items():
            if name in sums:
                sums[name][tile.batch].index_add_(0, x.kv_heads(tile), sizes)
            else:
                largest[name] = sizes.max().maximum(largest.get(name, sizes.max()))
    every = largest | {name: sizes.max() for name, sizes in sums.items()}
    return {name: math.inf if size.isnan() else float(size) for name, size in every.items()}


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


def zeros_by_design(case: Case) -> Iterator[str]:
    """Sentences about what is 0 by mathematics, which looks like a bug and is none."""
    rows, keys, is_top_left = case.seqlen_q, case.seqlen_k, case.align == "top-left"
    if case.causal and (rows == keys or is_top_left) and case.window is None and not case.sinks:
        yield "row 0 of dS and dQ is 0 by design: it sees one key, so P = 1"
    at_kink = spans([head for head, tau in enumerate(case.tau or ()) if tau <= -1.0])
    if at_kink:
        yield f"row 0 of O is 0 by design where tau <= -1 cancels P = 1: head {in_words(at_kink, 4)}"
    if case.causal and rows != keys:
        other = "bottom-right" if is_top_left else "top-left"
        yield f"causal is aligned {case.align}; a {other} kernel differs in every row: for one, --align {other}"
        if rows > keys and not is_top_left:
            yield f"rows 0 to {rows - keys - 1} see no key (M > N): their P, O and gradients are 0 by design"
    if min(case.seqlens or (rows,)) < rows:
        yield "rows at or beyond a batch's length are 0 by design, in O and in every gradient"
