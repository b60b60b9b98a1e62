"""dV in a program for two tiles of keys, one from each end: each is summed in a loop of its own, and stored there."""

import torch
import triton
import triton.language as tl

T = 16


@triton.jit
def share(Q, G, LSE, k, rows, dims, scale, n, D: tl.constexpr):
    inside = rows[:, None] < n
    q = tl.load(Q + rows[:, None] * D + dims[None, :], mask=inside, other=0.0)
    g = tl.load(G + rows[:, None] * D + dims[None, :], mask=inside, other=0.0)
    s = tl.dot(q, tl.trans(k)) * scale
    p = tl.exp(s - tl.load(LSE + rows, mask=rows < n, other=float("inf"))[:, None])
    return tl.dot(tl.trans(p), g)


@triton.jit
def of_values(Q, K, G, LSE, DV, scale, n, tiles, D: tl.constexpr, T: tl.constexpr):
    tile, plane, dims = tl.program_id(0), tl.program_id(1) * n, tl.arange(0, D)
    Q, K, G, LSE, DV = Q + plane * D, K + plane * D, G + plane * D, LSE + plane, DV + plane * D
    keys = tile * T + tl.arange(0, T)
    k = tl.load(K + keys[:, None] * D + dims[None, :], mask=keys[:, None] < n, other=0.0)
    dv = tl.zeros([T, D], tl.float32)
    for start in range(0, n, T):
        dv += share(Q, G, LSE, k, start + tl.arange(0, T), dims, scale, n, D)
    tl.store(DV + keys[:, None] * D + dims[None, :], dv, mask=keys[:, None] < n)
    other = tiles - 1 - tile
    if other == tile:
        return
    keys = other * T + tl.arange(0, T)
    k = tl.load(K + keys[:, None] * D + dims[None, :], mask=keys[:, None] < n, other=0.0)
    dv = tl.zeros([T, D], tl.float32)
    for start in range(0, n, T):
        dv += share(Q, G, LSE, k, start + tl.arange(0, T), dims, scale, n, D)  # the other one
    tl.store(DV + keys[:, None] * D + dims[None, :], dv, mask=keys[:, None] < n)


def gradient(q, k, v, do, *, lse, scale):
    b, heads, n, d = q.shape
    q, k, do = (x.contiguous() for x in (q, k, do))
    dv, tiles = torch.empty_like(v), triton.cdiv(n, T)
    grid = (triton.cdiv(tiles, 2), b * heads)
    of_values[grid](q, k, do, lse.contiguous(), dv, scale, n, tiles, d, T)
    return {"dV": dv}
