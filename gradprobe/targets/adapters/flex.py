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
from torch.nn.attention.flex_attention import (
    AuxRequest,
    and_masks,
    create_block_mask,
    flex_attention,
)

from .visibility import Visibility

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Distance = Callable[[Tensor, Tensor], Tensor]


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = False,
    align: str = "bottom-right",
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    mask: Tensor | None = None,
    seqlens: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
) -> dict[str, Tensor]:
    """O [B, H, M, Dv] and LSE [B, H, M]."""
    (batch, heads, rows, _), keys = q.shape, k.shape[2]
    full = (batch, heads, rows, keys)
    mask = None if mask is None else mask.expand(full)
    view = Visibility(
        rows, keys, q.device, causal, align, window, mask, seqlens, cu_seqlens_q, cu_seqlens_k
    )
    distance = _distance(view)
    masks = _mask_mods(view, distance)
    own = (softcap, bias is None, alibi is None, view.options())
    attention = _attention(q.device, (q.shape, k.shape, v.shape, q.dtype, *own))
    bias = None if bias is None else bias.expand(full)
    block_mask = None
    if masks:
        block_mask = create_block_mask(and_masks(*masks), *full, device=q.device)
    o, aux = attention(
        q,
        k,
        v,
        score_mod=_score_mod(distance, softcap, bias, alibi),
        block_mask=block_mask,
        scale=scale,
        enable_gqa=heads != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    return {"O": o, "LSE": aux.lse}


def _distance(view: Visibility) -> Distance:
    """A function that gives how far key j lies before the diagonal of row i."""
    if view.cu_seqlens_q is None:
        shift = view.keys - view.rows if view.align == "bottom-right" else 0
        return lambda i, j: i + shift - j
    diagonal, places = view.diagonal(), view.places()
    return lambda i, j: diagonal[i] - places[j]


def _score_mod(
    distance: Distance, softcap: float | None, bias: Tensor | None, alibi: Tensor | None
) -> ScoreMod | None:
    if softcap is None and bias is None and alibi is None:
        return None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if bias is not None:
            score = score + bias[b, h, i, j]
        if alibi is not None:
            score = score - alibi[h] * distance(i, j).abs()
        return score

    return score_mod


def _mask_mods(view: Visibility, distance: Distance) -> list[MaskMod]:
    """One function for each rule. They close over tensors and numbers only, as the compiler needs."""
    mods: list[MaskMod] = []
    if view.causal:
        mods.append(lambda b, h, i, j: distance(i, j) >= 0)
    left, right = view.window or (-1, -1)
    if left >= 0:
        mods.append(lambda b, h, i, j: distance(i, j) <= left)
    if right >= 0:
        mods.append(lambda b, h, i, j: distance(i, j) >= -right)
    if view.mask is not None:
        mask = view.mask
        mods.append(lambda b, h, i, j: mask[b, h, i, j])
    if view.seqlens is not None:
        ends = view.seqlens
        mods.append(lambda b, h, i, j: (i < ends[b]) & (j < ends[b]))
    if view.cu_seqlens_q is not None:
        of_row, of_key = view.sequence_of_rows(), view.sequence_of_keys()
        mods.append(lambda b, h, i, j: of_row[i] == of_key[j])
    return mods


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
            warnings.filterwarnings(
                "ignore", message="flex_attention called without torch.compile"
            )
            return flex_attention(*args, **options)
    finally:
        module._validate_device = check


@functools.cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)
