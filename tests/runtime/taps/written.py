"""Attention backwards as people write them: inner functions, transposed tiles, decorators, block pointers.

All compute softmax attention, q k v do [B, H, L, D] contiguous, in float32 unless said otherwise.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# No `from __future__ import annotations`: kernels are written with and without.

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def inner_dkdv(
    dk, dv, k, v, Q, DO, LSE, D, stride_tok, offs_n, offs_k, start_m, n_steps, N_CTX,
    BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr = False,
):  # fmt: skip
    curr_m = start_m
    end_m = start_m + n_steps * BLOCK_M
    while curr_m < end_m:
        offs_m = curr_m + tl.arange(0, BLOCK_M)
        in_m = offs_m < N_CTX
        qT = tl.load(Q + offs_m[None, :] * stride_tok + offs_k[:, None], mask=in_m[None, :], other=0.0)
        do = tl.load(DO + offs_m[:, None] * stride_tok + offs_k[None, :], mask=in_m[:, None], other=0.0)
        m = tl.load(LSE + offs_m, mask=in_m, other=0.0)
        pT = tl.exp2(tl.dot(k, qT, input_precision="ieee") - m[None, :])
        if CAUSAL:
            pT = tl.where(offs_m[None, :] >= offs_n[:, None], pT, 0.0)
        pT = tl.where(in_m[None, :] & (offs_n[:, None] < N_CTX), pT, 0.0)
        dv += tl.dot(pT.to(do.dtype), do, input_precision="ieee")
        Di = tl.load(D + offs_m, mask=in_m, other=0.0)
        dpT = tl.dot(v, tl.trans(do), input_precision="ieee")
        dsT = pT * (dpT - Di[None, :])  # rounded for the dot below: größer wird es nicht
        dsT = dsT.to(k.dtype)
        dk += tl.dot(dsT, tl.trans(qT), input_precision="ieee")
        curr_m += BLOCK_M
    return dk, dv


@triton.jit
def inner_dq(dq, q, K, V, do, m, Di, stride_tok, offs_m, offs_k, start_n, num_steps, N_CTX,
             BLOCK_N: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    for step in tl.range(0, num_steps):
        offs_n = start_n + step * BLOCK_N + tl.arange(0, BLOCK_N)
        in_n = offs_n < N_CTX
        kT = tl.load(K + offs_n[None, :] * stride_tok + offs_k[:, None], mask=in_n[None, :], other=0.0)
        vT = tl.load(V + offs_n[None, :] * stride_tok + offs_k[:, None], mask=in_n[None, :], other=0.0)
        p = tl.exp2(tl.dot(q, kT, input_precision="ieee") - m)
        if MASK: p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)  # noqa: E701  # fmt: skip
        p = tl.where(in_n[None, :] & (offs_m[:, None] < N_CTX), p, 0.0)
        dp = tl.dot(do, vT, input_precision="ieee")
        ds = (
            p
            * (dp - Di[:, None])
        ).to(kT.dtype)  # fmt: skip
        dq += tl.dot(ds, tl.trans(kT), input_precision="ieee")
    return dq


@triton.jit
def fused_backward_kernel(
    Q, K, V, sm_scale, DO, DQ, DK, DV, LSE, D, stride_z, stride_h, stride_tok, H, N_CTX,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    bhid = tl.program_id(2)
    adj = (stride_h * (bhid % H) + stride_z * (bhid // H)).to(tl.int64)
    off_chz = (bhid * N_CTX).to(tl.int64)
    Q += adj; K += adj; V += adj; DO += adj; DQ += adj; DK += adj; DV += adj  # noqa: E702  # fmt: skip
    LSE += off_chz
    D += off_chz
    offs_k = tl.arange(0, HEAD_DIM)

    start_n = tl.program_id(0) * BLOCK_N
    offs_n = start_n + tl.arange(0, BLOCK_N)
    in_n = (offs_n < N_CTX)[:, None]
    k = tl.load(K + offs_n[:, None] * stride_tok + offs_k[None, :], mask=in_n, other=0.0)
    v = tl.load(V + offs_n[:, None] * stride_tok + offs_k[None, :], mask=in_n, other=0.0)
    k = (k * (sm_scale * LOG2E)).to(k.dtype)
    dv = tl.zeros([BLOCK_N, HEAD_DIM], dtype=tl.float32)
    dk = tl.zeros([BLOCK_N, HEAD_DIM], dtype=tl.float32)
    start_m = start_n // BLOCK_M * BLOCK_M if CAUSAL else 0
    dk, dv = inner_dkdv(
        dk, dv, k, v, Q, DO, LSE, D, stride_tok, offs_n, offs_k,
        start_m, tl.cdiv(N_CTX - start_m, BLOCK_M), N_CTX, BLOCK_M=BLOCK_M,
        CAUSAL=CAUSAL,  # a comma and a comment before the bracket
    )  # fmt: skip
    tl.store(DK + offs_n[:, None] * stride_tok + offs_k[None, :], dk * sm_scale, mask=in_n)
    tl.store(DV + offs_n[:, None] * stride_tok + offs_k[None, :], dv, mask=in_n)

    start_m = tl.program_id(0) * BLOCK_N
    offs_m = start_m + tl.arange(0, BLOCK_N)
    in_m = offs_m < N_CTX
    q = tl.load(Q + offs_m[:, None] * stride_tok + offs_k[None, :], mask=in_m[:, None], other=0.0)
    q = (q * (sm_scale * LOG2E)).to(q.dtype)
    do = tl.load(DO + offs_m[:, None] * stride_tok + offs_k[None, :], mask=in_m[:, None], other=0.0)
    m = tl.load(LSE + offs_m, mask=in_m, other=0.0)[:, None]
    delta = tl.load(D + offs_m, mask=in_m, other=0.0)
    dq = tl.zeros([BLOCK_N, HEAD_DIM], dtype=tl.float32)
    end_n = N_CTX
    if CAUSAL:
        # On the diagonal with a mask, before it without.
        dq = inner_dq(dq, q, K, V, do, m, delta, stride_tok, offs_m, offs_k, start_m, tl.cdiv(BLOCK_N, BLOCK_M), N_CTX,
                      BLOCK_M, MASK=True)  # fmt: skip
        end_n = start_m
    dq = inner_dq(
        dq, q, K, V, do, m, delta, stride_tok, offs_m, offs_k, 0, tl.cdiv(end_n, BLOCK_M), N_CTX, BLOCK_M, False
    )
    dq *= sm_scale
    tl.store(DQ + offs_m[:, None] * stride_tok + offs_k[None, :], dq, mask=in_m[:, None])


@triton.autotune(
    [triton.Config({"BLOCK_M": 16, "BLOCK_N": 32}, num_warps=4, pre_hook=lambda args: args["DQ"].zero_())],
    key=["seqlen"],
)
@triton.heuristics(values={
    "EVEN_N": lambda args: args["seqlen"] % args["BLOCK_N"] == 0,
    "BLOCK_D": lambda args: triton.next_power_of_2(args["headdim"]),
})  # fmt: skip
@triton.jit
def decorated_dq_kernel(
    Q, K, V, DO, DQ, LSE, Delta, softmax_scale, nheads, seqlen, headdim,
    EVEN_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr = False,
):  # fmt: skip
    """Block pointers, branches of three, and ds with the scale in it."""
    off_hb = tl.program_id(1)
    off_b = off_hb // nheads
    off_h = off_hb % nheads
    base = (off_b * nheads + off_h) * seqlen
    start_m = tl.program_id(0)
    offs_qm = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    q_ptrs = tl.make_block_ptr(Q + base * headdim, (seqlen, headdim), (headdim, 1), (start_m * BLOCK_M, 0),
                               (BLOCK_M, BLOCK_D), (1, 0))  # fmt: skip
    do_ptrs = tl.make_block_ptr(DO + base * headdim, (seqlen, headdim), (headdim, 1), (start_m * BLOCK_M, 0),
                                (BLOCK_M, BLOCK_D), (1, 0))  # fmt: skip
    k_ptrs = tl.make_block_ptr(K + base * headdim, (headdim, seqlen), (1, headdim), (0, 0), (BLOCK_D, BLOCK_N), (0, 1))
    v_ptrs = tl.make_block_ptr(V + base * headdim, (headdim, seqlen), (1, headdim), (0, 0), (BLOCK_D, BLOCK_N), (0, 1))
    q = tl.load(q_ptrs, boundary_check=(0, 1), padding_option="zero")
    do = tl.load(do_ptrs, boundary_check=(0, 1), padding_option="zero")
    lse_i = tl.load(LSE + base + offs_qm, mask=offs_qm < seqlen, other=0.0)
    Di = tl.load(Delta + base + offs_qm, mask=offs_qm < seqlen, other=0.0)
    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    end_n = tl.minimum((start_m + 1) * BLOCK_M, seqlen) if CAUSAL else seqlen
    for start_n in range(0, end_n, BLOCK_N):
        k = tl.load(k_ptrs, boundary_check=(0, 1), padding_option="zero")
        v = tl.load(v_ptrs, boundary_check=(0, 1), padding_option="zero")
        offs_n = start_n + tl.arange(0, BLOCK_N)
        qk = tl.dot(q, k, input_precision="ieee") * softmax_scale
        if CAUSAL:
            p = tl.exp(qk - lse_i[:, None])
            p = tl.where((offs_qm[:, None] >= offs_n[None, :]) & (offs_n[None, :] < seqlen), p, 0.0)
        elif EVEN_N:
            p = tl.exp(qk - lse_i[:, None])
        else:
            p = tl.where(offs_n[None, :] < seqlen, tl.exp(qk - lse_i[:, None]), 0.0)
        dp = tl.dot(do, v, input_precision="ieee")
        ds = (p * (dp - Di[:, None]) * softmax_scale).to(q.dtype)
        dq += tl.dot(ds, tl.trans(k), input_precision="ieee")
        k_ptrs = tl.advance(k_ptrs, (0, BLOCK_N))
        v_ptrs = tl.advance(v_ptrs, (0, BLOCK_N))
    offs_d = tl.arange(0, BLOCK_D)
    tl.store(DQ + (base + offs_qm[:, None]) * headdim + offs_d[None, :], dq,
             mask=(offs_qm[:, None] < seqlen) & (offs_d[None, :] < headdim))  # fmt: skip


@triton.jit
def half_named_kernel(Q, FLAG: tl.constexpr):
    """A block that has a value only where FLAG is set."""
    if FLAG:
        offs_m = tl.arange(0, 16)  # noqa: F841
    p = tl.load(Q + tl.arange(0, 16))
    tl.store(Q + tl.arange(0, 16), p * 2)


def lse_and_delta(q, k, v, do, scale, causal):
    """[B, H, L] each: LSE by natural logarithms, and rowsum(dO * O)."""
    scores = (q.float() @ k.float().mT) * scale
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    lse = scores.logsumexp(-1)
    return lse, (do.float() * (torch.exp(scores - lse[..., None]) @ v.float())).sum(-1)


def fused_backward(q, k, v, do, *, scale=None, causal=False, block_m=16, block_n=32):
    """dQ, dK and dV by one launch, all arguments but the last ones by position."""
    n_batch, n_heads, n_ctx, head_dim = q.shape
    scale = head_dim**-0.5 if scale is None else scale
    lse, delta = lse_and_delta(q, k, v, do, scale, causal)
    dq, dk, dv = (torch.zeros(q.shape, device=q.device) for _ in range(3))
    fused_backward_kernel[(triton.cdiv(n_ctx, block_n), 1, n_batch * n_heads)](
        q, k, v, scale, do, dq, dk, dv, lse * LOG2E.value, delta, *q.stride()[:3], n_heads, n_ctx,
        BLOCK_M=block_m, BLOCK_N=block_n, HEAD_DIM=head_dim, CAUSAL=causal,
    )  # fmt: skip
    return {"dQ": dq, "dK": dk, "dV": dv}


def decorated_dq(q, k, v, do, *, scale=None, causal=False):
    """dQ by a kernel under heuristics and autotune, launched with a grid that depends on them."""
    n_batch, n_heads, n_ctx, head_dim = q.shape
    scale = head_dim**-0.5 if scale is None else scale
    lse, delta = lse_and_delta(q, k, v, do, scale, causal)
    dq = torch.full(q.shape, torch.nan, device=q.device)
    decorated_dq_kernel[lambda meta: (triton.cdiv(n_ctx, meta["BLOCK_M"]), n_batch * n_heads)](
        q, k, v, do, dq, lse, delta, scale, nheads=n_heads, seqlen=n_ctx, headdim=head_dim, CAUSAL=causal
    )
    return {"dQ": dq, "delta": delta}
