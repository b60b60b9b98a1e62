"""dK and dV by a kernel whose scores are shifted in some tiles of rows: P is off by one factor in each of them."""

import torch
import triton
import triton.language as tl


@triton.jit
def keys_kernel(Q, K, V, DO, LSE, DELTA, DK, DV, scale, length, DIM: tl.constexpr, TILE: tl.constexpr):
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
        scores = tl.dot(k, tl.trans(q)) * scale
        scores += tl.where(first % (2 * TILE) == 0, 0.0, 0.25)
        p = tl.where(inside, tl.exp(scores - lse[None, :]), 0.0)
        dv += tl.dot(p, do)
        ds = p * (tl.dot(v, tl.trans(do)) - delta[None, :])
        dk += tl.dot(ds, q) * scale
    tl.store(DK + at_keys, dk, mask=inside)
    tl.store(DV + at_keys, dv, mask=inside)


def backward(q, k, v, do, lse, delta, scale):
    q, k, v, do, lse, delta = (one.contiguous() for one in (q, k, v, do, lse, delta))
    batch, heads, length, dim = q.shape
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    grid = (triton.cdiv(length, 16), batch * heads)
    keys_kernel[grid](q, k, v, do, lse, delta, dk, dv, scale, length, DIM=dim, TILE=16)
    p = torch.exp(q @ k.mT * scale - lse[..., None])
    return {"dQ": p * (do @ v.mT - delta[..., None]) @ k * scale, "dK": dk, "dV": dv}
