"""Attention in torch whose path for grouped heads leaves out the maximum of the softmax."""

from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """O [B, H, M, Dv] of q [B, H, M, D], k [B, Hkv, N, D] and v [B, Hkv, N, Dv]."""
    group = q.shape[1] // k.shape[1]
    if group == 1:
        return (q.float() @ k.float().mT * scale).softmax(-1).to(q.dtype) @ v
    keys, values = (tensor.float().repeat_interleave(group, 1) for tensor in (k, v))
    p = (q.float() @ keys.mT * scale).exp()
    return (p @ values / p.sum(-1, keepdim=True)).to(q.dtype)
