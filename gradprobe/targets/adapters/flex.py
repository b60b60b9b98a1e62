"""PyTorch's FlexAttention: compiled on a GPU, its plain operations on the CPU.

Sinks are not offered: they would be a factor of O after the kernel, one rounding to 16 bits more than a kernel needs.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from .sdpa import Visibility


def flex(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, softcap: float | None = None, bias: Tensor | None = None,
    alibi: Tensor | None = None, mask: Tensor | None = None, seqlens: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """O [B, H, M, Dv] and LSE [B, H, M]."""
    batch, heads, rows, keys = full = (*q.shape[:3], k.shape[2])
    hidden = (causal, align, window, mask, seqlens, cu_seqlens_q, cu_seqlens_k)
    view = Visibility(rows, keys, q.device, *hidden)
    block_mask = None
    if causal or view.hides_by_more:
        mask_mod = _mask_mod(view, None if mask is None else mask.expand(full))
        block_mask = create_block_mask(mask_mod, batch, heads, rows, keys, q.device)
    score_mod = _score_mod(view, softcap, None if bias is None else bias.expand(full), alibi)
    given = [isinstance(option, Tensor) or option for option in (*hidden, softcap, bias, alibi)]
    attention = _attention(q.device, (q.shape, k.shape, v.shape, q.dtype, *given))
    how = {"scale": scale, "enable_gqa": heads != k.shape[1], "return_aux": AuxRequest(lse=True)}
    o, aux = attention(q, k, v, score_mod=score_mod, block_mask=block_mask, **how)
    return {"O": o, "LSE": aux.lse}


# What the two functions close over are tensors of one axis, numbers, and the dense tensors of the problem: the compiler
# takes nothing else, and a matrix made of the others would need more shared memory than there is.
def _mask_mod(view: Visibility, mask: Tensor | None) -> Callable[..., Tensor]:
    diagonal, places, (left, right) = view.diagonal(), view.places(), view.limits()
    of_row, of_key = view.sequence_of_rows(), view.sequence_of_keys()
    ends, is_packed = view.seqlens, view.cu_seqlens_q is not None

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = diagonal[i] - places[j]
        seen = (distance <= left) & (distance >= -right)
        if mask is not None:
            seen = seen & mask[b, h, i, j]
        if ends is not None:
            seen = seen & (i < ends[b]) & (j < ends[b])
        return seen & (of_row[i] == of_key[j]) if is_packed else seen

    return mask_mod


def _score_mod(
    view: Visibility, softcap: float | None, bias: Tensor | None, alibi: Tensor | None
) -> Callable[..., Tensor] | None:
    if softcap is None and bias is None and alibi is None:
        return None
    diagonal, places = view.diagonal(), view.places()

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is not None:
            score = score + bias[b, h, i, j]
        return score if alibi is None else score - alibi[h] * (diagonal[i] - places[j]).abs()

    return score_mod


_compiled_for: list[object] = []


def _attention(device: torch.device, problem: object) -> Callable[..., Any]:
    """flex_attention, compiled on a GPU.

    What was compiled for another problem is forgotten first. The compiler gives up after some number of variants, and
    it traces even the plain operations, which fails at a second softcap.
    """
    if _compiled_for != [problem]:
        torch.compiler.reset()
        _compiled_for[:] = [problem]
    return _eager if device.type == "cpu" else _compiled()


def _eager(*args: Any, **options: Any) -> Any:
    """Runs flex_attention uncompiled. Its plain operations have a backward; PyTorch's check refuses it on the CPU."""
    check, module._validate_device = module._validate_device, lambda *_: None
    try:
        with warnings.catch_warnings():
            words = "flex_attention called without torch.compile"
            warnings.filterwarnings("ignore", message=words)
            return flex_attention(*args, **options)
    finally:
        module._validate_device = check


@functools.cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)
