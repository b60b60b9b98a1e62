"""A backward of softmax attention with dropout in plain torch, one key tile after the other: the kernels have none."""

from __future__ import annotations

import torch

TILE = 16


def dropout_backward(q, k, v, do, *, keep, dropout, scale, causal=False):
    """Every intermediate, of [B, H, L, D] tensors.

    Args:
        keep: [B, H, M, N] bool, False where an entry of P is dropped.
        dropout: the probability of that.
    """
    q, k, v, do = (tensor.float() for tensor in (q, k, v, do))
    lift = 1 / (1 - dropout)
    s = q @ k.mT * scale
    if causal:
        seen = torch.ones_like(s, dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        s = s.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse[..., None])
    o = p * keep * lift @ v
    delta = (do * o).sum(-1)
    dp, ds, dq = torch.zeros_like(s), torch.zeros_like(s), torch.zeros_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, k.shape[2], TILE):
        keys = slice(start, start + TILE)
        kept = keep[..., keys] * lift
        dv[:, :, keys] = (p[..., keys] * kept).mT @ do
        dp[..., keys] = do @ v[:, :, keys].mT * kept
        ds[..., keys] = p[..., keys] * (dp[..., keys] - delta[..., None])
        dq += ds[..., keys] @ k[:, :, keys] * scale
        dk[:, :, keys] = ds[..., keys].mT @ q * scale
    dp = dp * (s > -torch.inf)
    values = {"LSE": lse, "P": p, "O": o, "dP": dp, "delta": delta, "dS": ds}
    return values | {"dQ": dq, "dK": dk, "dV": dv}
