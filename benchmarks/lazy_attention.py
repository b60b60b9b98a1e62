"""Right lazy attention in plain torch, row tile by row tile at any length: a target, and the plain float64 reference.

`gradprobe check benchmarks/lazy_attention.py:rounding --heads 8 --seqlen 2048 --head-dim 64` checks the target.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROWS = {"cpu": 256, "cuda": 1024}


def reference(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, tau: Tensor, bias: Tensor | None = None
) -> list[Tensor]:
    """O, dQ, dK, dV [B, H, L, D], dTau [H] and, of a bias [H, W], dBias: in float64."""
    return [*_gradients(q, k, v, do, tau, bias, torch.double).values()]


def rounding(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, tau: Tensor, bias: Tensor | None = None
) -> dict[str, Tensor]:
    """The same in float32, with P and dS rounded to the dtype of q, as kernels have it; results in that dtype."""
    results = _gradients(q, k, v, do, tau, bias, torch.float)
    return {
        name: value.to(q.dtype) if value.dim() == 4 else value for name, value in results.items()
    }


def _gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    tau: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    results = {
        name: torch.zeros(t.shape, dtype=dtype, device=q.device)
        for name, t in zip(("O", "dQ", "dK", "dV"), (q, q, k, v), strict=True)
    }
    results["dTau"] = torch.zeros(tau.shape, dtype=dtype, device=q.device)
    if bias is not None:
        results["dBias"] = torch.zeros(bias.shape, dtype=dtype, device=q.device)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            of_head = {
                name: of[h] if name in ("dTau", "dBias") else of[b, h]
                for name, of in results.items()
            }
            tensors = [t[b, h].to(dtype) for t in (q, k, v, do)]
            _head(
                of_head,
                *tensors,
                tau[h].to(dtype),
                None if bias is None else bias[h].to(dtype),
                q.dtype,
            )
    return results


def _head(
    results: dict[str, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    tau: Tensor,
    bias: Tensor | None,
    operand: torch.dtype,
) -> None:
    """One head; P and dS are rounded to `operand` before they are multiplied, unless all is float64."""
    scale, length = q.shape[-1] ** -0.5, q.shape[0]
    narrow = (lambda t: t) if q.dtype == torch.double else (lambda t: t.to(operand).to(t.dtype))
    for first in range(0, length, ROWS[q.device.type]):
        end = min(first + ROWS[q.device.type], length)
        rows, keys = slice(first, end), slice(0, end)
        i, j = (
            torch.arange(first, end, device=q.device)[:, None],
            torch.arange(end, device=q.device),
        )
        s = scale * q[rows] @ k[keys].T
        if bias is not None:
            near = slice(max(0, first - len(bias) + 1), end)
            distance = i - j[near]
            inside = (distance >= 0) & (distance < len(bias))
            s[:, near] += bias[distance.clamp(0, len(bias) - 1)] * inside
        seen = j <= i
        s.masked_fill_(~seen, -math.inf)
        p = (s - s.logsumexp(-1, keepdim=True)).exp()
        z = p + tau / (i + 1)
        pe = narrow(z.relu() * seen)
        results["O"][rows] = pe @ v[keys]
        dp = (do[rows] @ v[keys].T) * ((z > 0) & seen)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        of_ds = narrow(ds)
        results["dQ"][rows] = scale * of_ds @ k[keys]
        results["dK"][keys] += scale * of_ds.T @ q[rows]
        results["dV"][keys] += pe.T @ do[rows]
        results["dTau"] += (dp.sum(-1, keepdim=True) / (i + 1)).sum()
        if bias is not None:
            results["dBias"].index_add_(0, distance[inside], ds[:, near][inside])
