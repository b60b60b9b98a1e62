"""Attention that takes whole tiles in one loop and the others in a second one; delta's buffer ends with a tile."""

import torch
import triton
import triton.language as tl

T = 16


@triton.jit
def tile_of(X, rows, dims, by_row, count):
    at = X + rows[:, None] * by_row + dims[None, :]
    return tl.load(at, mask=rows[:, None] < count, other=0.0)


@triton.jit
def scores(q, k, rows, keys, scale, n_q, n_k, CAUSAL: tl.constexpr):
    s = tl.dot(q, tl.trans(k)) * scale
    seen = (rows[:, None] < n_q) & (keys[None, :] < n_k)
    if CAUSAL:
        seen = seen & (keys[None, :] <= rows[:, None] + n_k - n_q)
    return tl.where(seen, s, float("-inf"))


@triton.jit
def fold(s, peak, total, acc, v):
    new = tl.maximum(peak, tl.max(s, 1))
    base = tl.where(new == float("-inf"), 0.0, new)
    p = tl.exp(s - base[:, None])
    old = tl.exp(peak - base)
    return new, total * old + tl.sum(p, 1), acc * old[:, None] + tl.dot(p.to(v.dtype), v)


@triton.jit
def forward(Q, K, V, OUT, LSE, scale, q_h, q_m, k_h, k_n, v_h, v_n, o_h, o_m, l_h, n_q, n_k,
            D: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    h, first = tl.program_id(1), tl.program_id(0) * T
    rows, dims = first + tl.arange(0, T), tl.arange(0, D)
    q = tile_of(Q + h * q_h, rows, dims, q_m, n_q)
    peak, total = tl.full([T], float("-inf"), tl.float32), tl.zeros([T], tl.float32)
    acc = tl.zeros([T, D], tl.float32)
    end = n_k
    if CAUSAL:
        end = tl.maximum(tl.minimum(n_k, first + n_k - n_q + 1), 0)
    whole = end // T * T
    for start in range(0, whole, T):
        keys = start + tl.arange(0, T)
        k = tile_of(K + h * k_h, keys, dims, k_n, n_k)
        v = tile_of(V + h * v_h, keys, dims, v_n, n_k)
        s = scores(q, k, rows, keys, scale, n_q, n_k, CAUSAL)
        peak, total, acc = fold(s, peak, total, acc, v)
    for start in range(whole, n_k, T):
        keys = start + tl.arange(0, T)
        k = tile_of(K + h * k_h, keys, dims, k_n, n_k)
        v = tile_of(V + h * v_h, keys, dims, v_n, n_k)
        s = scores(q, k, rows, keys, scale, n_q, n_k, CAUSAL)
        peak, total, acc = fold(s, peak, total, acc, v)
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    lse = tl.where(total > 0, peak + tl.log(total), float("-inf"))
    tl.store(OUT + h * o_h + rows[:, None] * o_m + dims[None, :], out, mask=rows[:, None] < n_q)
    tl.store(LSE + h * l_h + rows, lse, mask=rows < n_q)


@triton.jit
def deltas(OUT, G, E, o_h, o_m, g_h, g_m, e_h, n_q, D: tl.constexpr, T: tl.constexpr):
    h, rows, dims = tl.program_id(1), tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, D)
    o = tile_of(OUT + h * o_h, rows, dims, o_m, n_q)
    g = tile_of(G + h * g_h, rows, dims, g_m, n_q)
    tl.store(E + h * e_h + rows, tl.sum(o.to(tl.float32) * g.to(tl.float32), 1))


@triton.jit
def gradients(q, k, v, g, rows, keys, LSE, E, scale, n_q, n_k, CAUSAL: tl.constexpr):
    lse = tl.load(LSE + rows, mask=rows < n_q, other=0.0)
    s = scores(q, k, rows, keys, scale, n_q, n_k, CAUSAL)
    p = tl.exp(s - tl.where(lse == float("-inf"), 0.0, lse)[:, None])
    ds = p * (tl.dot(g, tl.trans(v)) - tl.load(E + rows)[:, None])
    return p, ds


@triton.jit
def of_rows(Q, K, V, G, LSE, E, DQ, scale, q_h, q_m, k_h, k_n, v_h, v_n, g_h, g_m, l_h, e_h, dq_h, dq_m, n_q, n_k,
            D: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    h, rows, dims = tl.program_id(1), tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, D)
    q, g = tile_of(Q + h * q_h, rows, dims, q_m, n_q), tile_of(G + h * g_h, rows, dims, g_m, n_q)
    dq = tl.zeros([T, D], tl.float32)
    for start in range(0, n_k, T):
        keys = start + tl.arange(0, T)
        k = tile_of(K + h * k_h, keys, dims, k_n, n_k)
        v = tile_of(V + h * v_h, keys, dims, v_n, n_k)
        p, ds = gradients(
            q, k, v, g, rows, keys, LSE + h * l_h, E + h * e_h, scale, n_q, n_k, CAUSAL
        )
        dq += tl.dot(ds.to(k.dtype), k)
    at = DQ + h * dq_h + rows[:, None] * dq_m + dims[None, :]
    tl.store(at, dq * scale, mask=rows[:, None] < n_q)


@triton.jit
def of_keys(Q, K, V, G, LSE, E, DK, DV, scale, q_h, q_m, k_h, k_n, v_h, v_n, g_h, g_m, l_h, e_h, dk_h, dk_n, dv_h, dv_n,
            n_q, n_k, D: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    h, keys, dims = tl.program_id(1), tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, D)
    k, v = tile_of(K + h * k_h, keys, dims, k_n, n_k), tile_of(V + h * v_h, keys, dims, v_n, n_k)
    dk, dv = tl.zeros([T, D], tl.float32), tl.zeros([T, D], tl.float32)
    tiles = tl.cdiv(n_q, T)
    for tile in range(0, tiles):
        rows = tile * T + tl.arange(0, T)
        q, g = (
            tile_of(Q + h * q_h, rows, dims, q_m, n_q),
            tile_of(G + h * g_h, rows, dims, g_m, n_q),
        )
        p, ds = gradients(
            q, k, v, g, rows, keys, LSE + h * l_h, E + h * e_h, scale, n_q, n_k, CAUSAL
        )
        dv += tl.dot(tl.trans(p).to(g.dtype), g)
        dk += tl.dot(tl.trans(ds).to(q.dtype), q)
    tl.store(
        DK + h * dk_h + keys[:, None] * dk_n + dims[None, :],
        dk * scale,
        mask=keys[:, None] < n_k,
    )
    tl.store(DV + h * dv_h + keys[:, None] * dv_n + dims[None, :], dv, mask=keys[:, None] < n_k)


def attention(q, k, v, do, *, causal=False, scale=None):
    b, heads, n_q, d = q.shape
    n_k, scale = k.shape[2], d**-0.5 if scale is None else scale
    if k.shape[:2] != q.shape[:2] or v.shape != k.shape:
        raise ValueError("as many key heads as heads, and one head dim")
    q, k, v, do = (x.contiguous().view(b * heads, -1, d) for x in (q, k, v, do))
    o, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    rows, keys = triton.cdiv(n_q, T), triton.cdiv(n_k, T)
    delta = torch.empty((b * heads, rows * T), dtype=torch.float32, device=q.device)
    q_by, k_by, v_by = ((x.stride(0), x.stride(1)) for x in (q, k, v))
    o_by, g_by = (o.stride(0), o.stride(1)), (do.stride(0), do.stride(1))
    how = (n_q, n_k, d, T, causal)
    forward[(rows, b * heads)](
        q, k, v, o, lse, scale, *q_by, *k_by, *v_by, *o_by, lse.stride(0), *how
    )
    deltas[(rows, b * heads)](o, do, delta, *o_by, *g_by, delta.stride(0), n_q, d, T)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    by = (*q_by, *k_by, *v_by, *g_by, lse.stride(0), delta.stride(0))
    of_rows[(rows, b * heads)](
        q, k, v, do, lse, delta, dq, scale, *by, dq.stride(0), dq.stride(1), *how
    )
    out = (*(dk.stride(at) for at in (0, 1)), *(dv.stride(at) for at in (0, 1)))
    of_keys[(keys, b * heads)](q, k, v, do, lse, delta, dk, dv, scale, *by, *out, *how)
    found = {"O": o, "dQ": dq, "dK": dk, "dV": dv}
    return {name: x.view(b, heads, -1, d) for name, x in found.items()} | {
        "LSE": lse.view(b, heads, n_q)
    }
