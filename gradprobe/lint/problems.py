"""Problems to catch launches in: the richest that a target may take, then plainer ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..cases.case import Case
from ..cases.draw import draw
from ..cases.outputs import outputs_of
from ..targets.find import Target

if TYPE_CHECKING:
    from torch import Tensor

# Sizes that differ, none with a prime factor of strides.BEYOND or more; then what many kernels ask for.
_SIZES: dict[str, Any] = {"batch": 2, "heads": 6, "kv_heads": 3, "seqlen_q": 20, "seqlen_k": 28}
_SIZES |= {"head_dim": 24, "head_dim_v": 40, "block_m": 16, "block_n": 16}
_LENGTHS_ALIKE = {"seqlen_q": 28}
_DIMS_ALIKE = {"head_dim": 32, "head_dim_v": 32}
_ROUND = {"seqlen_q": 128, "seqlen_k": 128, "head_dim": 64, "head_dim_v": 64, "block_m": 32, "block_n": 32}
_PLAIN: dict[str, Any] = dict.fromkeys(("window", "softcap", "mask", "seqlens", "cu_seqlens_q", "cu_seqlens_k"))
_PLAIN |= {"bias": False, "alibi": False, "sinks": False, "dropout": 0.0}


def problems(target: Target, case: Case) -> Iterator[Case]:
    """Cases from the richest on, without values; the last one is the case itself."""
    base = replace(case, inputs=None, layouts=(), runs=(), taps=(), repeat=1, schedules=0, pattern="normal", **_PLAIN)
    rich, plain = _options(target, case), {"bias": case.bias} if case.family == "lazy" else {}
    if case.family == "lazy":
        steps: list[dict[str, Any]] = [{**_SIZES, "kv_heads": 6, **_LENGTHS_ALIKE, "head_dim_v": 24}]
        steps.append({**steps[0], **_DIMS_ALIKE, **_ROUND})
    else:
        steps = [_SIZES, _SIZES | {"kv_heads": 6}, _SIZES | _LENGTHS_ALIKE]
        steps += [_SIZES | _LENGTHS_ALIKE | _DIMS_ALIKE, _SIZES | _DIMS_ALIKE | {"kv_heads": 6} | _LENGTHS_ALIKE]
        steps.append(_SIZES | _DIMS_ALIKE | _ROUND | {"kv_heads": 6})
    if target.packs:
        packed = {"batch": 1, "seqlen_q": 28, "cu_seqlens_q": (0, 13, 28), "cu_seqlens_k": (0, 13, 28)}
        steps = [sizes | packed for sizes in steps[:-1]]
    for options in [rich, plain] if rich != plain else [plain]:
        for sizes in steps:
            yield _sized(base, sizes | options)
    if case.dtype == "float32":  # which many take in no case
        yield from (_sized(base, sizes | plain | {"dtype": "float16"}) for sizes in steps[-2:])
    if case.inputs is None:
        yield replace(case, layouts=(), runs=(), taps=(), repeat=1)


def padded(case: Case) -> Case:
    """The same with sequences of two lengths, which needs as many keys as rows."""
    length = case.seqlen_q
    return replace(case, seqlen_k=length, seqlens=tuple(length - 3 * batch for batch in range(case.batch)))


def values_of(target: Target, case: Case) -> dict[str, Tensor]:
    """Values of a case, contiguous, on its device. O, LSE and delta hold no more than numbers of their shapes."""
    import torch

    values = draw(case)
    for name in ("o", "lse", "delta"):
        if name in target.takes:
            dtype = values["q"].dtype if name == "o" else torch.float32
            values[name] = torch.ones([case.size(axis) for axis in case.input_axes(name)], dtype=dtype)
    values = {name: value.to(case.device) for name, value in values.items()}
    return {**values, **outputs_of(case, target.outputs, values, 0.0)}


def _options(target: Target, case: Case) -> dict[str, Any]:
    """Everything optional that brings a tensor, as far as the target has a parameter for it."""
    takes = target.takes
    options: dict[str, Any] = {"bias": "bias" in takes}
    if case.family == "lazy":
        return options
    options |= {"alibi": "alibi" in takes, "sinks": "sinks" in takes}
    options |= {"bias_axes": "bhmn"} if case.bias_rank == 4 else {}
    options |= {"mask": "random"} if "mask" in takes else {}
    return options | ({"dropout": 0.25} if "keep" in takes else {})


def _sized(case: Case, options: dict[str, Any]) -> Case:
    case = replace(case, **options)
    tau = None if case.tau is None else tuple((case.tau * case.heads)[: case.heads])
    return replace(case, tau=tau, scale=case.head_dim**-0.5, bias_window=13)
