"""FlashAttention 2 by the package flash-attn, written against the signatures of version 2.8.4."""

from __future__ import annotations

import torch
from flash_attn import flash_attn_func, flash_attn_varlen_func
from torch import Tensor


def flash_attn(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, align: str = "bottom-right",
    window: tuple[int, int] | None = None, softcap: float | None = None, alibi: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """O [B, H, M, D], and LSE [B, H, M] where it is the whole one.

    Raises:
        ValueError: a dtype or an alignment of the diagonal that flash-attn does not have.
    """
    if q.dtype not in (torch.float16, torch.bfloat16):
        words = f"flash-attn computes in float16 and bfloat16, got {q.dtype}"
        raise ValueError(f"{words}; add --dtype float16")
    diagonal = causal or window is not None or alibi is not None
    if diagonal and align == "top-left" and q.shape[2] != k.shape[2]:
        raise ValueError("flash-attn's diagonal ends at the bottom right; drop --align top-left")
    options: dict[str, object] = {"softmax_scale": scale, "causal": causal, "alibi_slopes": alibi}
    options |= {"window_size": window or (-1, -1), "softcap": softcap or 0.0}
    options |= {"return_attn_probs": True}
    if cu_seqlens_q is not None:
        rows = (_rows_first(tensor)[0] for tensor in (q, k, v))
        packing = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        o, lse, _ = flash_attn_varlen_func(*rows, *packing, **options)
        o, lse = _rows_first(o[None]), lse[None]
    else:
        o, lse, _ = flash_attn_func(*(_rows_first(tensor) for tensor in (q, k, v)), **options)
        o = _rows_first(o)
    # Under causal the kernel adds alibi without its share of the row, which moves LSE by as much and nothing else.
    return {"O": o} if alibi is not None and causal else {"O": o, "LSE": lse}


def _rows_first(tensor: Tensor) -> Tensor:
    """[B, H, L, D] as [B, L, H, D], and back."""
    return tensor.transpose(1, 2)
