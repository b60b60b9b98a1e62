"""dK and dV by a kernel in which rows that see no key weigh every key alike."""

import torch
import triton
import triton.language as tl


@triton.jit
def keys_kernel(Q, K, V, DO, LSE, DELTA, SEEN, DK, DV, scale, length, DIM: tl.constexpr, TILE: tl.constexpr):
    head = tl.program_id(1) * length
    keys = tl.program_id(0) * TILE + tl.arange(0, TILE)
    dims = tl.arange(0, DIM)
    at_keys = (head + keys[:, None]) * DIM + dims[None, :]
    inside = keys[:, None] < length
    k, v = tl.load(K + at_keys, mask=inside, other=0.0), tl.load(V + at_keys, mask=inside, other=0.0)
    dk, dv = tl.zeros((TILE, DIM), tl.float32), tl.zeros((TILE, DIM), tl.float32)
    for first in range(0, length, TILE):
        rows = first + tl.arange(0, TILE)
        is_row = rows < length
        at_rows = (head + rows[:, None]) * DIM + dims[None, :]
        q = tl.load(Q + at_rows, mask=is_row[:, None], other=0.0)
        do = tl.load(DO + at_rows, mask=is_row[:, None], other=0.0)
        lse = tl.load(LSE + head + rows, mask=is_row, other=float("inf"))
        delta = tl.load(DELTA + head + rows, mask=is_row, other=0.0)
        at = (head + rows[:, None]) * length + keys[None, :]
        seen = tl.load(SEEN + at, mask=is_row[:, None] & (keys[None, :] < length), other=0)
        scores = tl.where(seen != 0, tl.dot(q, tl.trans(k)) * scale, -1e5)
        p = tl.where(keys[None, :] < length, tl.exp(scores - tl.maximum(lse, -1e5)[:, None]), 0.0)
        dv += tl.dot(tl.trans(p), do)
        dk += tl.dot(tl.trans(p * (tl.dot(do, tl.trans(v)) - delta[:, None])), q) * scale
    tl.store(DK + at_keys, dk, mask=inside)
    tl.store(DV + at_keys, dv, mask=inside)


def backward(q, k, v, do, lse, delta, mask, scale):
    q, k, v, do, lse, delta = (one.contiguous() for one in (q, k, v, do, lse, delta))
    batch, heads, length, dim = q.shape
    seen = mask.expand(batch, heads, length, length).to(torch.int32).contiguous()
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    grid = (triton.cdiv(length, 16), batch * heads)
    keys_kernel[grid](q, k, v, do, lse, delta, seen, dk, dv, scale, length, DIM=dim, TILE=16)
    p = torch.where(seen != 0, torch.exp(q @ k.mT * scale - lse[..., None]), 0.0).nan_to_num()
    return {"dQ": p * (do @ v.mT - delta[..., None]) @ k * scale, "dK": dk, "dV": dv}
