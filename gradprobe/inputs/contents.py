"""What a set of inputs may hold: names, dtypes, shapes and numbers, each with its own error message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..model.assignment import spanned
from ..model.failures import UsageFailure
from .placement import Placement, overlaps, within

if TYPE_CHECKING:
    from torch import Tensor

REQUIRED = ("q", "k", "v", "do")
OPTIONAL = (
    "bias",
    "alibi",
    "mask",
    "sinks",
    "keep",
    "seqlens",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "tau",
    "lse",
    "o",
)
TENSORS = (*REQUIRED, *OPTIONAL)
WHOLE = ("seqlens", "cu_seqlens_q", "cu_seqlens_k")
BOOLEAN = ("mask", "keep")
# What each option must be, in words and as a type.
OPTIONS: Mapping[str, tuple[str, Any]] = {
    "causal": ("True or False", bool),
    "scale": ("a number", float),
    "window": ("two whole numbers", tuple[int, int]),
    "softcap": ("a number", float),
    "dropout": ("a number", float),
    "align": ("a word", str),
    "family": ("softmax or lazy", Literal["softmax", "lazy"]),
}
# What may stand beside a tensor called q, as q.strides.
COMPANIONS = ("strides", "offset", "buffer", "dtype")

# Elements that a tensor may span, or eight times its own: the strides of a broken file must not take all memory.
_MOST_SPANNED = 1 << 28


def check_names(content: Mapping[Any, Any]) -> None:
    """Every name is known, and none of q, k, v and do is missing."""
    known = {*TENSORS, *OPTIONS, *(f"{name}.{of}" for name in TENSORS for of in COMPANIONS)}
    unknown = [key for key in content if not isinstance(key, str) or key not in known]
    listed = f"tensors: {', '.join(TENSORS)}; options: {', '.join(OPTIONS)}"
    if unknown:
        raise UsageFailure(f"unknown name {unknown[0]!r}", listed)
    missing = [name for name in REQUIRED if name not in content]
    if missing:
        held = ", ".join(content) or "nothing"
        words = f"a set of inputs needs q, k, v and do; {', '.join(missing)} missing among {held}"
        raise UsageFailure(words, listed)


def checked_option(name: str, value: Any) -> Any:
    """An option's value, as `case.resolve` takes it."""
    import msgspec

    words, kind = OPTIONS[name]
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise UsageFailure(f"{name} must be {words}, got {value!r}") from None


def check_dtypes(tensors: Mapping[str, Any]) -> None:
    """Refuses what is no dense tensor of a dtype that its name may have, and q, k, v and do of several dtypes."""
    import torch

    floating = (torch.float32, torch.float16, torch.bfloat16)
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise UsageFailure(f"{name} must be a dense tensor, got {type(tensor).__name__}")
        is_dense = tensor.layout == torch.strided and not tensor.is_quantized
        if not is_dense or tensor.is_nested or tensor.is_meta:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            kind = "meta, without values" if tensor.is_meta else kind
            raise UsageFailure(f"{name} must be a dense tensor, got {kind}")
        allowed: tuple[torch.dtype, ...] = floating
        if name in WHOLE:
            allowed = (torch.int32, torch.int64)
        elif name in BOOLEAN:
            allowed = (torch.bool,)
        if tensor.dtype not in allowed:
            rule = " or ".join(dtype_name(dtype) for dtype in allowed)
            raise UsageFailure(f"{name} must be {rule}, got {dtype_name(tensor.dtype)}")
    if len({tensors[name].dtype for name in REQUIRED}) > 1:
        listed = ", ".join(f"{name} {dtype_name(tensors[name].dtype)}" for name in REQUIRED)
        raise UsageFailure(
            f"q, k, v and do must have one dtype, got {listed}",
            "where autocast casts inside the function, keep what it casts to",
        )


def dtype_name(dtype: Any) -> str:
    """float32 of torch.float32."""
    return str(dtype).removeprefix("torch.")


def check_shapes(tensors: Mapping[str, Tensor], family: str) -> None:
    """The shapes agree with one another; those of q, k, v and do by the reference's own rules."""
    from ..reference import Attention

    q, k, v, do = (tensors[name] for name in REQUIRED)
    try:
        x = Attention("softmax", q, k, v, do, scale=1.0, causal=False)
    except ValueError as error:
        raise UsageFailure(str(error)) from error
    full = (x.n_batch, x.n_heads, x.n_query, x.n_key)
    if 0 in (*full, x.q.shape[3], x.v.shape[3]):
        raise UsageFailure(f"a tensor is empty: q is {list(x.q.shape)}, v {list(x.v.shape)}")
    exact: dict[str, tuple[int, ...]] = dict.fromkeys(("tau", "alibi", "sinks"), (x.n_heads,))
    exact |= {"seqlens": (x.n_batch,), "keep": full, "lse": full[:3], "o": tuple(x.do.shape)}
    for name, shape in exact.items():
        if name in tensors and tensors[name].shape != shape:
            raise UsageFailure(f"{name} must be {list(shape)}, got {list(tensors[name].shape)}")
    for name in ("mask", "bias") if family == "softmax" else ("mask",):
        got = list(tensors[name].shape) if name in tensors else [1] * 4
        fits = all(size in (1, whole) for size, whole in zip(got, full, strict=False))
        if len(got) != 4 or not fits:
            raise UsageFailure(f"{name} must broadcast to [B, H, M, N] = {list(full)}, got {got}")
    if family == "lazy" and "bias" in tensors:
        bias = list(tensors["bias"].shape)
        if len(bias) != 2 or bias[0] != x.n_heads or not bias[1]:
            words = f"lazy bias must be [H, W] with H = {x.n_heads} and W > 0, got {bias}"
            raise UsageFailure(words)
    for name, length in (("cu_seqlens_q", x.n_query), ("cu_seqlens_k", x.n_key)):
        if name in tensors:
            _check_ascends(name, tensors[name], length)
    if ("cu_seqlens_q" in tensors) != ("cu_seqlens_k" in tensors):
        raise UsageFailure(
            "of cu_seqlens_q and cu_seqlens_k one is missing", "where they are equal, write both"
        )


def _check_ascends(name: str, tensor: Tensor, length: int) -> None:
    if tensor.dim() != 1:
        raise UsageFailure(f"{name} must have one axis, got {list(tensor.shape)}")
    ends = tensor.tolist()
    if len(ends) < 2 or ends != sorted(ends) or (ends[0], ends[-1]) != (0, length):
        raise UsageFailure(
            f"{name} must ascend from 0 to {length}, got {','.join(map(str, ends)) or 'nothing'}",
            "it holds where each packed sequence begins and where the last one ends",
        )


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """No NaN and no infinity: nothing computed from one can be judged.

    But -inf in a bias, which masks; and anything at all beyond a batch's live length, which nothing reads.
    """
    import torch

    for name in ("q", "k", "v", "do", "bias", "alibi", "sinks", "tau"):
        if name in tensors:
            wrong = ~tensors[name].isfinite()
            wrong &= tensors[name] != -float("inf") if name == "bias" else True
            if name in REQUIRED and "seqlens" in tensors:
                live = torch.arange(tensors[name].shape[2]) < tensors["seqlens"][:, None]
                wrong &= live[:, None, :, None]
            if bool(wrong.any()):
                raise UsageFailure(
                    f"{name} holds {int(wrong.sum()):,} NaN or infinite numbers, the first at "
                    f"{wrong.nonzero()[0].tolist()}",
                    "nothing computed from them can be judged; they were there before the attention backward ran",
                )


def declared_placement(name: str, tensor: Tensor, content: Mapping[str, Any]) -> Placement | None:
    """The placement that a tensor's companions declare; None without them."""
    import torch

    strides = content.get(f"{name}.strides")
    if strides is None:
        return None
    offset, buffer = content.get(f"{name}.offset", 0), content.get(f"{name}.buffer", name)
    numbers = [*strides, offset] if isinstance(strides, (list, tuple)) else [None]
    are_whole = all(type(number) is int and number >= 0 for number in numbers)
    if not are_whole or not isinstance(buffer, str):
        words = (
            f"{name}.strides and {name}.offset must be whole numbers, and {name}.buffer a word"
        )
        raise UsageFailure(words)
    if len(strides) != tensor.dim():
        raise UsageFailure(
            f"{name}.strides must be {tensor.dim()} numbers, one an axis, got {len(strides)}"
        )
    strides, shape = tuple(strides), tuple(tensor.shape)
    if offset + spanned(shape, strides) > max(_MOST_SPANNED, 8 * tensor.numel()):
        reach = (
            f"{offset + spanned(shape, strides):,} elements far, for {tensor.numel():,} elements"
        )
        words = f"{name}.strides and {name}.offset reach {reach}"
        raise UsageFailure(words, f"leave them out, and {name} lies contiguous")
    once = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)]
    repeats = torch.equal(once.expand(shape).nan_to_num(), tensor.nan_to_num())
    if overlaps(shape, strides) or not repeats:
        words = f"{name}.strides put several elements of {name} into one place"
        raise UsageFailure(words, "correct them")
    return Placement(within(shape, strides), offset, buffer)
