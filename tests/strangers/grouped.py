"""Attention with grouped heads and two lengths, as one function that calls a preprocess and two backwards.

A program of dK and dV walks the query heads of its key head, and its pointers with them. dP starts at -delta, so that
one product gives dP - delta. Strides are passed by name.
"""

import torch
import triton
import triton.language as tl

TILE = 16


@triton.jit
def _matrix(ptr, i, d, stride_i, stride_d, n_i, n_d):
    inside = (i[:, None] < n_i) & (d[None, :] < n_d)
    at = ptr + i[:, None] * stride_i + d[None, :] * stride_d
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _vector(ptr, i, n_i, other):
    return tl.load(ptr + i, mask=i < n_i, other=other)


@triton.jit
def _mask(i, j, n_q, n_k, CAUSAL: tl.constexpr):
    seen = (i[:, None] < n_q) & (j[None, :] < n_k)
    if CAUSAL:
        seen &= j[None, :] <= i[:, None] + n_k - n_q
    return seen


@triton.jit
def grouped_preprocess(
    Out, G, Delta, n_q, n_d, ob, oh, oi, od, gb, gh, gi, gd, HEADS: tl.constexpr, T: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64) // HEADS
    h = tl.program_id(1).to(tl.int64) % HEADS
    i, d = tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, D)
    o = _matrix(Out + b * ob + h * oh, i, d, oi, od, n_q, n_d)
    g = _matrix(G + b * gb + h * gh, i, d, gi, gd, n_q, n_d)
    tl.store(Delta + tl.program_id(1) * n_q + i, tl.sum(o * g, 1), mask=i < n_q)


@triton.jit
def grouped_dq(
    Q, K, V, G, L, Delta, DQ, n_q, n_k, n_d, scale,
    qb, qh, qi, qd, kb, kh, ki, kd, vb, vh, vi, vd, gb, gh, gi, gd, dqb, dqh, dqi, dqd,
    HEADS: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, T: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64) // HEADS
    h = tl.program_id(1).to(tl.int64) % HEADS
    K += b * kb + h // GROUP * kh
    V += b * vb + h // GROUP * vh
    i, d = tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, D)
    q = _matrix(Q + b * qb + h * qh, i, d, qi, qd, n_q, n_d) * scale
    g = _matrix(G + b * gb + h * gh, i, d, gi, gd, n_q, n_d)
    lse = _vector(L + tl.program_id(1) * n_q, i, n_q, 0.0)
    delta = _vector(Delta + tl.program_id(1) * n_q, i, n_q, 0.0)
    dq = tl.zeros([T, D], tl.float32)
    for at in range(0, n_k, T):
        j = at + tl.arange(0, T)
        k = _matrix(K, j, d, ki, kd, n_k, n_d)
        v = _matrix(V, j, d, vi, vd, n_k, n_d)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        p = tl.where(_mask(i, j, n_q, n_k, CAUSAL), tl.exp(s - lse[:, None]), 0.0)
        less = tl.zeros([T, T], tl.float32) - delta[:, None]
        ds = p * tl.dot(g, tl.trans(v), acc=less, input_precision="ieee")
        dq = tl.dot(ds, k, acc=dq, input_precision="ieee")
    inside = (i[:, None] < n_q) & (d[None, :] < n_d)
    at = DQ + b * dqb + h * dqh + i[:, None] * dqi + d[None, :] * dqd
    tl.store(at, dq * scale, mask=inside)


@triton.jit
def grouped_dkdv(
    Q, K, V, G, L, Delta, DK, DV, n_q, n_k, n_d, scale,
    qb, qh, qi, qd, kb, kh, ki, kd, vb, vh, vi, vd, gb, gh, gi, gd, dkb, dkh, dki, dkd,
    HEADS: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr, T: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64) // (HEADS // GROUP)
    h = tl.program_id(1).to(tl.int64) % (HEADS // GROUP)
    j, d = tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, D)
    k = _matrix(K + b * kb + h * kh, j, d, ki, kd, n_k, n_d)
    v = _matrix(V + b * vb + h * vh, j, d, vi, vd, n_k, n_d)
    Q += b * qb + h * GROUP * qh
    G += b * gb + h * GROUP * gh
    L += (b * HEADS + h * GROUP) * n_q
    Delta += (b * HEADS + h * GROUP) * n_q
    dk, dv = tl.zeros([T, D], tl.float32), tl.zeros([T, D], tl.float32)
    for _ in range(GROUP):
        for at in range(0, n_q, T):
            i = at + tl.arange(0, T)
            q = _matrix(Q, i, d, qi, qd, n_q, n_d)
            g = _matrix(G, i, d, gi, gd, n_q, n_d)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            lse = _vector(L, i, n_q, 0.0)
            p = tl.where(_mask(i, j, n_q, n_k, CAUSAL), tl.exp(s - lse[:, None]), 0.0)
            dv = tl.dot(tl.trans(p), g, acc=dv, input_precision="ieee")
            less = tl.zeros([T, T], tl.float32) - _vector(Delta, i, n_q, 0.0)[:, None]
            ds = p * tl.dot(g, tl.trans(v), acc=less, input_precision="ieee")
            dk = tl.dot(tl.trans(ds), q, acc=dk, input_precision="ieee")
        Q += qh
        G += gh
        L += n_q
        Delta += n_q
    dk *= scale
    inside = (j[:, None] < n_k) & (d[None, :] < n_d)
    where = b * dkb + h * dkh + j[:, None] * dki + d[None, :] * dkd
    tl.store(DK + where, dk, mask=inside)
    tl.store(DV + where, dv, mask=inside)


def _strides(**tensors):
    """Each stride by its name: qb, qh, qi and qd of q."""
    pairs = [(name, zip("bhid", of.stride(), strict=True)) for name, of in tensors.items()]
    return {f"{name}{axis}": step for name, of in pairs for axis, step in of}


def _forward(q, k, v, group, causal, scale):
    s = q @ k.repeat_interleave(group, 1).mT * scale
    if causal:
        hidden = torch.ones(s.shape[-2:], device=s.device).triu(1 + s.shape[-1] - s.shape[-2])
        s = s.masked_fill(hidden.bool(), -torch.inf)
    lse = s.logsumexp(-1)
    return torch.exp(s - lse[..., None]) @ v.repeat_interleave(group, 1), lse


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        heads, kv_heads, n_d = q.shape[1], k.shape[1], q.shape[3]
        o, lse = _forward(q.float(), k.float(), v.float(), heads // kv_heads, causal, scale)
        flags = {"HEADS": heads, "T": TILE, "D": max(16, triton.next_power_of_2(n_d))}
        of_scores = {"GROUP": heads // kv_heads, "CAUSAL": causal}
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.scale, ctx.flags, ctx.of_scores = scale, flags, of_scores
        return o

    @staticmethod
    def backward(ctx, g):
        q, k, v, o, lse = ctx.saved_tensors
        (batch, heads, n_q, n_d), (_, kv_heads, n_k, _) = q.shape, k.shape
        delta = torch.empty_like(lse)
        rows = triton.cdiv(n_q, TILE), batch * heads
        grouped_preprocess[rows](o, g, delta, n_q, n_d, **_strides(o=o, g=g), **ctx.flags)
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk, dv = (torch.empty(k.shape, dtype=k.dtype, device=k.device) for _ in range(2))
        given = {**_strides(q=q, k=k, v=v, g=g), **ctx.flags, **ctx.of_scores}
        tensors, sizes = (q, k, v, g, lse, delta), (n_q, n_k, n_d, ctx.scale)
        grouped_dq[rows](*tensors, dq, *sizes, **_strides(dq=dq), **given)
        keys = triton.cdiv(n_k, TILE), batch * kv_heads
        grouped_dkdv[keys](*tensors, dk, dv, *sizes, **_strides(dk=dk), **given)
        return dq, dk, dv, None, None


def grouped(q, k, v, causal, scale):
    """O of [B, H, M, D], [B, H_kv, N, D] and [B, H_kv, N, D] tensors."""
    return _Grouped.apply(q, k, v, causal, scale)
