"""A file of two kernels and their launches, which is right as it stands: faults are planted in it line by line."""

TEXT = """import torch
import triton
import triton.language as tl


@triton.jit
def bwd_dq(Q, K, V, DO, LSE, Delta, DQ, stride_qh, stride_qm, stride_kh, stride_kn, stride_doh, stride_dom, scale,
           n_ctx, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr):
    start_m, off_h = tl.program_id(0), tl.program_id(1)
    offs_m, offs_d = start_m * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, D)
    q = tl.load(Q + off_h * stride_qh + offs_m[:, None] * stride_qm + offs_d[None, :], mask=offs_m[:, None] < n_ctx, other=0.0)
    do = tl.load(DO + off_h * stride_doh + offs_m[:, None] * stride_dom + offs_d[None, :], mask=offs_m[:, None] < n_ctx, other=0.0)
    lse = tl.load(LSE + off_h * n_ctx + offs_m, mask=offs_m < n_ctx, other=0.0)
    delta = tl.load(Delta + off_h * n_ctx + offs_m, mask=offs_m < n_ctx, other=0.0)
    dq = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    for start_n in range(0, n_ctx, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = tl.load(K + off_h * stride_kh + offs_n[:, None] * stride_kn + offs_d[None, :], mask=offs_n[:, None] < n_ctx, other=0.0)
        v = tl.load(V + off_h * stride_kh + offs_n[:, None] * stride_kn + offs_d[None, :], mask=offs_n[:, None] < n_ctx, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        p = tl.exp(s - lse[:, None])
        p = tl.where((offs_n[None, :] < n_ctx) & (offs_m[:, None] >= offs_n[None, :]), p, 0.0)
        dp = tl.dot(do, tl.trans(v))
        ds = p * (dp - delta[:, None])
        dq += tl.dot(ds, k)
    dq *= scale
    tl.store(DQ + off_h * stride_qh + offs_m[:, None] * stride_qm + offs_d[None, :], dq, mask=offs_m[:, None] < n_ctx)


@triton.jit
def bwd_dk(Q, K, V, DO, LSE, Delta, DK, stride_qh, stride_qm, stride_kh, stride_kn, stride_doh, stride_dom, scale,
           n_ctx, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr):
    start_n, off_h = tl.program_id(0), tl.program_id(1)
    offs_n, offs_d = start_n * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, D)
    k = tl.load(K + off_h * stride_kh + offs_n[:, None] * stride_kn + offs_d[None, :], mask=offs_n[:, None] < n_ctx, other=0.0)
    v = tl.load(V + off_h * stride_kh + offs_n[:, None] * stride_kn + offs_d[None, :], mask=offs_n[:, None] < n_ctx, other=0.0)
    dk = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    for start_m in range(0, n_ctx, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        q = tl.load(Q + off_h * stride_qh + offs_m[:, None] * stride_qm + offs_d[None, :], mask=offs_m[:, None] < n_ctx, other=0.0)
        do = tl.load(DO + off_h * stride_doh + offs_m[:, None] * stride_dom + offs_d[None, :], mask=offs_m[:, None] < n_ctx, other=0.0)
        lse = tl.load(LSE + off_h * n_ctx + offs_m, mask=offs_m < n_ctx, other=0.0)
        delta = tl.load(Delta + off_h * n_ctx + offs_m, mask=offs_m < n_ctx, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        p = tl.exp(s - lse[:, None])
        p = tl.where((offs_m[:, None] < n_ctx) & (offs_m[:, None] >= offs_n[None, :]), p, 0.0)
        dp = tl.dot(do, tl.trans(v))
        ds = p * (dp - delta[:, None])
        dk += tl.dot(tl.trans(ds), q)
    dk *= scale
    tl.store(DK + off_h * stride_kh + offs_n[:, None] * stride_kn + offs_d[None, :], dk, mask=offs_n[:, None] < n_ctx)


def backward(q, k, v, do, *, lse, delta, scale):
    heads, n_ctx, dim = q.shape
    dq, dk = torch.zeros_like(q), torch.zeros_like(k)
    grid = (triton.cdiv(n_ctx, 16), heads)
    strides = ()
    bwd_dq[grid](q, k, v, do, lse, delta, dq, q.stride(0), q.stride(1), k.stride(0), k.stride(1), do.stride(0), do.stride(1), scale, n_ctx, 16, 16, dim)
    bwd_dk[grid](q, k, v, do, lse, delta, dk, q.stride(0), q.stride(1), k.stride(0), k.stride(1), do.stride(0), do.stride(1), scale, n_ctx, 16, 16, dim)
    return dq, dk
"""  # noqa: E501 - lines as kernels have them
