"""Lazy attention in Triton: forward, and a backward of three kernels (preprocess, dq, dkdv).

Notation, for query row i and key column j of one batch b and head h (natural logarithms throughout):

    S = scale * Q K^T + bias[h, i - j] for 0 <= i - j < W        LSE = log sum_j exp(S)        P = exp(S - LSE)
    Z = P + tau[h] / (i + 1)        PE = relu(Z)        O = PE V        valid: j <= i, j < length, i < length

    dP = [Z > 0] * (dO V^T)         delta = rowsum(P * dP)              dS = P * (dP - delta)
    dQ = scale * dS K      dK = scale * dS^T Q      dV = PE^T dO
    dBias[h, w] = sum dS[i, i - w]                  dTau[h] = sum dP / (i + 1)

relu does not commute with the softmax's normalisation, so nothing here is computed online: every kernel but the forward
reads LSE, and the forward passes over the keys twice.

Names: `x_ptr` a tensor's first element, `p_x` the pointers of a tile, `offs_*` positions (64 bits wide, so that no
product with a stride overflows), `in_*` masks. Every tensor has a stride of its own for every axis.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def load_tile(ptr, offs_r, offs_c, stride_r, stride_c, n_rows, n_cols):
    # [R, C], zeros outside
    p_tile = ptr + offs_r[:, None] * stride_r + offs_c[None, :] * stride_c
    return tl.load(p_tile, mask=(offs_r[:, None] < n_rows) & (offs_c[None, :] < n_cols), other=0.0)


@triton.jit
def store_tile(ptr, tile, offs_r, offs_c, stride_r, stride_c, n_rows, n_cols):
    p_tile = ptr + offs_r[:, None] * stride_r + offs_c[None, :] * stride_c
    in_tile = (offs_r[:, None] < n_rows) & (offs_c[None, :] < n_cols)
    tl.store(p_tile, tile.to(ptr.dtype.element_ty), mask=in_tile)


@triton.jit
def load_length(seqlens_ptr, b, stride_seqlens, n_ctx, HAS_SEQLENS: tl.constexpr):
    if HAS_SEQLENS:
        return tl.load(seqlens_ptr + b * stride_seqlens).to(tl.int64)
    return n_ctx.to(tl.int64)


@triton.jit
def add_bias(s, bias_ptr, distance, stride_biasw, window, HAS_BIAS: tl.constexpr):
    # distance: i - j, in the shape of s
    if HAS_BIAS:
        in_window = (distance >= 0) & (distance < window)
        s += tl.load(bias_ptr + distance * stride_biasw, mask=in_window, other=0.0).to(tl.float32)
    return s


@triton.jit
def lazy_forward_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, tau_ptr, seqlens_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_biash, stride_biasw, stride_tauh, stride_seqlensb,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_lseb, stride_lseh, stride_lsem,
    scale, n_heads, n_ctx: tl.int64, head_dim, window,
    HAS_BIAS: tl.constexpr, HAS_SEQLENS: tl.constexpr, DOTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    n_tiles = tl.cdiv(n_ctx, BLOCK_M)
    pid = tl.program_id(0).to(tl.int64)
    b, h, tile_m = pid // n_tiles // n_heads, pid // n_tiles % n_heads, pid % n_tiles
    length = load_length(seqlens_ptr, b, stride_seqlensb, n_ctx, HAS_SEQLENS)
    tau = tl.load(tau_ptr + h * stride_tauh).to(tl.float32)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    o_ptr += b * stride_ob + h * stride_oh
    lse_ptr += b * stride_lseb + h * stride_lseh
    if HAS_BIAS:
        bias_ptr += h * stride_biash

    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    end_n = tl.minimum((tile_m + 1) * BLOCK_M, length)
    q = load_tile(q_ptr, offs_m, offs_d, stride_qm, stride_qd, n_ctx, head_dim)

    # First pass: LSE, with the running maximum. A row without a valid key keeps -inf.
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start_n in range(0, end_n, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)
        k = load_tile(k_ptr, offs_n, offs_d, stride_kn, stride_kd, n_ctx, head_dim)
        distance = offs_m[:, None] - offs_n[None, :]
        valid = (distance >= 0) & (offs_n[None, :] < length) & (offs_m[:, None] < length)
        s = tl.dot(q, tl.trans(k), input_precision=DOTS) * scale
        s = tl.where(valid, add_bias(s, bias_ptr, distance, stride_biasw, window, HAS_BIAS), float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        row_sum = row_sum * tl.exp(row_max - shift) + tl.sum(tl.exp(s - shift[:, None]), 1)
        row_max = new_max
    in_length = offs_m < length
    lse = tl.where(in_length, row_max + tl.log(tl.where(in_length, row_sum, 1.0)), float("-inf"))
    tl.store(lse_ptr + offs_m * stride_lsem, lse, mask=offs_m < n_ctx)

    # Second pass: O, now that P is known.
    safe_lse = tl.where(in_length, lse, 0.0)
    floor = tau / (offs_m + 1).to(tl.float32)
    o = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start_n in range(0, end_n, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)
        k = load_tile(k_ptr, offs_n, offs_d, stride_kn, stride_kd, n_ctx, head_dim)
        v = load_tile(v_ptr, offs_n, offs_d, stride_vn, stride_vd, n_ctx, head_dim)
        distance = offs_m[:, None] - offs_n[None, :]
        valid = (distance >= 0) & (offs_n[None, :] < length) & (offs_m[:, None] < length)
        s = tl.dot(q, tl.trans(k), input_precision=DOTS) * scale
        s = tl.where(valid, add_bias(s, bias_ptr, distance, stride_biasw, window, HAS_BIAS), float("-inf"))
        p = tl.exp(s - safe_lse[:, None])
        pe = tl.where(valid, tl.maximum(p + floor[:, None], 0.0), 0.0)
        o += tl.dot(pe.to(v.dtype), v, input_precision=DOTS)
    store_tile(o_ptr, o, offs_m, offs_d, stride_om, stride_od, n_ctx, head_dim)


@triton.jit
def lazy_preprocess_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, bias_ptr, tau_ptr, seqlens_ptr, lse_ptr, delta_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_dom, stride_dod,
    stride_biash, stride_biasw, stride_tauh, stride_seqlensb,
    stride_lseb, stride_lseh, stride_lsem,
    stride_deltab, stride_deltah, stride_deltam,
    scale, n_heads, n_ctx: tl.int64, head_dim, window,
    HAS_BIAS: tl.constexpr, HAS_SEQLENS: tl.constexpr, DOTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    n_tiles = tl.cdiv(n_ctx, BLOCK_M)
    pid = tl.program_id(0).to(tl.int64)
    b, h, tile_m = pid // n_tiles // n_heads, pid // n_tiles % n_heads, pid % n_tiles
    length = load_length(seqlens_ptr, b, stride_seqlensb, n_ctx, HAS_SEQLENS)
    tau = tl.load(tau_ptr + h * stride_tauh).to(tl.float32)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    do_ptr += b * stride_dob + h * stride_doh
    lse_ptr += b * stride_lseb + h * stride_lseh
    delta_ptr += b * stride_deltab + h * stride_deltah
    if HAS_BIAS:
        bias_ptr += h * stride_biash

    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    end_n = tl.minimum((tile_m + 1) * BLOCK_M, length)
    q = load_tile(q_ptr, offs_m, offs_d, stride_qm, stride_qd, n_ctx, head_dim)
    do = load_tile(do_ptr, offs_m, offs_d, stride_dom, stride_dod, n_ctx, head_dim)
    lse = tl.load(lse_ptr + offs_m * stride_lsem, mask=offs_m < length, other=0.0)
    floor = tau / (offs_m + 1).to(tl.float32)

    delta = tl.zeros([BLOCK_M], tl.float32)
    for start_n in range(0, end_n, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)
        k = load_tile(k_ptr, offs_n, offs_d, stride_kn, stride_kd, n_ctx, head_dim)
        v = load_tile(v_ptr, offs_n, offs_d, stride_vn, stride_vd, n_ctx, head_dim)
        distance = offs_m[:, None] - offs_n[None, :]
        valid = (distance >= 0) & (offs_n[None, :] < length) & (offs_m[:, None] < length)
        s = tl.dot(q, tl.trans(k), input_precision=DOTS) * scale
        s = tl.where(valid, add_bias(s, bias_ptr, distance, stride_biasw, window, HAS_BIAS), float("-inf"))
        p = tl.exp(s - lse[:, None])
        dpe = tl.dot(do, tl.trans(v), input_precision=DOTS)
        dp = tl.where(valid & (p + floor[:, None] > 0.0), dpe, 0.0)
        delta += tl.sum(p * dp, 1)
    tl.store(delta_ptr + offs_m * stride_deltam, delta, mask=offs_m < n_ctx)


@triton.jit
def lazy_dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, bias_ptr, tau_ptr, seqlens_ptr, lse_ptr, delta_ptr,
    dq_ptr, dbias_ptr, dtau_ptr, p_ptr, dp_ptr, ds_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_dom, stride_dod,
    stride_biash, stride_biasw, stride_tauh, stride_seqlensb,
    stride_lseb, stride_lseh, stride_lsem,
    stride_deltab, stride_deltah, stride_deltam,
    stride_dqb, stride_dqh, stride_dqm, stride_dqd,
    stride_dbiash, stride_dbiasw, stride_dtauh,
    stride_pb, stride_ph, stride_pm, stride_pn,
    stride_dpb, stride_dph, stride_dpm, stride_dpn,
    stride_dsb, stride_dsh, stride_dsm, stride_dsn,
    scale, n_heads, n_ctx: tl.int64, head_dim, window,
    HAS_BIAS: tl.constexpr, HAS_SEQLENS: tl.constexpr, EXPORT: tl.constexpr, DOTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    n_tiles = tl.cdiv(n_ctx, BLOCK_M)
    pid = tl.program_id(0).to(tl.int64)
    b, h, tile_m = pid // n_tiles // n_heads, pid // n_tiles % n_heads, pid % n_tiles
    length = load_length(seqlens_ptr, b, stride_seqlensb, n_ctx, HAS_SEQLENS)
    tau = tl.load(tau_ptr + h * stride_tauh).to(tl.float32)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    do_ptr += b * stride_dob + h * stride_doh
    lse_ptr += b * stride_lseb + h * stride_lseh
    delta_ptr += b * stride_deltab + h * stride_deltah
    dq_ptr += b * stride_dqb + h * stride_dqh
    if HAS_BIAS:
        bias_ptr += h * stride_biash
        dbias_ptr += h * stride_dbiash
    if EXPORT:
        p_ptr += b * stride_pb + h * stride_ph
        dp_ptr += b * stride_dpb + h * stride_dph
        ds_ptr += b * stride_dsb + h * stride_dsh

    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    end_n = tl.minimum((tile_m + 1) * BLOCK_M, length)
    q = load_tile(q_ptr, offs_m, offs_d, stride_qm, stride_qd, n_ctx, head_dim)
    do = load_tile(do_ptr, offs_m, offs_d, stride_dom, stride_dod, n_ctx, head_dim)
    lse = tl.load(lse_ptr + offs_m * stride_lsem, mask=offs_m < length, other=0.0)
    delta = tl.load(delta_ptr + offs_m * stride_deltam, mask=offs_m < length, other=0.0)
    position = (offs_m + 1).to(tl.float32)

    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    dtau = tl.zeros([BLOCK_M], tl.float32)
    for start_n in range(0, end_n, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)
        k = load_tile(k_ptr, offs_n, offs_d, stride_kn, stride_kd, n_ctx, head_dim)
        v = load_tile(v_ptr, offs_n, offs_d, stride_vn, stride_vd, n_ctx, head_dim)
        distance = offs_m[:, None] - offs_n[None, :]
        valid = (distance >= 0) & (offs_n[None, :] < length) & (offs_m[:, None] < length)
        s = tl.dot(q, tl.trans(k), input_precision=DOTS) * scale
        s = tl.where(valid, add_bias(s, bias_ptr, distance, stride_biasw, window, HAS_BIAS), float("-inf"))
        p = tl.exp(s - lse[:, None])
        dpe = tl.dot(do, tl.trans(v), input_precision=DOTS)
        dp = tl.where(valid & (p + (tau / position)[:, None] > 0.0), dpe, 0.0)
        ds = p * (dp - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision=DOTS)
        dtau += tl.sum(dp, 1) / position
        if HAS_BIAS:
            in_window = valid & (distance < window)
            tl.atomic_add(dbias_ptr + distance * stride_dbiasw, ds, mask=in_window)
        if EXPORT:
            store_tile(p_ptr, p, offs_m, offs_n, stride_pm, stride_pn, n_ctx, n_ctx)
            store_tile(dp_ptr, dp, offs_m, offs_n, stride_dpm, stride_dpn, n_ctx, n_ctx)
            store_tile(ds_ptr, ds, offs_m, offs_n, stride_dsm, stride_dsn, n_ctx, n_ctx)
    store_tile(dq_ptr, dq * scale, offs_m, offs_d, stride_dqm, stride_dqd, n_ctx, head_dim)
    tl.atomic_add(dtau_ptr + h * stride_dtauh, tl.sum(dtau, 0))


@triton.jit
def lazy_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, bias_ptr, tau_ptr, seqlens_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_dom, stride_dod,
    stride_biash, stride_biasw, stride_tauh, stride_seqlensb,
    stride_lseb, stride_lseh, stride_lsem,
    stride_deltab, stride_deltah, stride_deltam,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    scale, n_heads, n_ctx: tl.int64, head_dim, window,
    HAS_BIAS: tl.constexpr, HAS_SEQLENS: tl.constexpr, DOTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    n_tiles = tl.cdiv(n_ctx, BLOCK_N)
    pid = tl.program_id(0).to(tl.int64)
    b, h, tile_n = pid // n_tiles // n_heads, pid // n_tiles % n_heads, pid % n_tiles
    length = load_length(seqlens_ptr, b, stride_seqlensb, n_ctx, HAS_SEQLENS)
    tau = tl.load(tau_ptr + h * stride_tauh).to(tl.float32)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    do_ptr += b * stride_dob + h * stride_doh
    lse_ptr += b * stride_lseb + h * stride_lseh
    delta_ptr += b * stride_deltab + h * stride_deltah
    dk_ptr += b * stride_dkb + h * stride_dkh
    dv_ptr += b * stride_dvb + h * stride_dvh
    if HAS_BIAS:
        bias_ptr += h * stride_biash

    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    k = load_tile(k_ptr, offs_n, offs_d, stride_kn, stride_kd, n_ctx, head_dim)
    v = load_tile(v_ptr, offs_n, offs_d, stride_vn, stride_vd, n_ctx, head_dim)

    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    # Tiles of S are computed transposed, [n, m]: the dots below then need no transpose of a computed tile.
    for start_m in range(tile_n * BLOCK_N // BLOCK_M * BLOCK_M, length, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M).to(tl.int64)
        q = load_tile(q_ptr, offs_m, offs_d, stride_qm, stride_qd, n_ctx, head_dim)
        do = load_tile(do_ptr, offs_m, offs_d, stride_dom, stride_dod, n_ctx, head_dim)
        lse = tl.load(lse_ptr + offs_m * stride_lsem, mask=offs_m < length, other=0.0)
        delta = tl.load(delta_ptr + offs_m * stride_deltam, mask=offs_m < length, other=0.0)
        floor = tau / (offs_m + 1).to(tl.float32)
        distance = offs_m[None, :] - offs_n[:, None]
        valid = (distance >= 0) & (offs_n[:, None] < length) & (offs_m[None, :] < length)
        s = tl.dot(k, tl.trans(q), input_precision=DOTS) * scale
        s = tl.where(valid, add_bias(s, bias_ptr, distance, stride_biasw, window, HAS_BIAS), float("-inf"))
        p = tl.exp(s - lse[None, :])
        z = p + floor[None, :]
        pe = tl.where(valid, tl.maximum(z, 0.0), 0.0)
        dv += tl.dot(pe.to(do.dtype), do, input_precision=DOTS)
        dpe = tl.dot(v, tl.trans(do), input_precision=DOTS)
        dp = tl.where(valid & (z > 0.0), dpe, 0.0)
        ds = p * (dp - delta[None, :])
        dk += tl.dot(ds.to(q.dtype), q, input_precision=DOTS)
    store_tile(dk_ptr, dk * scale, offs_n, offs_d, stride_dkn, stride_dkd, n_ctx, head_dim)
    store_tile(dv_ptr, dv, offs_n, offs_d, stride_dvn, stride_dvd, n_ctx, head_dim)


def _check(q, others, bias, tau, seqlens, lse=None):
    if q.dim() != 4:
        raise ValueError(f"q must be [B, H, L, D], got shape {tuple(q.shape)}")
    for name, tensor in others.items():
        if tensor.shape != q.shape or tensor.dtype != q.dtype:
            raise ValueError(
                f"{name} must match q, {tuple(q.shape)} {q.dtype}, got {tuple(tensor.shape)} {tensor.dtype}"
            )
    if tau.shape != q.shape[1:2]:
        raise ValueError(f"tau must be [H] = ({q.shape[1]},), got shape {tuple(tau.shape)}")
    if bias is not None and (bias.dim() != 2 or bias.shape[0] != q.shape[1]):
        raise ValueError(f"bias must be [H, W] with H = {q.shape[1]}, got shape {tuple(bias.shape)}")
    if seqlens is not None and (seqlens.shape != q.shape[:1] or seqlens.is_floating_point()):
        raise ValueError(
            f"seqlens must be [B] = ({q.shape[0]},) integers, got shape {tuple(seqlens.shape)} {seqlens.dtype}"
        )
    if lse is not None and lse.shape != q.shape[:3]:
        raise ValueError(f"lse must be [B, H, L] = {tuple(q.shape[:3])}, got shape {tuple(lse.shape)}")


def _written(name, given, like):
    # where a gradient is written
    if given is None:
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)
    if given.shape != like.shape or given.dtype != like.dtype:
        own = f"{tuple(like.shape)} {like.dtype}"
        raise ValueError(f"{name} must match {name[1:]}, {own}, got {tuple(given.shape)} {given.dtype}")
    if any(size > 1 and step == 0 for size, step in zip(given.shape, given.stride(), strict=True)):
        raise ValueError(
            f"{name} must hold each element apart, got stride 0 among {given.stride()} of {tuple(given.shape)}"
        )
    return given


def _strides(tensor, axes):
    return (0,) * axes if tensor is None else tensor.stride()


def _options(q, bias, seqlens, scale, dots, block_m, block_n):
    return {
        "scale": q.shape[3] ** -0.5 if scale is None else scale,
        "n_heads": q.shape[1],
        "n_ctx": q.shape[2],
        "head_dim": q.shape[3],
        "window": 0 if bias is None else bias.shape[1],
        "HAS_BIAS": bias is not None,
        "HAS_SEQLENS": seqlens is not None,
        "DOTS": dots,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        # tl.dot needs at least 16 along every axis
        "BLOCK_D": max(16, triton.next_power_of_2(q.shape[3])),
    }


def lazy_forward(q, k, v, *, tau, bias=None, scale=None, seqlens=None, dots="ieee", block_m=32, block_n=32):
    """Lazy attention's output and log-sum-exp.

    Args:
        q, k, v: [B, H, L, D], float32, float16 or bfloat16, any strides.
        tau: [H], either sign.
        bias: [H, W] by distance i - j, or None.
        scale: of the scores; 1 / sqrt(D) when None.
        seqlens: [B] integers, the live length of each batch (right padding), or None.
        dots: "ieee" or "tf32", the arithmetic of float32 dots on a GPU.
        block_m, block_n: tile sizes, powers of two from 16.

    Returns:
        (O [B, H, L, D] in q's dtype, LSE [B, H, L] float32, natural log). Rows at or beyond a batch's length hold 0 in
        O and -inf in LSE.

    Raises:
        ValueError: where shapes or dtypes do not agree.
    """
    _check(q, {"k": k, "v": v}, bias, tau, seqlens)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    grid = (q.shape[0] * q.shape[1] * triton.cdiv(q.shape[2], block_m),)
    lazy_forward_kernel[grid](
        q, k, v, bias, tau, seqlens, o, lse,
        *q.stride(), *k.stride(), *v.stride(),
        *_strides(bias, 2), *tau.stride(), *_strides(seqlens, 1),
        *o.stride(), *lse.stride(),
        **_options(q, bias, seqlens, scale, dots, block_m, block_n),
    )  # fmt: skip
    return o, lse


def lazy_backward(
    q, k, v, do, *, tau, lse=None, bias=None, scale=None, seqlens=None,
    dots="ieee", block_m=32, block_n=32, export=False, dq=None, dk=None, dv=None,
):  # fmt: skip
    """The gradients of lazy attention, and on request the intermediates that the kernels keep on chip.

    Args:
        do: [B, H, L, D], the gradient of O, any strides, 0 included.
        lse: [B, H, L] float32, natural log, from `lazy_forward`; computed here when None.
        export: also store P, dP and dS, each [B, H, L, L] float32.
        dq, dk, dv: where the gradient is written, like q, any strides but 0; made here when None.
        The others are those of `lazy_forward`.

    Returns:
        A dict of dQ, dK, dV [B, H, L, D] in q's dtype, delta [B, H, L] float32, dTau [H], dBias [H, W] where there is a
        bias, and with `export` P, dP and dS. Rows at or beyond a batch's length are 0.

    Raises:
        ValueError: where shapes or dtypes do not agree.
    """
    _check(q, {"k": k, "v": v, "do": do}, bias, tau, seqlens, lse)
    dq, dk, dv = _written("dq", dq, q), _written("dk", dk, k), _written("dv", dv, v)
    options = _options(q, bias, seqlens, scale, dots, block_m, block_n)
    if lse is None:
        _, lse = lazy_forward(
            q, k, v, tau=tau, bias=bias, scale=scale, seqlens=seqlens, dots=dots, block_m=block_m, block_n=block_n
        )
    n_batch, n_heads, n_ctx, _ = q.shape
    rows = n_batch * n_heads * triton.cdiv(n_ctx, block_m)
    columns = n_batch * n_heads * triton.cdiv(n_ctx, block_n)
    delta = torch.empty((n_batch, n_heads, n_ctx), dtype=torch.float32, device=q.device)
    # Added to by many programs, so these begin at zero; masked entries of the exports are never written.
    dtau = torch.zeros((n_heads,), dtype=torch.float32, device=q.device)
    dbias = None if bias is None else torch.zeros(bias.shape, dtype=torch.float32, device=q.device)
    p = dp = ds = None
    if export:
        p, dp, ds = (q.new_zeros((n_batch, n_heads, n_ctx, n_ctx), dtype=torch.float32) for _ in range(3))

    inputs = (q, k, v, do, bias, tau, seqlens, lse, delta)
    input_strides = (
        *q.stride(), *k.stride(), *v.stride(), *do.stride(),
        *_strides(bias, 2), *tau.stride(), *_strides(seqlens, 1), *lse.stride(), *delta.stride(),
    )  # fmt: skip
    lazy_preprocess_kernel[(rows,)](*inputs, *input_strides, **options)
    lazy_dq_kernel[(rows,)](
        *inputs, dq, dbias, dtau, p, dp, ds,
        *input_strides, *dq.stride(), *_strides(dbias, 2), *dtau.stride(),
        *_strides(p, 4), *_strides(dp, 4), *_strides(ds, 4),
        **options, EXPORT=export,
    )  # fmt: skip
    lazy_dkdv_kernel[(columns,)](
        *inputs, dk, dv, *input_strides, *dk.stride(), *dv.stride(), **options
    )  # fmt: skip

    results = {"delta": delta, "dQ": dq, "dK": dk, "dV": dv, "dTau": dtau.to(tau.dtype)}
    if bias is not None:
        results["dBias"] = dbias.to(bias.dtype)
    return results | ({"P": p, "dP": dp, "dS": ds} if export else {})


def lazy_intermediates(
    q, k, v, do, *, tau, bias=None, scale=None, seqlens=None, dots="ieee", block_m=32, block_n=32,
    dq=None, dk=None, dv=None,
):  # fmt: skip
    """Forward and backward with everything exposed: O and LSE beside what `lazy_backward` gives with `export`.

    Args:
        dq, dk, dv: where the gradient is written, like q, any strides but 0; made here when None.
        The others are those of `lazy_backward`.
    """
    options = {
        "tau": tau, "bias": bias, "scale": scale, "seqlens": seqlens,
        "dots": dots, "block_m": block_m, "block_n": block_n,
    }  # fmt: skip
    o, lse = lazy_forward(q, k, v, **options)
    gradients = {"dq": dq, "dk": dk, "dv": dv}
    return {"O": o, "LSE": lse} | lazy_backward(q, k, v, do, lse=lse, export=True, **gradients, **options)
