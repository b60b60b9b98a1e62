"""dK and dV by a kernel that weighs odd rows more, sums into zeros, and takes |dO V^T| where it is told to."""

import torch
import triton
import triton.language as tl


@triton.jit
def keys_kernel(
    Q, K, V, DO, LSE, DELTA, DK, DV, scale, length, more, DIM: tl.constexpr, TILE: tl.constexpr, ABS: tl.constexpr
):
    head = tl.program_id(1) * length
    keys = tl.program_id(0) * TILE + tl.arange(0, TILE)
    dims = tl.arange(0, DIM)
    at_keys = (head + keys[:, None]) * DIM + dims[None, :]
    inside = keys[:, None] < length
    k, v = tl.load(K + at_keys, mask=inside, other=0.0), tl.load(V + at_keys, mask=inside, other=0.0)
    dk, dv = tl.zeros((TILE, DIM), tl.float32), tl.zeros((TILE, DIM), tl.float32)
    for first in range(0, length, TILE):
        rows = first + tl.arange(0, TILE)
        at_rows = (head + rows[:, None]) * DIM + dims[None, :]
        q = tl.load(Q + at_rows, mask=rows[:, None] < length, other=0.0)
        do = tl.load(DO + at_rows, mask=rows[:, None] < length, other=0.0)
        lse = tl.load(LSE + head + rows, mask=rows < length, other=float("inf"))
        delta = tl.load(DELTA + head + rows, mask=rows < length, other=0.0)
        p = tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None]) * (1.0 + more * (rows % 2))[:, None]
        p = tl.where(rows[:, None] >= keys[None, :], p, 0.0)
        dv += tl.dot(tl.trans(p), do)
        dp = tl.zeros((TILE, TILE), tl.float32)
        dp += tl.dot(do, tl.trans(v))
        if ABS:
            dp = tl.abs(dp)
        ds = tl.where(rows[:, None] >= keys[None, :], p * (dp - delta[:, None]), 0.0)
        dk += tl.dot(tl.trans(ds), q) * scale
    tl.store(DK + at_keys, dk, mask=inside)
    tl.store(DV + at_keys, dv, mask=inside)


def _backward(q, k, v, do, lse, delta, scale, more, is_abs, of_delta=1.0):
    q, k, v, do, lse, delta = (one.contiguous() for one in (q, k, v, do, lse, delta))
    batch, heads, length, dim = q.shape
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    grid = (triton.cdiv(length, 16), batch * heads)
    keys_kernel[grid](q, k, v, do, lse, of_delta * delta, dk, dv, scale, length, more, DIM=dim, TILE=16, ABS=is_abs)
    p = torch.exp(q @ k.mT * scale - lse[..., None]).tril()
    return {"dQ": p * (do @ v.mT - delta[..., None]) @ k * scale, "dK": dk, "dV": dv}


def heavier(q, k, v, do, lse, delta, scale):
    return _backward(q, k, v, do, lse, delta, scale, 0.125, False)


def absolute(q, k, v, do, lse, delta, scale):
    return _backward(q, k, v, do, lse, delta, scale, 0.0, True)


def averaged(q, k, v, do, lse, delta, scale):
    """The kernel of dK and dV is given a delta that is a mean over the head dim."""
    return _backward(q, k, v, do, lse, delta, scale, 0.0, False, 1 / q.shape[-1])
