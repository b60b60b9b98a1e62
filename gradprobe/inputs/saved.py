"""Saved: a set of inputs in a file, with the layout of each tensor. Only tensors are ever unpickled."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..model.case import flag_of
from ..model.failures import UsageFailure
from ..model.writing import replacing
from . import contents
from .contents import OPTIONS, REQUIRED, TENSORS
from .draw import numbers_of
from .placement import Placement, in_words, placements_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SavedInputs:
    values: Mapping[str, Tensor]
    """By name, contiguous, on the CPU; mask and the softmax family's bias with four axes."""
    placements: Mapping[str, Placement]
    options: Mapping[str, Any]
    """Those of `contents.OPTIONS` that are known."""


def layouts_in_words(saved: SavedInputs) -> str:
    """The layouts of q, k, v and do: "q k v blhd, do expanded"; packed where they share a buffer."""
    found: dict[str, list[str]] = {}
    buffers = [place.buffer for place in saved.placements.values()]
    for name in REQUIRED:
        place = saved.placements.get(name)
        words = in_words(tuple(saved.values[name].shape), place)
        if place is not None and buffers.count(place.buffer) > 1:
            words = "packed"
        found.setdefault(words, []).append(name)
    return ", ".join(f"{' '.join(names)} {words}" for words, names in found.items())


def save(path: Path, saved: SavedInputs) -> None:
    """Writes a set, .npz or .pt by the path's ending; a reader sees the whole file or none.

    Values are written contiguous, however far apart they lay. `q.strides` and `q.offset`, in elements, say where, and
    tensors with the same word in `q.buffer` lay in one buffer. .npz holds bfloat16 as the uint16 of its bits, and
    `q.dtype` says so.
    """
    import torch

    content: dict[str, Any] = {**saved.options, **saved.values}
    for name, place in saved.placements.items():
        content |= {f"{name}.strides": list(place.strides), f"{name}.offset": place.offset}
        content[f"{name}.buffer"] = place.buffer
    with replacing(path) as stream:
        _write_npz(stream, content) if path.suffix == ".npz" else torch.save(content, stream)


def _write_npz(stream: IO[bytes], content: dict[str, Any]) -> None:
    import numpy as np
    import torch

    arrays: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
            arrays[name] = value.view(torch.int16).numpy().view(np.uint16)
            arrays[f"{name}.dtype"] = np.array("bfloat16")
        else:
            arrays[name] = np.asarray(value)
    np.savez(stream, allow_pickle=False, **arrays)


def load(word: str) -> SavedInputs:
    """The set in the file that a word names.

    Raises:
        UsageFailure: the file is not there or not one; it holds anything but tensors and plain values; a tensor is
            missing, unknown or of a wrong shape or dtype; or one holds numbers that are not finite.
    """
    try:
        return _sound(_read(Path(word)))
    except UsageFailure as failure:
        raise UsageFailure(f"--inputs {word}: {failure}", failure.way_out) from failure


def _read(path: Path) -> dict[Any, Any]:
    if not os.path.isfile(path):  # which is no error for a name too long to be one
        raise UsageFailure("there is no such file", "the path is relative to the current folder")
    readers = {".npz": _read_npz, ".pt": _read_pt}
    if path.suffix not in readers:
        got = path.suffix or "no ending"
        raise UsageFailure(f"the name must end in .npz or .pt, got {got}")
    try:
        content = readers[path.suffix](path)
    except UsageFailure:
        raise
    except Exception as error:  # a broken file fails in as many ways as it can be broken
        # PyTorch's errors go on for a page.
        line = (str(error).strip().splitlines() or [""])[0].partition(". ")[0]
        words = f"cannot be read as tensors alone ({type(error).__name__}: {line[:200]})"
        way_out = "write it with torch.save of a dict of tensors and plain numbers, or numpy.savez of arrays"
        raise UsageFailure(words, f"{way_out}; anything else is never unpickled") from error
    if not isinstance(content, dict):
        got = type(content).__name__
        raise UsageFailure(f"it must hold a dict of tensors by name, got {got}")
    return content


def _read_pt(path: Path) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True)


def _read_npz(path: Path) -> dict[str, Any]:
    import numpy as np

    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return {name: _from_numpy(name, arrays) for name in arrays if not name.endswith(".dtype")}


def _from_numpy(name: str, arrays: Mapping[str, Any]) -> Any:
    import numpy as np
    import torch

    array = np.asarray(arrays[name])
    if name not in TENSORS:
        return array.tolist()
    if f"{name}.dtype" in arrays:
        if str(arrays[f"{name}.dtype"]) != "bfloat16" or array.dtype != np.uint16:
            words = f"{name}.dtype may only be bfloat16, beside the uint16 of {name}'s bits"
            raise UsageFailure(words)
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _sound(content: dict[Any, Any]) -> SavedInputs:
    contents.check_names(content)
    options = {
        name: contents.checked_option(name, content[name]) for name in OPTIONS if name in content
    }
    tensors = {name: content[name] for name in TENSORS if name in content}
    contents.check_dtypes(tensors)
    placements = placements_of(tensors)
    for name, tensor in tensors.items():
        if (declared := contents.declared_placement(name, tensor, content)) is not None:
            placements[name] = declared
    family = options.get("family", "lazy" if "tau" in tensors else "softmax")
    for name in contents.broadcast(family):
        if name in tensors and (more := 4 - tensors[name].dim()) > 0:
            tensors[name] = tensors[name][(None,) * more]
            if (place := placements.get(name)) is not None:
                placements[name] = replace(place, strides=(0,) * more + place.strides)
    contents.check_shapes(tensors, family)
    contents.check_finite(tensors)
    values = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    return SavedInputs(values, placements, options)


# What only values that are drawn have.
_OF_DRAWING = ("seed", "pattern", "bias_axes", "mask_axes", "bias_window")
# The tensors whose presence an option of the same name switches on.
_SWITCHES = ("bias", "alibi", "sinks")


def with_inputs(
    given: Mapping[str, Any], saved: SavedInputs, word: str, family: str
) -> dict[str, Any]:
    """The options of a case on saved inputs, for `case.resolve`.

    Args:
        given: the options of the command line, parsed.
        word: the file, as it was written.
        family: of the target.

    Raises:
        UsageFailure: an option contradicts the inputs, or they lack what it needs.
    """
    decided, subject = _decided(saved, family), f"--inputs {word}"
    own = saved.options.get("family") or ("lazy" if "tau" in saved.values else family)
    if own != family:
        words = f"{subject}: inputs of the {own} family, and the target is of the {family} family"
        raise UsageFailure(words, f"check a target of the {own} family")
    for name, value in given.items():
        _check_agrees(name, value, decided, word)
    options = {name: value for name, value in given.items() if name != "seqlen"} | decided
    if family == "lazy" and "tau" not in options:
        words = f"{subject}: the lazy family needs tau, which it does not hold"
        raise UsageFailure(words, "add --tau T")
    if options.get("dropout") and "keep" not in saved.values:
        words = f"{subject}: it has no keep, the mask of what dropout kept"
        raise UsageFailure(words, "save keep [B, H, M, N] with it, or use no dropout")
    return options | {"inputs": word}


def _check_agrees(name: str, value: Any, decided: Mapping[str, Any], word: str) -> None:
    flag, way_out = flag_of(name), "drop it, or drop --inputs"
    if name in _OF_DRAWING or (name == "mask" and "mask" not in decided):
        words = f"{flag}: nothing is drawn, the values come from {word}"
        raise UsageFailure(words, way_out)
    for decided_name in ("seqlen_q", "seqlen_k") if name == "seqlen" else (name,):
        own = decided.get(decided_name, value)
        if isinstance(own, bool) and own != value:
            words = f"{flag if value else f'--no-{flag[2:]}'} contradicts {word}, which has "
            raise UsageFailure(words + (name if own else f"no {name}"), way_out)
        if not _same(own, value):
            words = f"{flag} {_listed(value)} contradicts {word}, where it is {_listed(own)}"
            raise UsageFailure(words, way_out)


def _same(decided: Any, value: Any) -> bool:
    if isinstance(decided, float) and isinstance(value, (int, float)):
        return math.isclose(decided, value, rel_tol=1e-6)
    return bool(decided == value)


def _listed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _decided(saved: SavedInputs, family: str) -> dict[str, Any]:
    values = saved.values
    batch, heads, rows, dim = values["q"].shape
    _, kv_heads, keys, value_dim = values["v"].shape
    decided = {name: value for name, value in saved.options.items() if name != "family"}
    decided |= {"batch": batch, "heads": heads, "head_dim": dim}
    decided |= {"seqlen_q": rows, "seqlen_k": keys}
    decided |= {"dtype": contents.dtype_name(values["q"].dtype), "bias": "bias" in values}
    if family == "lazy" and (kv_heads, value_dim) == (heads, dim):
        decided |= {"bias_window": values["bias"].shape[1]} if "bias" in values else {}
    else:
        decided |= {"kv_heads": kv_heads, "head_dim_v": value_dim}
        switches = [name for name in _SWITCHES if family == "softmax" or name in values]
        decided |= {name: name in values for name in switches}
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
    """The axes that a bias or a mask of four axes has. One of size 1 is none."""
    return "".join(letter for letter, size in zip("bhmn", tensor.shape, strict=True) if size > 1)


def values_of(saved: SavedInputs, case: Any) -> dict[str, Any]:
    """The values of a case on saved inputs: theirs, and what the command line gave as numbers."""
    own = {"tau": saved.values["tau"]} if "tau" in saved.values else {}
    return {**saved.values, **numbers_of(case), **own}
