"""Attention with a softcap over [B, L, H, D] tensors, by block pointers and under autotuning.

Two backward kernels. Scores and their gradients are made in helpers, which flags turn to the tile that
the diagonal cuts.
"""

import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"M": 16, "N": 16}), triton.Config({"M": 64, "N": 32}, num_warps=8)]


@triton.jit
def _view(
    ptr, length, width, stride_l, stride_d, start, SIZE: tl.constexpr, WIDTH: tl.constexpr
):
    return tl.make_block_ptr(
        ptr, (length, width), (stride_l, stride_d), (start, 0), (SIZE, WIDTH), (1, 0)
    )


@triton.jit
def _read(
    ptr, length, width, stride_l, stride_d, start, SIZE: tl.constexpr, WIDTH: tl.constexpr
):
    view = _view(ptr, length, width, stride_l, stride_d, start, SIZE, WIDTH)
    return tl.load(view, boundary_check=(0, 1), padding_option="zero")


@triton.jit
def _write(
    ptr, value, length, width, stride_l, stride_d, start, SIZE: tl.constexpr, WIDTH: tl.constexpr
):
    view = _view(ptr, length, width, stride_l, stride_d, start, SIZE, WIDTH)
    tl.store(view, value.to(ptr.dtype.element_ty), boundary_check=(0, 1))


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _scores(q, k, i, j, length, scale, cap, CAUSAL: tl.constexpr, CAPPED: tl.constexpr):
    """The scores of a tile, -inf where masked, and what their softcap multiplies their gradient by."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    slope = tl.full(s.shape, 1.0, tl.float32)
    if CAPPED:
        t = _tanh(s / cap)
        slope = 1.0 - t * t
        s = cap * t
    seen = (j < length)[None, :]
    if CAUSAL:
        seen = seen & (i[:, None] >= j[None, :])
    return tl.where(seen, s, float("-inf")), slope


@triton.jit
def _through_softmax(p, dp, delta):
    return p * (dp - delta[:, None])


@triton.autotune(configs=CONFIGS, key=["length"])
@triton.jit
def blocks_dq(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr,
    q_b, q_l, q_h, q_d, k_b, k_l, k_h, k_d, v_b, v_l, v_h, v_d, do_b, do_l, do_h, do_d, dq_b, dq_l, dq_h, dq_d,
    heads, length, width, scale, cap,
    CAUSAL: tl.constexpr, CAPPED: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    b, h, start_m = (
        tl.program_id(1).to(tl.int64),
        tl.program_id(0).to(tl.int64),
        tl.program_id(2) * M,
    )
    k_ptr += b * k_b + h * k_h
    v_ptr += b * v_b + h * v_h
    i = start_m + tl.arange(0, M)
    q = _read(q_ptr + b * q_b + h * q_h, length, width, q_l, q_d, start_m, M, WIDTH)
    do = _read(do_ptr + b * do_b + h * do_h, length, width, do_l, do_d, start_m, M, WIDTH)
    lse = tl.load(lse_ptr + (b * heads + h) * length + i, mask=i < length, other=0.0)
    delta = tl.load(delta_ptr + (b * heads + h) * length + i, mask=i < length, other=0.0)
    dq = tl.zeros([M, WIDTH], tl.float32)
    end = length
    if CAUSAL:
        end = tl.minimum(length, start_m + M)
    for start_n in range(0, end, N):
        j = start_n + tl.arange(0, N)
        k = _read(k_ptr, length, width, k_l, k_d, start_n, N, WIDTH)
        v = _read(v_ptr, length, width, v_l, v_d, start_n, N, WIDTH)
        s, slope = _scores(q, k, i, j, length, scale, cap, CAUSAL, CAPPED)
        p = tl.exp(s - lse[:, None])
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = _through_softmax(p, dp, delta) * slope
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    _write(
        dq_ptr + b * dq_b + h * dq_h, dq * scale, length, width, dq_l, dq_d, start_m, M, WIDTH
    )


@triton.jit
def _add_rows(
    dk, dv, k, v, j, start_m, q_ptr, do_ptr, lse_ptr, delta_ptr, q_l, q_d, do_l, do_d, length, width, scale, cap,
    CAUSAL: tl.constexpr, CAPPED: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """dK and dV with what a tile of rows adds to them."""
    i = start_m + tl.arange(0, M)
    q = _read(q_ptr, length, width, q_l, q_d, start_m, M, WIDTH)
    do = _read(do_ptr, length, width, do_l, do_d, start_m, M, WIDTH)
    lse = tl.load(lse_ptr + i, mask=i < length, other=float("inf"))
    delta = tl.load(delta_ptr + i, mask=i < length, other=0.0)
    s, slope = _scores(q, k, i, j, length, scale, cap, CAUSAL, CAPPED)
    p = tl.exp(s - lse[:, None])
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    ds = _through_softmax(p, dp, delta) * slope
    dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
    dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    return dk, dv


@triton.autotune(configs=CONFIGS, key=["length"])
@triton.jit
def blocks_dkdv(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    q_b, q_l, q_h, q_d, k_b, k_l, k_h, k_d, v_b, v_l, v_h, v_d, do_b, do_l, do_h, do_d, dk_b, dk_l, dk_h, dk_d,
    heads, length, width, scale, cap,
    CAUSAL: tl.constexpr, CAPPED: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    b, h, start_n = (
        tl.program_id(1).to(tl.int64),
        tl.program_id(0).to(tl.int64),
        tl.program_id(2) * N,
    )
    q_ptr += b * q_b + h * q_h
    do_ptr += b * do_b + h * do_h
    lse_ptr += (b * heads + h) * length
    delta_ptr += (b * heads + h) * length
    j = start_n + tl.arange(0, N)
    k = _read(k_ptr + b * k_b + h * k_h, length, width, k_l, k_d, start_n, N, WIDTH)
    v = _read(v_ptr + b * v_b + h * v_h, length, width, v_l, v_d, start_n, N, WIDTH)
    dk = tl.zeros([N, WIDTH], tl.float32)
    dv = tl.zeros([N, WIDTH], tl.float32)
    below = 0
    if CAUSAL:
        first = start_n // M * M
        below = tl.cdiv(start_n + N, M) * M
        for start_m in range(first, below, M):
            dk, dv = _add_rows(
                dk, dv, k, v, j, start_m, q_ptr, do_ptr, lse_ptr, delta_ptr, q_l, q_d, do_l, do_d, length, width, scale,
                cap, CAUSAL=True, CAPPED=CAPPED, WIDTH=WIDTH, M=M,
            )  # fmt: skip
    for start_m in range(below, length, M):
        dk, dv = _add_rows(
            dk, dv, k, v, j, start_m, q_ptr, do_ptr, lse_ptr, delta_ptr, q_l, q_d, do_l, do_d, length, width, scale,
            cap, CAUSAL=False, CAPPED=CAPPED, WIDTH=WIDTH, M=M,
        )  # fmt: skip
    _write(
        dk_ptr + b * dk_b + h * dk_h, dk * scale, length, width, dk_l, dk_d, start_n, N, WIDTH
    )
    _write(dv_ptr + b * dk_b + h * dk_h, dv, length, width, dk_l, dk_d, start_n, N, WIDTH)


def _forward(q, k, v, causal, scale, softcap):
    s = q @ k.mT * scale
    s = softcap * torch.tanh(s / softcap) if softcap else s
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], device=s.device).triu(1).bool(), -torch.inf)
    lse = s.logsumexp(-1)
    return torch.exp(s - lse[..., None]) @ v, lse


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale, softcap):
        o, lse = _forward(
            *(x.transpose(1, 2).float() for x in (q, k, v)), causal, scale, softcap
        )
        o = o.transpose(1, 2).to(q.dtype).contiguous()
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = causal, scale, softcap
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        causal, scale, softcap = ctx.options
        batch, length, heads, width = q.shape
        delta = (o.float() * do.float()).sum(-1).transpose(1, 2).contiguous()
        dq, dk, dv = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
        strides = (*q.stride(), *k.stride(), *v.stride(), *do.stride())
        sizes, tensors = (heads, length, width, scale, softcap or 1.0), (q, k, v, do, lse, delta)
        flags = {"CAUSAL": causal, "CAPPED": bool(softcap)}
        flags["WIDTH"] = max(16, triton.next_power_of_2(width))
        blocks_dkdv[lambda meta: (heads, batch, triton.cdiv(length, meta["N"]))](
            *tensors, dk, dv, *strides, *dk.stride(), *sizes, **flags
        )
        blocks_dq[lambda meta: (heads, batch, triton.cdiv(length, meta["M"]))](
            *tensors, dq, *strides, *dq.stride(), *sizes, **flags
        )
        return dq, dk, dv, None, None, None


def blocks(q, k, v, causal, scale, softcap=None):
    """O of [B, L, H, D] tensors."""
    return _Blocks.apply(q, k, v, causal, scale, softcap)
