"""What a set of inputs may hold: names, dtypes, shapes and numbers, each with its own error message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..model.assignment import spanned
from ..model.failures import UsageFailure
from .placement import Placement, overlaps, within

if TYPE_CHECKING:
    from torch import Tensor

REQUIRED = ("q", "k", "v", "do")
WHOLE = ("seqlens", "cu_seqlens_q", "cu_seqlens_k")
BOOLEAN = ("mask", "keep")
TENSORS = (
    *REQUIRED, "bias", "alibi", "mask", "sinks", "keep", "seqlens", "cu_seqlens_q", "cu_seqlens_k", "tau", "lse", "o",
)  # fmt: skip
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
    listed = f"tensors: {', '.join(TENSORS)}; options: {', '.join(OPTIONS)}"
    if unknown := [name for name in content if name not in known]:
        raise UsageFailure(f"unknown name {unknown[0]!r}", listed)
    if missing := [name for name in REQUIRED if name not in content]:
        held = ", ".join(content) or "nothing"
        words = f"a set of inputs needs q, k, v and do; {', '.join(missing)} missing among {held}"
        raise UsageFailure(words, listed)


def checked_option(name: str, value: Any) -> Any:
    """An option's value, as `case.resolve` takes it."""
    words, kind = OPTIONS[name]
    return _converted(value, kind, f"{name} must be {words}, got {value!r}")


def _converted(value: Any, kind: Any, words: str) -> Any:
    import msgspec

    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise UsageFailure(words) from None


def check_dtypes(tensors: Mapping[str, Any]) -> None:
    """Refuses what is no dense tensor of a dtype that its name may have, and q, k, v and do of several dtypes."""
    import torch

    dtypes = dict.fromkeys(TENSORS, (torch.float32, torch.float16, torch.bfloat16))
    dtypes |= dict.fromkeys(WHOLE, (torch.int32, torch.int64))  # type: ignore[arg-type]
    dtypes |= dict.fromkeys(BOOLEAN, (torch.bool,))  # type: ignore[arg-type]
    for name, tensor in tensors.items():
        is_tensor = isinstance(tensor, torch.Tensor)
        is_dense = is_tensor and tensor.layout == torch.strided and not tensor.is_quantized
        if not is_dense or tensor.is_nested or tensor.is_meta:
            got = f"{tensor.layout} on {tensor.device}" if is_tensor else type(tensor).__name__
            raise UsageFailure(f"{name} must be a dense tensor, got {got}")
        if tensor.dtype not in dtypes[name]:
            rule = " or ".join(map(dtype_name, dtypes[name]))
            raise UsageFailure(f"{name} must be {rule}, got {dtype_name(tensor.dtype)}")
    if len({tensors[name].dtype for name in REQUIRED}) > 1:
        listed = ", ".join(f"{name} {dtype_name(tensors[name].dtype)}" for name in REQUIRED)
        words = f"q, k, v and do must have one dtype, got {listed}"
        raise UsageFailure(
            words, "where autocast casts inside the function, keep what it casts to"
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
    if 0 in (*full, q.shape[3], v.shape[3]):
        raise UsageFailure(f"a tensor is empty: q is {list(q.shape)}, v {list(v.shape)}")
    exact: dict[str, tuple[int, ...]] = dict.fromkeys(("tau", "alibi", "sinks"), (x.n_heads,))
    exact |= {"seqlens": (x.n_batch,), "keep": full, "lse": full[:3], "o": tuple(do.shape)}
    for name, shape in exact.items():
        if name in tensors and tensors[name].shape != shape:
            raise UsageFailure(f"{name} must be {list(shape)}, got {list(tensors[name].shape)}")
    for name in broadcast(family):
        got = list(tensors[name].shape) if name in tensors else [1] * 4
        fits = all(size in (1, whole) for size, whole in zip(got, full, strict=False))
        if len(got) != 4 or not fits:
            raise UsageFailure(f"{name} must broadcast to [B, H, M, N] = {list(full)}, got {got}")
    if family == "lazy" and "bias" in tensors:
        bias = list(tensors["bias"].shape)
        if len(bias) != 2 or bias[0] != x.n_heads or not bias[1]:
            words = f"lazy bias must be [H, W] with H = {x.n_heads} and W > 0, got {bias}"
            raise UsageFailure(words)
    ends = {"cu_seqlens_q": x.n_query, "cu_seqlens_k": x.n_key}
    given = [name for name in ends if name in tensors]
    if len(given) == 1:
        words = f"of cu_seqlens_q and cu_seqlens_k there is {given[0]} alone"
        raise UsageFailure(words, "where they are equal, write both")
    for name in given:
        came = tensors[name].tolist()
        is_right = tensors[name].dim() == 1 and len(came) > 1 and came == sorted(came)
        if not is_right or (came[0], came[-1]) != (0, ends[name]):
            words = f"{name} must ascend from 0 to {ends[name]}, got {came}"
            raise UsageFailure(words, "it holds where each sequence begins and the last ends")


def broadcast(family: str) -> tuple[str, ...]:
    """The tensors that have four axes, of which some may be 1."""
    return ("mask", "bias") if family == "softmax" else ("mask",)


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
                first = wrong.nonzero()[0].tolist()
                words = f"{name} holds {int(wrong.sum()):,} NaN or infinite numbers, the first at {first}"
                raise UsageFailure(words, "they were there before the attention backward ran")


def declared_placement(name: str, tensor: Tensor, content: Mapping[str, Any]) -> Placement | None:
    """The placement that a tensor's companions declare; None without them."""
    import msgspec
    import torch

    if f"{name}.strides" not in content:
        return None
    offset, buffer = content.get(f"{name}.offset", 0), content.get(f"{name}.buffer", name)
    whole: Any = Annotated[int, msgspec.Meta(ge=0)]
    shape = tuple(tensor.shape)
    words = (
        f"{name}.strides must be {len(shape)} numbers, one an axis, with a number {name}.offset"
    )
    strides: Any = _converted(content[f"{name}.strides"], list[whole], words)
    offset, buffer = _converted([offset, buffer], tuple[whole, str], words)
    if len(strides) != len(shape):
        raise UsageFailure(f"{words}, got {len(strides)}")
    reach = offset + spanned(shape, strides)
    if reach > max(_MOST_SPANNED, 8 * tensor.numel()):
        words = f"{name}.strides and {name}.offset reach {reach:,} elements far"
        raise UsageFailure(words, f"leave them out, and {name} lies contiguous")
    once = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)]
    repeats = torch.equal(once.expand(shape).nan_to_num(), tensor.nan_to_num())
    if overlaps(shape, strides) or not repeats:
        words = f"{name}.strides put several elements of {name} into one place"
        raise UsageFailure(words, "correct them")
    return Placement(within(shape, tuple(strides)), offset, buffer)
