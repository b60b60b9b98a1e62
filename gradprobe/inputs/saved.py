"""SavedInputs: inputs in a file, and how they lie. Only tensors are ever unpickled."""

from __future__ import annotations

import math
import os
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..model.assignment import spanned
from ..model.case import flag_of
from ..model.failures import UsageFailure, refuse_if
from ..model.writing import replacing
from .draw import numbers_of
from .options import flags
from .tensor_layouts import Placement, overlaps, placements_of, within

if TYPE_CHECKING:
    from torch import Tensor

REQUIRED = ("q", "k", "v", "do")
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
# Elements that a tensor may span, or eight times its own: the strides of a broken file must not take all memory.
_MOST_SPANNED = 1 << 28


@dataclass(frozen=True)
class SavedInputs:
    values: Mapping[str, Tensor]
    """Contiguous, on the CPU; mask and the softmax family's bias with four axes."""
    placements: Mapping[str, Placement]
    options: Mapping[str, Any]


def save(path: Path, saved: SavedInputs) -> None:
    """As a .pt file, whole or none; `q.strides` and `q.offset`, in elements, say how q lay."""
    import torch

    content: dict[str, Any] = {**saved.options, **saved.values}
    for name, place in saved.placements.items():
        content |= {f"{name}.strides": list(place.strides), f"{name}.offset": place.offset}
    with replacing(path) as stream:
        torch.save(content, stream)


def load(word: str) -> SavedInputs:
    """Raises UsageFailure: it holds none, or what cannot be computed with."""
    try:
        return _checked(_read(Path(word)))
    except UsageFailure as failure:
        raise UsageFailure(f"--inputs {word}: {failure}", failure.way_out) from failure


def _read(path: Path) -> dict[Any, Any]:
    # os.path: a name too long to be one is no error.
    way_out = "the path is relative to the current folder"
    refuse_if(not os.path.isfile(path), "there is no such file", way_out)
    got = path.suffix or "no ending"
    refuse_if(got not in (".npz", ".pt"), f"the name must end in .npz or .pt, got {got}")
    content: Any = None
    try:
        if got == ".npz":
            content = _read_npz(path)
        else:
            import torch

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # as many ways as it can be broken
        # PyTorch's errors go on for a page.
        line = (str(error).strip().splitlines() or [""])[0].partition(". ")[0]
        words = f"cannot be read as tensors alone ({type(error).__name__}: {line[:200]})"
        way_out = "write a dict with torch.save, or arrays with numpy.savez"
        raise UsageFailure(words, f"{way_out}; anything else is never unpickled") from error
    if not isinstance(content, dict):
        got = type(content).__name__
        raise UsageFailure(f"it must hold a dict of tensors by name, got {got}")
    return content


def _read_npz(path: Path) -> dict[str, Any]:
    import numpy as np
    import torch

    found = dict[str, Any]()
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        for name in file.files:
            array = file[name]
            native = array.astype(array.dtype.newbyteorder("="), copy=False)
            found[name] = torch.from_numpy(native) if name in TENSORS else array.tolist()
    return found


def _checked(content: dict[Any, Any]) -> SavedInputs:
    _check_names(content)
    options = {
        name: _converted(content[name], kind, f"{name} must be {words}, got {content[name]!r}")
        for name, (words, kind) in OPTIONS.items()
        if name in content
    }
    tensors = {name: content[name] for name in TENSORS if name in content}
    _check_dtypes(tensors)
    placements = placements_of(tensors)
    for name, tensor in tensors.items():
        if f"{name}.strides" in content:
            placements[name] = _declared_placement(name, tensor, content)
    family = options.get("family", "lazy" if "tau" in tensors else "softmax")
    for name in _broadcast(family):
        if name in tensors and (more := 4 - tensors[name].dim()) > 0:
            tensors[name] = tensors[name][(None,) * more]
            if (place := placements.get(name)) is not None:
                placements[name] = replace(place, strides=(0,) * more + place.strides)
    _check_shapes(tensors, family)
    _check_finite(tensors)
    values = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    return SavedInputs(values, placements, options)


def _check_names(content: Mapping[Any, Any]) -> None:
    known = {*TENSORS, *OPTIONS}
    known |= {f"{name}.{of}" for name in TENSORS for of in ("strides", "offset")}
    listed = f"tensors: {', '.join(TENSORS)}; options: {', '.join(OPTIONS)}"
    for name in content:
        refuse_if(name not in known, f"unknown name {name!r}", listed)
    missing = ", ".join(name for name in REQUIRED if name not in content)
    words = f"inputs need q, k, v and do; {missing} missing among "
    refuse_if(bool(missing), words + (", ".join(content) or "nothing"), listed)


def _converted(value: Any, kind: Any, words: str) -> Any:
    import msgspec

    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise UsageFailure(words) from None


def _check_dtypes(tensors: Mapping[str, Any]) -> None:
    import torch

    lengths, whole = ("seqlens", "cu_seqlens_q", "cu_seqlens_k"), (torch.int32, torch.int64)
    others: dict[str, tuple[Any, ...]] = dict.fromkeys(lengths, whole)
    others |= dict.fromkeys(("mask", "keep"), (torch.bool,))
    for name, tensor in tensors.items():
        is_tensor = isinstance(tensor, torch.Tensor)
        is_dense = is_tensor and tensor.layout == torch.strided and not tensor.is_quantized
        if not is_dense or tensor.is_nested or tensor.is_meta:
            got = f"{tensor.layout} on {tensor.device}" if is_tensor else type(tensor).__name__
            raise UsageFailure(f"{name} must be a dense tensor, got {got}")
        known = others.get(name, (torch.float32, torch.float16, torch.bfloat16))
        rule, got = " or ".join(map(_dtype_name, known)), _dtype_name(tensor.dtype)
        refuse_if(tensor.dtype not in known, f"{name} must be {rule}, got {got}")
    dtypes = {name: _dtype_name(tensors[name].dtype) for name in REQUIRED}
    listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
    words = f"q, k, v and do must have one dtype, got {listed}"
    way_out = "keep what autocast casts to"
    refuse_if(len({*dtypes.values()}) > 1, words, way_out)


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _check_shapes(tensors: Mapping[str, Tensor], family: str) -> None:
    from ..reference import Attention

    given: dict[str, Any] = {name: tensors[name] for name in tensors if name not in ("o", "lse")}
    q, v, do = given["q"], given["v"], given["do"]
    if family == "lazy":
        given = {"tau": q.new_zeros(q.shape[1:2])} | given
    given |= {"scale": 1.0, "causal": family == "lazy", "dropout": 0.5 * ("keep" in given)}
    try:
        Attention(family, **given)
    except ValueError as error:
        raise UsageFailure(str(error)) from error
    words = f"a tensor is empty: q is {list(q.shape)}, v {list(v.shape)}"
    refuse_if(0 in (*q.shape, *v.shape), words)
    for name, shape in {"lse": q.shape[:3], "o": do.shape}.items():
        got = tensors[name].shape if name in tensors else shape
        refuse_if(got != shape, f"{name} must be {list(shape)}, got {list(got)}")


def _broadcast(family: str) -> tuple[str, ...]:
    return ("mask", "bias") if family == "softmax" else ("mask",)


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    """But -inf in a bias, and what lies beyond a live length."""
    import torch

    for name in filter(tensors.__contains__, (*REQUIRED, "bias", "alibi", "sinks", "tau")):
        wrong = ~tensors[name].isfinite()
        wrong &= tensors[name] != -torch.inf if name == "bias" else True
        if name in REQUIRED and "seqlens" in tensors:
            live = torch.arange(tensors[name].shape[2]) < tensors["seqlens"][:, None]
            wrong &= live[:, None, :, None]
        count, first = int(wrong.sum()), wrong.nonzero()[:1].flatten().tolist()
        words = f"{name} holds {count:,} NaN or infinite numbers, the first at {first}"
        refuse_if(count > 0, words, "they were there before the backward ran")


def _declared_placement(name: str, tensor: Tensor, content: Mapping[str, Any]) -> Placement:
    import msgspec
    import torch

    shape, whole = tuple(tensor.shape), Annotated[int, msgspec.Meta(ge=0)]
    words = f"{name}.strides must be {len(shape)} numbers, with a number {name}.offset"
    strides: Any = _converted(content[f"{name}.strides"], list[whole], words)  # type: ignore[valid-type]
    offset = _converted(content.get(f"{name}.offset", 0), whole, words)
    refuse_if(len(strides) != len(shape), f"{words}, got {len(strides)}")
    reach = offset + spanned(shape, strides)
    words = f"{name}.strides and {name}.offset reach {reach:,} elements far"
    way_out = f"leave them out, and {name} lies contiguous"
    refuse_if(reach > max(_MOST_SPANNED, 8 * tensor.numel()), words, way_out)
    once = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)]
    repeats = torch.equal(once.expand(shape).nan_to_num(), tensor.nan_to_num())
    words = f"{name}.strides put several elements of {name} into one place"
    refuse_if(overlaps(shape, strides) or not repeats, words)
    return Placement(within(shape, tuple(strides)), offset, name)


# What only values that are drawn have.
_OF_DRAWING = ("seed", "pattern", "bias_axes", "mask_axes", "bias_window")


def with_inputs(
    given: Mapping[str, Any], saved: SavedInputs, word: str, family: str
) -> dict[str, Any]:
    """The options of a case on inputs saved in the file `word`. Raises UsageFailure: they contradict it."""
    decided, subject = _decided(saved, family), f"--inputs {word}"
    own = saved.options.get("family") or ("lazy" if "tau" in saved.values else family)
    words = f"{subject}: inputs of the {own} family, and the target is of the {family} family"
    refuse_if(own != family, words, f"check a target of the {own} family")
    for name, value in given.items():
        flag, way_out = shlex.join(flags({name: _listed(value)})), "drop it, or drop --inputs"
        is_drawn = name in _OF_DRAWING or (name == "mask" and "mask" not in decided)
        words = f"{flag_of(name)}: nothing is drawn, the values come from {word}"
        refuse_if(is_drawn, words, way_out)
        for decided_name in ("seqlen_q", "seqlen_k") if name == "seqlen" else (name,):
            own = decided.get(decided_name, value)
            words = f"{flag} contradicts {word}, where it is {_listed(own)}"
            is_same = own == value
            if isinstance(own, float):
                is_same = math.isclose(own, value, rel_tol=1e-6)
            refuse_if(not is_same, words, way_out)
    options = {name: value for name, value in given.items() if name != "seqlen"} | decided
    words = f"{subject}: the lazy family needs tau, which it does not hold"
    refuse_if(family == "lazy" and "tau" not in options, words, "add --tau T")
    words = f"{subject}: it has no keep, the mask of what dropout kept"
    way_out = "save keep [B, H, M, N] with it, or use no dropout"
    refuse_if(bool(options.get("dropout")) and "keep" not in saved.values, words, way_out)
    return options | {"inputs": word}


def _listed(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def _decided(saved: SavedInputs, family: str) -> dict[str, Any]:
    values = saved.values
    batch, heads, rows, dim = values["q"].shape
    _, kv_heads, keys, value_dim = values["v"].shape
    decided = {name: value for name, value in saved.options.items() if name != "family"} | {
        "batch": batch, "heads": heads, "head_dim": dim, "seqlen_q": rows, "seqlen_k": keys,
        "dtype": _dtype_name(values["q"].dtype), "bias": "bias" in values,
    }  # fmt: skip
    if family == "lazy" and (kv_heads, value_dim) == (heads, dim):
        decided |= {"bias_window": values["bias"].shape[1]} if "bias" in values else {}
    else:
        decided |= {"kv_heads": kv_heads, "head_dim_v": value_dim}
        for name in ("bias", "alibi", "sinks"):
            if family == "softmax" or name in values:
                decided[name] = name in values
    if family == "softmax" and "bias" in values:
        decided["bias_axes"] = _axes(values["bias"])
    if "mask" in values:
        decided |= {"mask": "given", "mask_axes": _axes(values["mask"])}
    for name in ("tau", "seqlens", "cu_seqlens_q", "cu_seqlens_k"):
        if name in values:
            option = "cu_seqlens" if name == "cu_seqlens_q" else name
            decided[option] = tuple(values[name].tolist())
    return decided


def _axes(tensor: Any) -> str:
    return "".join(letter for letter, size in zip("bhmn", tensor.shape, strict=True) if size > 1)


def values_of(saved: SavedInputs, case: Any) -> dict[str, Any]:
    own = {"tau": saved.values["tau"]} if "tau" in saved.values else {}
    return {**saved.values, **numbers_of(case), **own}
