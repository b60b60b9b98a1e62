"""dK and dV by a kernel with one fault of its rows: it sums into zeros, and the fault is chosen by KIND."""

import torch
import triton
import triton.language as tl


@triton.jit
def keys_kernel(
    Q, K, V, DO, LSE, DELTA, DK, DV, scale, length,
    DIM: tl.constexpr, TILE: tl.constexpr, KIND: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * length
    keys = tl.program_id(0) * TILE + tl.arange(0, TILE)
    dims = tl.arange(0, DIM)
    at_keys = (head + keys[:, None]) * DIM + dims[None, :]
    inside = keys[:, None] < length
    k = tl.load(K + at_keys, mask=inside, other=0.0)
    v = tl.load(V + at_keys, mask=inside, other=0.0)
    dk, dv = tl.zeros((TILE, DIM), tl.float32), tl.zeros((TILE, DIM), tl.float32)
    for first in range(0, length, TILE):
        rows = first + tl.arange(0, TILE)
        is_row = rows < length
        at_rows = (head + rows[:, None]) * DIM + dims[None, :]
        q = tl.load(Q + at_rows, mask=is_row[:, None], other=0.0)
        do = tl.load(DO + at_rows, mask=is_row[:, None], other=0.0)
        lse = tl.load(LSE + head + rows, mask=is_row, other=float("inf"))
        delta = tl.load(DELTA + head + rows, mask=is_row, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        if KIND == "shifted":
            scores += tl.where(first % (2 * TILE) == 0, 0.0, 0.25)
        p = tl.where(keys[None, :] < length, tl.exp(scores - lse[:, None]), 0.0)
        if KIND == "heavier":
            p = p * (1.0 + 0.125 * (rows % 2))[:, None]
        if CAUSAL:
            p = tl.where(rows[:, None] >= keys[None, :], p, 0.0)
        dv += tl.dot(tl.trans(p), do)
        dp = tl.zeros((TILE, TILE), tl.float32)
        dp += tl.dot(do, tl.trans(v))

        dk += tl.dot(tl.trans(p * (dp - delta[:, None])), q) * scale
    tl.store(DK + at_keys, dk, mask=inside)
    tl.store(DV + at_keys, dv, mask=inside)


def _backward(q, k, v, do, lse, delta, scale, kind, is_causal=True):
    q, k, v, do, lse, delta = (one.contiguous() for one in (q, k, v, do, lse, delta))
    batch, heads, length, dim = q.shape
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    keys_kernel[(triton.cdiv(length, 16), batch * heads)](
        q, k, v, do, lse, delta, dk, dv, scale, length,
        DIM=dim, TILE=16, KIND=kind, CAUSAL=is_causal,
    )  # fmt: skip
    p = torch.exp(q @ k.mT * scale - lse[..., None])
    p = p.tril() if is_causal else p
    return {"dQ": p * (do @ v.mT - delta[..., None]) @ k * scale, "dK": dk, "dV": dv}


def heavier(q, k, v, do, lse, delta, scale):
    return _backward(q, k, v, do, lse, delta, scale, "heavier")


def shifted(q, k, v, do, lse, delta, scale):
    return _backward(q, k, v, do, lse, delta, scale, "shifted", is_causal=False)
