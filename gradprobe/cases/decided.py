"""What a set of inputs decides of its case, and which options of the command line it leaves open."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..failures import UsageFailure
from .contents import dtype_name
from .saved import Saved

# What only values that are drawn have.
_OF_DRAWING = ("seed", "pattern", "bias_axes", "mask_axes", "bias_window")
# The tensors whose presence an option of the same name switches on.
_SWITCHES = ("bias", "alibi", "sinks")


def with_inputs(given: Mapping[str, Any], saved: Saved, word: str, family: str) -> dict[str, Any]:
    """The options of a case on saved inputs, for `case.resolve`.

    Args:
        given: the options of the command line, parsed.
        word: the file, as it was written.
        family: of the target.

    Raises:
        UsageFailure: an option contradicts the inputs, or they lack what it needs.
    """
    decided = _decided(saved, family)
    _check_family(saved, word, family)
    for name, value in given.items():
        _check_agrees(name, value, decided, word)
    left = {name: value for name, value in given.items() if name != "seqlen"}
    if family == "lazy" and "tau" not in {**left, **decided}:
        raise UsageFailure(f"--inputs {word}: the lazy family needs tau, which it does not hold", "add --tau T")
    if {**left, **decided}.get("dropout") and "keep" not in saved.values:
        raise UsageFailure(
            f"--inputs {word}: it has no keep, the mask of what dropout kept",
            "save keep [B, H, M, N] with it, or use no dropout",
        )
    return {**left, **decided, "inputs": word}


def _check_family(saved: Saved, word: str, family: str) -> None:
    own = saved.options.get("family") or ("lazy" if "tau" in saved.values else None)
    if own is not None and own != family:
        raise UsageFailure(
            f"--inputs {word}: inputs of the {own} family, and the target is of the {family} family",
            f"check a target of the {own} family",
        )


def _check_agrees(name: str, value: Any, decided: Mapping[str, Any], word: str) -> None:
    flag = "--" + name.replace("_", "-")
    if name in _OF_DRAWING or (name == "mask" and "mask" not in decided):
        raise UsageFailure(f"{flag}: nothing is drawn, the values come from {word}", "drop it, or drop --inputs")
    for decided_name in ("seqlen_q", "seqlen_k") if name == "seqlen" else (name,):
        if decided_name in decided and not _same(decided[decided_name], value):
            raise UsageFailure(
                f"{_words(flag, value)} contradicts {word}, {_has(decided_name, decided[decided_name])}",
                "drop it, or drop --inputs",
            )


def _same(decided: Any, value: Any) -> bool:
    if isinstance(decided, float) and isinstance(value, (int, float)):
        return math.isclose(decided, value, rel_tol=1e-6)
    return bool(decided == value)


def _words(flag: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag if value else "--no-" + flag[2:]
    return f"{flag} {','.join(map(str, value)) if isinstance(value, tuple) else value}"


def _has(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"which has {name if value else 'no ' + name}"
    return f"where it is {','.join(map(str, value)) if isinstance(value, tuple) else value}"


def _decided(saved: Saved, family: str) -> dict[str, Any]:
    values = saved.values
    batch, heads, rows, dim = values["q"].shape
    _, kv_heads, keys, value_dim = values["v"].shape
    decided: dict[str, Any] = {name: value for name, value in saved.options.items() if name != "family"}
    decided |= {"batch": batch, "heads": heads, "seqlen_q": rows, "seqlen_k": keys, "head_dim": dim}
    decided |= {"dtype": dtype_name(values["q"].dtype), "bias": "bias" in values}
    if family == "lazy" and (kv_heads, value_dim) == (heads, dim):
        decided |= {"bias_window": values["bias"].shape[1]} if "bias" in values else {}
    else:
        decided |= {"kv_heads": kv_heads, "head_dim_v": value_dim}
        decided |= {name: name in values for name in _SWITCHES if family == "softmax" or name in values}
    decided |= {"bias_axes": _axes(values["bias"])} if family == "softmax" and "bias" in values else {}
    decided |= {"mask": "given", "mask_axes": _axes(values["mask"])} if "mask" in values else {}
    for name, option in (("tau", "tau"), ("seqlens", "seqlens"), ("cu_seqlens_q", "cu_seqlens")):
        decided |= {option: tuple(values[name].tolist())} if name in values else {}
    decided |= {"cu_seqlens_k": tuple(values["cu_seqlens_k"].tolist())} if "cu_seqlens_k" in values else {}
    return decided


def _axes(tensor: Any) -> str:
    """The axes that a bias or a mask of four axes has. One of size 1 is none."""
    return "".join(letter for letter, size in zip("bhmn", tensor.shape, strict=True) if size > 1)


def values_of(saved: Saved, case: Any) -> dict[str, Any]:
    """The values of a case on saved inputs: theirs, and what the command line gave as numbers."""
    import torch

    values = dict(saved.values)
    if case.tau is not None and "tau" not in values:
        values["tau"] = torch.tensor(case.tau, dtype=torch.float32)
    for name in ("seqlens", "cu_seqlens_q", "cu_seqlens_k"):
        if getattr(case, name) is not None:
            values[name] = torch.tensor(getattr(case, name), dtype=torch.int32)
    return values
