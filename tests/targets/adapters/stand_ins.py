"""A stand-in for the package flash-attn: its signatures and shapes, computed in plain torch."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def _attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor, cap: float, added: Tensor
) -> Any:
    """O and LSE of [B, L, H, D] tensors with as many heads each, in float32; 0 and -inf where a row sees nothing."""
    q, k, v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
    s = scale * q @ k.mT
    s = cap * torch.tanh(s / cap) if cap else s
    s = (s + added).masked_fill(~seen, -torch.inf)
    lse = s.logsumexp(-1)
    p = torch.exp(s - lse.masked_fill(lse.isinf(), 0)[..., None])
    return (p @ v).transpose(1, 2), lse


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """As the package: [B, L, H, D] of 16 bits, one D, the diagonal ending at the bottom right."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    assert q.dim() == 4
    assert q.shape[3] == k.shape[3] == v.shape[3]
    assert q.shape[0] == k.shape[0]
    assert q.shape[2] % k.shape[2] == 0
    rows, keys, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    i, j = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)
    left, right = window_size[0], 0 if causal else window_size[1]
    seen = torch.ones(rows, keys, dtype=torch.bool)
    seen &= (j >= i - left) if left >= 0 else seen
    seen &= (j <= i + right) if right >= 0 else seen
    added = torch.zeros(())
    if alibi_slopes is not None:
        assert alibi_slopes.dtype == torch.float32
        added = alibi_slopes[:, None, None] * (j if causal else -(i - j).abs())
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    o, lse = _attention(q, k, v, scale, seen, softcap, added)
    return (o.to(q.dtype), lse, None) if return_attn_probs else o.to(q.dtype)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    """As the package: [T, H, D], sequence after sequence; LSE [H, T]."""
    assert q.dim() == k.dim() == v.dim() == 3
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert isinstance(max_seqlen_q, int)
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    assert max_seqlen_k == int(cu_seqlens_k.diff().max())
    assert int(cu_seqlens_q[-1]) == len(q)
    assert int(cu_seqlens_k[-1]) == len(k) == len(v)
    outputs, lses = [], []
    both = pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist())
    for (q_start, q_end), (k_start, k_end) in zip(*both, strict=True):
        one = (q[None, q_start:q_end], k[None, k_start:k_end], v[None, k_start:k_end])
        more = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
        o, lse, _ = flash_attn_func(*one, *more, True)
        outputs.append(o[0])
        lses.append(lse[0])
    o, lse = torch.cat(outputs), torch.cat(lses, 1)
    return (o, lse, None) if return_attn_probs else o


def flash_attn_package() -> dict[str, ModuleType]:
    """sys.modules with it installed."""
    package = ModuleType("flash_attn")
    for function in (flash_attn_func, flash_attn_varlen_func):
        setattr(package, function.__name__, function)
    return {"flash_attn": package}
