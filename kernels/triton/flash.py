"""Softmax attention in Triton, tile by tile: forward, and a backward of three kernels (preprocess, dq, dkdv).

Notation, for query row i and key j of one batch b and query head h, which reads key head h // G (natural logarithms):

    S = scale * Q K^T          T = softcap * tanh(S / softcap) + bias - alibi[h] * |diagonal(i) - j|, -inf where hidden
    LSE = log(exp(sink[h]) + sum_j exp(T))          P = exp(T - LSE)          O = P V

    dP = dO V^T                delta = rowsum(dO * O)                         dT = P * (dP - delta)
    dS = dT * (1 - tanh(S / softcap)^2)             dBias = dT, summed over the axes that bias broadcasts along
    dQ = scale * dS K          dK = scale * dS^T Q          dV = P^T dO          dK, dV summed over the G heads
    dSink[h] = -sum_bi exp(sink[h] - LSE) * delta

    visible: diagonal(i) - left <= j <= diagonal(i) + right and mask; diagonal(i) = i + N - M (bottom-right) or i

Packed sequences lie behind each other along M and N. A program works on one of them and counts its rows and keys from
0: the pointers it uses begin there. M and N are then that sequence's.

Names: `x_ptr` a tensor's first element, `p_x` the pointers of a tile, `offs_*` positions (64 bits wide, so that no
product with a stride overflows), `live_*` how many rows or keys are no padding. Every tensor has a stride of its own
for every axis; where it broadcasts along one, that stride is 0.
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
def load_extent(cu_seqlens_ptr, z, stride_cu, n_ctx, PACKED: tl.constexpr):
    # where a sequence begins, and its length
    if PACKED:
        first = tl.load(cu_seqlens_ptr + z * stride_cu).to(tl.int64)
        return first, tl.load(cu_seqlens_ptr + (z + 1) * stride_cu).to(tl.int64) - first
    return n_ctx * 0, n_ctx


@triton.jit
def load_live(seqlens_ptr, b, stride_seqlens, length, HAS_SEQLENS: tl.constexpr):
    if HAS_SEQLENS:
        return tl.load(seqlens_ptr + b * stride_seqlens).to(tl.int64)
    return length


@triton.jit
def soften(s, softcap):
    # softcap * tanh(s / softcap) and its derivative, each to a few roundings of itself. Both forms of the first take
    # something smaller from s or from softcap, so that what rounds inside counts little. The near one is the continued
    # fraction 1/(1 + z/(3 + z/(5 + z/(7 + z/(9 + z/11))))), which is off by less than 2^-30 here.
    x = tl.abs(s / softcap)
    u = tl.minimum(x, 1.0)
    z = u * u
    near = s - s * (z * (3465.0 + z * (189.0 + z)) / (10395.0 + z * (4725.0 + z * (210.0 + z))))
    e = tl.exp(-2.0 * x)
    far = softcap - softcap * (2.0 * e / (1.0 + e))
    return tl.where(x < 1.0, near, tl.where(s < 0.0, -far, far)), 4.0 * e / ((1.0 + e) * (1.0 + e))


@triton.jit
def load_at(ptr, m, n, stride_m, stride_n, seen):
    # an entry for each pair of positions, in whichever shapes these broadcast to; 0 where none is seen
    return tl.load(ptr + m * stride_m + n * stride_n, mask=seen, other=0)


@triton.jit
def visible(m, n, distance, live_m, live_n, left, right):
    # distance: diagonal(m) - n, how far a key lies behind its row
    return (m < live_m) & (n < live_n) & (distance <= left) & (distance >= -right)


@triton.jit
def keys_of_rows(start_m, live_m, live_n, shift, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    # the range of keys, from a whole tile on, that any live row of a tile can see
    last_m = tl.minimum(start_m + BLOCK_M, live_m) - 1
    first = tl.maximum(start_m + shift - left, 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(last_m + shift + right + 1, live_n)
    return first, tl.where(start_m < live_m, end, 0)


@triton.jit
def rows_of_keys(start_n, live_m, live_n, shift, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    # the range of rows, from a whole tile on, that see any live key of a tile
    last_n = tl.minimum(start_n + BLOCK_N, live_n) - 1
    first = tl.maximum(start_n - shift - right, 0) // BLOCK_M * BLOCK_M
    end = tl.minimum(last_n - shift + left + 1, live_m)
    return first, tl.where(start_n < live_n, end, 0)


@triton.jit
def flash_forward_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, alibi_ptr, mask_ptr, seqlens_ptr, cu_q_ptr, cu_k_ptr, sinks_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_biasb, stride_biash, stride_biasm, stride_biasn, stride_alibih,
    stride_maskb, stride_maskh, stride_maskm, stride_maskn,
    stride_seqlensb, stride_cuq, stride_cuk, stride_sinksh,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_lseb, stride_lseh, stride_lsem,
    n_tiles,
    scale, softcap, n_heads, group, n_ctx_m: tl.int64, n_ctx_n: tl.int64, head_dim, head_dim_v,
    left: tl.int64, right: tl.int64,
    BOTTOM_RIGHT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ALIBI: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_SEQLENS: tl.constexpr, PACKED: tl.constexpr, DOTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    z, h, tile_m = pid // n_tiles // n_heads, pid // n_tiles % n_heads, pid % n_tiles
    kv_h = h // group
    b = z * 0 if PACKED else z
    first_m, n_rows = load_extent(cu_q_ptr, z, stride_cuq, n_ctx_m, PACKED)
    first_n, n_keys = load_extent(cu_k_ptr, z, stride_cuk, n_ctx_n, PACKED)
    live_m = load_live(seqlens_ptr, b, stride_seqlensb, n_rows, HAS_SEQLENS)
    live_n = load_live(seqlens_ptr, b, stride_seqlensb, n_keys, HAS_SEQLENS)
    shift = n_keys - n_rows if BOTTOM_RIGHT else n_rows * 0
    q_ptr += b * stride_qb + h * stride_qh + first_m * stride_qm
    k_ptr += b * stride_kb + kv_h * stride_kh + first_n * stride_kn
    v_ptr += b * stride_vb + kv_h * stride_vh + first_n * stride_vn
    o_ptr += b * stride_ob + h * stride_oh + first_m * stride_om
    lse_ptr += b * stride_lseb + h * stride_lseh + first_m * stride_lsem
    if HAS_BIAS:
        bias_ptr += b * stride_biasb + h * stride_biash + first_m * stride_biasm + first_n * stride_biasn
    if HAS_ALIBI:
        slope = tl.load(alibi_ptr + h * stride_alibih).to(tl.float32)
    if HAS_MASK:
        mask_ptr += b * stride_maskb + h * stride_maskh + first_m * stride_maskm + first_n * stride_maskn

    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    offs_dv = tl.arange(0, BLOCK_DV).to(tl.int64)
    q = load_tile(q_ptr, offs_m, offs_d, stride_qm, stride_qd, live_m, head_dim)

    # A sink is a key without a value: the sums begin with it. A row that sees nothing at all keeps -inf.
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    if HAS_SINKS:
        row_max = tl.zeros([BLOCK_M], tl.float32) + tl.load(sinks_ptr + h * stride_sinksh).to(tl.float32)
    row_sum = tl.where(row_max == float("-inf"), 0.0, 1.0)
    o = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    first, end = keys_of_rows(tile_m * BLOCK_M, live_m, live_n, shift, left, right, BLOCK_M, BLOCK_N)
    for start_n in range(first, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)
        k = load_tile(k_ptr, offs_n, offs_d, stride_kn, stride_kd, live_n, head_dim)
        v = load_tile(v_ptr, offs_n, offs_dv, stride_vn, stride_vd, live_n, head_dim_v)
        m, n = offs_m[:, None], offs_n[None, :]
        distance = m + shift - n
        seen = visible(m, n, distance, live_m, live_n, left, right)
        if HAS_MASK:
            seen &= load_at(mask_ptr, m, n, stride_maskm, stride_maskn, seen) != 0
        s = tl.dot(q, tl.trans(k), input_precision=DOTS) * scale
        if HAS_SOFTCAP:
            s, _ = soften(s, softcap)
        if HAS_BIAS:
            s += load_at(bias_ptr, m, n, stride_biasm, stride_biasn, seen).to(tl.float32)
        if HAS_ALIBI:
            s -= slope * tl.abs(distance).to(tl.float32)
        s = tl.where(seen, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1))
        lowest = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp(s - lowest[:, None])
        decay = tl.exp(row_max - lowest)
        row_sum = row_sum * decay + tl.sum(p, 1)
        o = o * decay[:, None] + tl.dot(p.to(v.dtype), v, input_precision=DOTS)
        row_max = new_max
    safe_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    store_tile(o_ptr, o / safe_sum[:, None], offs_m, offs_dv, stride_om, stride_od, n_rows, head_dim_v)
    tl.store(lse_ptr + offs_m * stride_lsem, row_max + tl.log(safe_sum), mask=offs_m < n_rows)


@triton.jit
def flash_preprocess_kernel(
    o_ptr, do_ptr, sinks_ptr, seqlens_ptr, cu_q_ptr, lse_ptr, delta_ptr, dsink_ptr,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_dob, stride_doh, stride_dom, stride_dod,
    stride_sinksh, stride_seqlensb, stride_cuq,
    stride_lseb, stride_lseh, stride_lsem,
    stride_deltab, stride_deltah, stride_deltam, stride_dsinkh,
    n_tiles, n_heads, n_ctx_m: tl.int64, head_dim_v,
    HAS_SINKS: tl.constexpr, HAS_SEQLENS: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    z, h, tile_m = pid // n_tiles // n_heads, pid // n_tiles % n_heads, pid % n_tiles
    b = z * 0 if PACKED else z
    first_m, n_rows = load_extent(cu_q_ptr, z, stride_cuq, n_ctx_m, PACKED)
    live_m = load_live(seqlens_ptr, b, stride_seqlensb, n_rows, HAS_SEQLENS)
    o_ptr += b * stride_ob + h * stride_oh + first_m * stride_om
    do_ptr += b * stride_dob + h * stride_doh + first_m * stride_dom
    lse_ptr += b * stride_lseb + h * stride_lseh + first_m * stride_lsem
    delta_ptr += b * stride_deltab + h * stride_deltah + first_m * stride_deltam

    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_dv = tl.arange(0, BLOCK_DV).to(tl.int64)
    o = load_tile(o_ptr, offs_m, offs_dv, stride_om, stride_od, live_m, head_dim_v).to(tl.float32)
    do = load_tile(do_ptr, offs_m, offs_dv, stride_dom, stride_dod, live_m, head_dim_v).to(tl.float32)
    delta = tl.sum(do * o, 1)
    tl.store(delta_ptr + offs_m * stride_deltam, delta, mask=offs_m < n_rows)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + h * stride_sinksh).to(tl.float32)
        lse = tl.load(lse_ptr + offs_m * stride_lsem, mask=offs_m < live_m, other=float("inf"))
        share = tl.where(lse == float("-inf"), 0.0, tl.exp(sink - tl.where(lse == float("-inf"), 0.0, lse)))
        tl.atomic_add(dsink_ptr + h * stride_dsinkh, -tl.sum(share * delta, 0))


@triton.jit
def flash_dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, bias_ptr, alibi_ptr, mask_ptr, seqlens_ptr, cu_q_ptr, cu_k_ptr, lse_ptr, delta_ptr,
    dq_ptr, dbias_ptr, p_ptr, dp_ptr, ds_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_dom, stride_dod,
    stride_biasb, stride_biash, stride_biasm, stride_biasn, stride_alibih,
    stride_maskb, stride_maskh, stride_maskm, stride_maskn,
    stride_seqlensb, stride_cuq, stride_cuk,
    stride_lseb, stride_lseh, stride_lsem,
    stride_deltab, stride_deltah, stride_deltam,
    stride_dqb, stride_dqh, stride_dqm, stride_dqd,
    stride_dbiasb, stride_dbiash, stride_dbiasm, stride_dbiasn,
    stride_pb, stride_ph, stride_pm, stride_pn,
    stride_dpb, stride_dph, stride_dpm, stride_dpn,
    stride_dsb, stride_dsh, stride_dsm, stride_dsn,
    n_tiles,
    scale, softcap, n_heads, group, n_ctx_m: tl.int64, n_ctx_n: tl.int64, head_dim, head_dim_v,
    left: tl.int64, right: tl.int64,
    BOTTOM_RIGHT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ALIBI: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_SEQLENS: tl.constexpr, PACKED: tl.constexpr, DOTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    EXPORT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    z, h, tile_m = pid // n_tiles // n_heads, pid // n_tiles % n_heads, pid % n_tiles
    kv_h = h // group
    b = z * 0 if PACKED else z
    first_m, n_rows = load_extent(cu_q_ptr, z, stride_cuq, n_ctx_m, PACKED)
    first_n, n_keys = load_extent(cu_k_ptr, z, stride_cuk, n_ctx_n, PACKED)
    live_m = load_live(seqlens_ptr, b, stride_seqlensb, n_rows, HAS_SEQLENS)
    live_n = load_live(seqlens_ptr, b, stride_seqlensb, n_keys, HAS_SEQLENS)
    shift = n_keys - n_rows if BOTTOM_RIGHT else n_rows * 0
    q_ptr += b * stride_qb + h * stride_qh + first_m * stride_qm
    k_ptr += b * stride_kb + kv_h * stride_kh + first_n * stride_kn
    v_ptr += b * stride_vb + kv_h * stride_vh + first_n * stride_vn
    do_ptr += b * stride_dob + h * stride_doh + first_m * stride_dom
    lse_ptr += b * stride_lseb + h * stride_lseh + first_m * stride_lsem
    delta_ptr += b * stride_deltab + h * stride_deltah + first_m * stride_deltam
    dq_ptr += b * stride_dqb + h * stride_dqh + first_m * stride_dqm
    if HAS_BIAS:
        bias_ptr += b * stride_biasb + h * stride_biash + first_m * stride_biasm + first_n * stride_biasn
        dbias_ptr += b * stride_dbiasb + h * stride_dbiash + first_m * stride_dbiasm + first_n * stride_dbiasn
    if HAS_ALIBI:
        slope = tl.load(alibi_ptr + h * stride_alibih).to(tl.float32)
    if HAS_MASK:
        mask_ptr += b * stride_maskb + h * stride_maskh + first_m * stride_maskm + first_n * stride_maskn
    if EXPORT:
        p_ptr += b * stride_pb + h * stride_ph + first_m * stride_pm + first_n * stride_pn
        dp_ptr += b * stride_dpb + h * stride_dph + first_m * stride_dpm + first_n * stride_dpn
        ds_ptr += b * stride_dsb + h * stride_dsh + first_m * stride_dsm + first_n * stride_dsn

    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    offs_dv = tl.arange(0, BLOCK_DV).to(tl.int64)
    q = load_tile(q_ptr, offs_m, offs_d, stride_qm, stride_qd, live_m, head_dim)
    do = load_tile(do_ptr, offs_m, offs_dv, stride_dom, stride_dod, live_m, head_dim_v)
    lse = tl.load(lse_ptr + offs_m * stride_lsem, mask=offs_m < live_m, other=0.0)
    lse = tl.where(lse == float("-inf"), 0.0, lse)
    delta = tl.load(delta_ptr + offs_m * stride_deltam, mask=offs_m < live_m, other=0.0)

    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first, end = keys_of_rows(tile_m * BLOCK_M, live_m, live_n, shift, left, right, BLOCK_M, BLOCK_N)
    for start_n in range(first, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)
        k = load_tile(k_ptr, offs_n, offs_d, stride_kn, stride_kd, live_n, head_dim)
        v = load_tile(v_ptr, offs_n, offs_dv, stride_vn, stride_vd, live_n, head_dim_v)
        m, n = offs_m[:, None], offs_n[None, :]
        distance = m + shift - n
        seen = visible(m, n, distance, live_m, live_n, left, right)
        if HAS_MASK:
            seen &= load_at(mask_ptr, m, n, stride_maskm, stride_maskn, seen) != 0
        s = tl.dot(q, tl.trans(k), input_precision=DOTS) * scale
        if HAS_SOFTCAP:
            s, steepness = soften(s, softcap)
        if HAS_BIAS:
            s += load_at(bias_ptr, m, n, stride_biasm, stride_biasn, seen).to(tl.float32)
        if HAS_ALIBI:
            s -= slope * tl.abs(distance).to(tl.float32)
        p = tl.exp(tl.where(seen, s, float("-inf")) - lse[:, None])
        dp = tl.where(seen, tl.dot(do, tl.trans(v), input_precision=DOTS), 0.0)
        ds = p * (dp - delta[:, None])
        if HAS_BIAS:
            tl.atomic_add(dbias_ptr + m * stride_dbiasm + n * stride_dbiasn, ds, mask=seen)
        if HAS_SOFTCAP:
            ds *= steepness
        dq += tl.dot(ds.to(k.dtype), k, input_precision=DOTS)
        if EXPORT:
            store_tile(p_ptr, p, offs_m, offs_n, stride_pm, stride_pn, live_m, live_n)
            store_tile(dp_ptr, dp, offs_m, offs_n, stride_dpm, stride_dpn, live_m, live_n)
            store_tile(ds_ptr, ds, offs_m, offs_n, stride_dsm, stride_dsn, live_m, live_n)
    store_tile(dq_ptr, dq * scale, offs_m, offs_d, stride_dqm, stride_dqd, n_rows, head_dim)


@triton.jit
def flash_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, bias_ptr, alibi_ptr, mask_ptr, seqlens_ptr, cu_q_ptr, cu_k_ptr, lse_ptr, delta_ptr,
    dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_dom, stride_dod,
    stride_biasb, stride_biash, stride_biasm, stride_biasn, stride_alibih,
    stride_maskb, stride_maskh, stride_maskm, stride_maskn,
    stride_seqlensb, stride_cuq, stride_cuk,
    stride_lseb, stride_lseh, stride_lsem,
    stride_deltab, stride_deltah, stride_deltam,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    n_tiles,
    scale, softcap, n_heads, group, n_ctx_m: tl.int64, n_ctx_n: tl.int64, head_dim, head_dim_v,
    left: tl.int64, right: tl.int64,
    BOTTOM_RIGHT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ALIBI: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_SEQLENS: tl.constexpr, PACKED: tl.constexpr, DOTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    n_kv_heads = n_heads // group
    z, kv_h, tile_n = pid // n_tiles // n_kv_heads, pid // n_tiles % n_kv_heads, pid % n_tiles
    b = z * 0 if PACKED else z
    first_m, n_rows = load_extent(cu_q_ptr, z, stride_cuq, n_ctx_m, PACKED)
    first_n, n_keys = load_extent(cu_k_ptr, z, stride_cuk, n_ctx_n, PACKED)
    live_m = load_live(seqlens_ptr, b, stride_seqlensb, n_rows, HAS_SEQLENS)
    live_n = load_live(seqlens_ptr, b, stride_seqlensb, n_keys, HAS_SEQLENS)
    shift = n_keys - n_rows if BOTTOM_RIGHT else n_rows * 0
    q_ptr += b * stride_qb + first_m * stride_qm
    k_ptr += b * stride_kb + kv_h * stride_kh + first_n * stride_kn
    v_ptr += b * stride_vb + kv_h * stride_vh + first_n * stride_vn
    do_ptr += b * stride_dob + first_m * stride_dom
    lse_ptr += b * stride_lseb + first_m * stride_lsem
    delta_ptr += b * stride_deltab + first_m * stride_deltam
    dk_ptr += b * stride_dkb + kv_h * stride_dkh + first_n * stride_dkn
    dv_ptr += b * stride_dvb + kv_h * stride_dvh + first_n * stride_dvn
    if HAS_BIAS:
        bias_ptr += b * stride_biasb + first_m * stride_biasm + first_n * stride_biasn
    if HAS_MASK:
        mask_ptr += b * stride_maskb + first_m * stride_maskm + first_n * stride_maskn

    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    offs_dv = tl.arange(0, BLOCK_DV).to(tl.int64)
    k = load_tile(k_ptr, offs_n, offs_d, stride_kn, stride_kd, live_n, head_dim)
    v = load_tile(v_ptr, offs_n, offs_dv, stride_vn, stride_vd, live_n, head_dim_v)

    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    first, end = rows_of_keys(tile_n * BLOCK_N, live_m, live_n, shift, left, right, BLOCK_M, BLOCK_N)
    # Every query head that reads this key head adds to the same sums: no atomics.
    for member in range(group):
        h = kv_h * group + member
        # Tiles of S are computed transposed, [n, m]: the dots below then need no transpose of a computed tile.
        for start_m in range(first, end, BLOCK_M):
            offs_m = start_m + tl.arange(0, BLOCK_M).to(tl.int64)
            q = load_tile(q_ptr + h * stride_qh, offs_m, offs_d, stride_qm, stride_qd, live_m, head_dim)
            do = load_tile(do_ptr + h * stride_doh, offs_m, offs_dv, stride_dom, stride_dod, live_m, head_dim_v)
            lse = tl.load(lse_ptr + h * stride_lseh + offs_m * stride_lsem, mask=offs_m < live_m, other=0.0)
            lse = tl.where(lse == float("-inf"), 0.0, lse)
            delta = tl.load(delta_ptr + h * stride_deltah + offs_m * stride_deltam, mask=offs_m < live_m, other=0.0)
            m, n = offs_m[None, :], offs_n[:, None]
            distance = m + shift - n
            seen = visible(m, n, distance, live_m, live_n, left, right)
            if HAS_MASK:
                seen &= load_at(mask_ptr + h * stride_maskh, m, n, stride_maskm, stride_maskn, seen) != 0
            s = tl.dot(k, tl.trans(q), input_precision=DOTS) * scale
            if HAS_SOFTCAP:
                s, steepness = soften(s, softcap)
            if HAS_BIAS:
                s += load_at(bias_ptr + h * stride_biash, m, n, stride_biasm, stride_biasn, seen).to(tl.float32)
            if HAS_ALIBI:
                s -= tl.load(alibi_ptr + h * stride_alibih).to(tl.float32) * tl.abs(distance).to(tl.float32)
            p = tl.exp(tl.where(seen, s, float("-inf")) - lse[None, :])
            dv += tl.dot(p.to(do.dtype), do, input_precision=DOTS)
            dp = tl.where(seen, tl.dot(v, tl.trans(do), input_precision=DOTS), 0.0)
            ds = p * (dp - delta[None, :])
            if HAS_SOFTCAP:
                ds *= steepness
            dk += tl.dot(ds.to(q.dtype), q, input_precision=DOTS)
    store_tile(dk_ptr, dk * scale, offs_n, offs_d, stride_dkn, stride_dkd, n_keys, head_dim)
    store_tile(dv_ptr, dv, offs_n, offs_dv, stride_dvn, stride_dvd, n_keys, head_dim_v)


def _check_shapes(q, k, v, do, o, lse):
    if q.dim() != 4:
        raise ValueError(f"q must be [B, H, M, D], got shape {tuple(q.shape)}")
    for name, tensor, axes in (("k", k, "[B, Hkv, N, D]"), ("v", v, "[B, Hkv, N, Dv]")):
        if tensor.dim() != 4:
            raise ValueError(f"{name} must be {axes}, got shape {tuple(tensor.shape)}")
    (batch, heads, rows, dim), (_, kv_heads, keys, _), dim_v = q.shape, k.shape, v.shape[3]
    expected = {
        "k": ("[B, Hkv, N, D]", k, (batch, kv_heads, keys, dim)),
        "v": ("[B, Hkv, N, Dv]", v, (batch, kv_heads, keys, dim_v)),
        "do": ("[B, H, M, Dv]", do, (batch, heads, rows, dim_v)),
        "o": ("[B, H, M, Dv]", o, (batch, heads, rows, dim_v)),
        "lse": ("[B, H, M]", lse, (batch, heads, rows)),
    }
    for name, (axes, tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must be {axes} = {shape} beside q {tuple(q.shape)}, got {tuple(tensor.shape)}")
        if tensor is not None and name != "lse" and tensor.dtype != q.dtype:
            raise ValueError(f"{name} must have q's dtype, {q.dtype}, got {tensor.dtype}")
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"the heads of k and v must divide those of q, got {kv_heads} and {heads}")


def _check_options(q, k, align, window, softcap, bias, alibi, mask, sinks):
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if align not in ("bottom-right", "top-left"):
        raise ValueError(f"align must be bottom-right or top-left, got {align!r}")
    if window is not None and (len(window) != 2 or min(window) < -1):
        raise ValueError(f"window must be (left, right), each -1 (no limit) or more, got {window}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be above 0, got {softcap}")
    for name, tensor in (("bias", bias), ("mask", mask)):
        if tensor is not None and not _broadcasts(tensor, full):
            raise ValueError(f"{name} must broadcast to [B, H, M, N] = {full}, got shape {tuple(tensor.shape)}")
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, True where a key is seen, got {mask.dtype}")
    for name, tensor in (("alibi", alibi), ("sinks", sinks)):
        if tensor is not None and tensor.shape != q.shape[1:2]:
            raise ValueError(f"{name} must be [H] = ({q.shape[1]},), got shape {tuple(tensor.shape)}")


def _broadcasts(tensor, full):
    shape = (1,) * (4 - tensor.dim()) + tuple(tensor.shape)
    return len(shape) == 4 and all(size in (1, whole) for size, whole in zip(shape, full, strict=True))


def _check_lengths(q, k, seqlens, cu_q, cu_k):
    rows, keys = q.shape[2], k.shape[2]
    if seqlens is not None:
        if seqlens.shape != q.shape[:1] or seqlens.is_floating_point():
            raise ValueError(
                f"seqlens must be [B] = ({q.shape[0]},) integers, got shape {tuple(seqlens.shape)} {seqlens.dtype}"
            )
        if rows != keys:
            raise ValueError(f"seqlens needs as many keys as query rows, got {keys} and {rows}")
        if cu_q is not None or cu_k is not None:
            raise ValueError("seqlens and cu_seqlens exclude each other: packed sequences have no padding")
        if any(not 0 <= length <= rows for length in seqlens.tolist()):
            raise ValueError(f"seqlens must lie in 0 to {rows}, got {seqlens.tolist()}")
    if (cu_q is None) != (cu_k is None):
        raise ValueError("cu_seqlens_q and cu_seqlens_k must be given together")
    if cu_q is None:
        return
    if q.shape[0] != 1:
        raise ValueError(f"packed sequences need a batch of 1, got {q.shape[0]}")
    for name, ends, total in (("cu_seqlens_q", cu_q, rows), ("cu_seqlens_k", cu_k, keys)):
        if ends.dim() != 1 or ends.shape != cu_q.shape or ends.shape[0] < 2 or ends.is_floating_point():
            raise ValueError(
                f"{name} must be [n + 1] integers for n sequences, got {tuple(ends.shape)} {ends.dtype} "
                f"beside cu_seqlens_q {tuple(cu_q.shape)}"
            )
        numbers = ends.tolist()
        if numbers != sorted(numbers) or numbers[0] != 0 or numbers[-1] != total:
            raise ValueError(f"{name} must ascend from 0 to {total}, got {numbers}")


def _expanded(tensor, shape):
    # [B, H, M, N], stride 0 where it broadcasts
    return None if tensor is None else tensor[(None,) * (4 - tensor.dim())].expand(shape)


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


def _plan(
    q, k, v, do=None, o=None, lse=None, *, causal, scale, align, window, softcap, bias, alibi, mask, sinks, seqlens,
    cu_seqlens_q, cu_seqlens_k, dots, block_m, block_n,
):  # fmt: skip
    # Once all is found to agree: the optional inputs of kernels that look at scores, their strides, the constants of
    # those kernels, and of both axes how many sequences there are and how many tiles cover the longest.
    _check_shapes(q, k, v, do, o, lse)
    _check_options(q, k, align, window, softcap, bias, alibi, mask, sinks)
    _check_lengths(q, k, seqlens, cu_seqlens_q, cu_seqlens_k)
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    extras = (_expanded(bias, full), alibi, _expanded(mask, full), seqlens, cu_seqlens_q, cu_seqlens_k)
    strides = [_strides(tensor, axes) for tensor, axes in zip(extras, (4, 1, 4, 1, 1, 1), strict=True)]
    left, right = window or (-1, -1)
    right = 0 if causal else right
    unlimited = q.shape[2] + k.shape[2]
    constants = {
        "scale": q.shape[3] ** -0.5 if scale is None else float(scale),
        "softcap": 0.0 if softcap is None else float(softcap),
        "n_heads": q.shape[1],
        "group": q.shape[1] // k.shape[1],
        "n_ctx_m": q.shape[2],
        "n_ctx_n": k.shape[2],
        "head_dim": q.shape[3],
        "head_dim_v": v.shape[3],
        "left": unlimited if left < 0 else left,
        "right": unlimited if right < 0 else right,
        "BOTTOM_RIGHT": align == "bottom-right",
        "HAS_SOFTCAP": softcap is not None,
        "HAS_BIAS": bias is not None,
        "HAS_ALIBI": alibi is not None,
        "HAS_MASK": mask is not None,
        "HAS_SEQLENS": seqlens is not None,
        "PACKED": cu_seqlens_q is not None,
        "DOTS": dots,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        # tl.dot needs at least 16 along every axis
        "BLOCK_D": max(16, triton.next_power_of_2(q.shape[3])),
        "BLOCK_DV": max(16, triton.next_power_of_2(v.shape[3])),
    }
    tiles = _tiles(q, cu_seqlens_q, block_m), _tiles(k, cu_seqlens_k, block_n)
    return extras, [stride for each in strides for stride in each], constants, *tiles


def _tiles(tensor, cu_seqlens, block):
    if cu_seqlens is None:
        return tensor.shape[0], triton.cdiv(tensor.shape[2], block)
    ends = cu_seqlens.tolist()
    return len(ends) - 1, triton.cdiv(max(end - first for first, end in zip(ends, ends[1:])), block)


def flash_forward(
    q, k, v, *, causal=False, scale=None, align="bottom-right", window=None, softcap=None, bias=None, alibi=None,
    mask=None, sinks=None, seqlens=None, cu_seqlens_q=None, cu_seqlens_k=None, dots="ieee", block_m=32, block_n=32,
):  # fmt: skip
    """Softmax attention's output and log-sum-exp.

    Args:
        q: [B, H, M, D], float32, float16 or bfloat16, any strides; so are k and v.
        k, v: [B, Hkv, N, D] and [B, Hkv, N, Dv]; Hkv divides H, and query head h reads key head h // (H / Hkv).
        causal: a row sees no key beyond its diagonal.
        scale: of the scores; 1 / sqrt(D) when None.
        align: where the diagonal lies, which causal, window and alibi count from: "bottom-right", at key i + N - M of
            row i, or "top-left", at key i.
        window: (left, right) keys around the diagonal, both included; -1 for no limit.
        softcap: scores become softcap * tanh(scores / softcap).
        bias: added to the capped scores; broadcasts to [B, H, M, N].
        alibi: [H] slopes; slope times the distance from the diagonal is taken off.
        mask: bool, broadcasts to [B, H, M, N], True where a key is seen.
        sinks: [H], for each head a logit that only the softmax's sum counts.
        seqlens: [B] integers, the live length of each batch (right padding), needs M = N. Read on the host too.
        cu_seqlens_q, cu_seqlens_k: [n + 1] integers ascending from 0 to M, and to N: where each of n packed sequences
            begins and the last one ends, in a batch of 1. A row sees keys of its own sequence, whose lengths count as
            M and N for the diagonal. Read on the host too.
        dots: "ieee" or "tf32", the arithmetic of float32 dots on a GPU.
        block_m, block_n: tile sizes, powers of two from 16.

    Returns:
        (O [B, H, M, Dv] in q's dtype, LSE [B, H, M] float32, natural log). A row that sees no key holds 0 in O, and in
        LSE its head's sink, -inf without sinks.

    Raises:
        ValueError: where shapes, dtypes or lengths do not agree.
    """
    extras, strides, constants, (n_sequences, n_tiles), _ = _plan(
        q, k, v, causal=causal, scale=scale, align=align, window=window, softcap=softcap, bias=bias, alibi=alibi,
        mask=mask, sinks=sinks, seqlens=seqlens, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        dots=dots, block_m=block_m, block_n=block_n,
    )  # fmt: skip
    o = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    flash_forward_kernel[(n_sequences * q.shape[1] * n_tiles,)](
        q, k, v, *extras, sinks, o, lse,
        *q.stride(), *k.stride(), *v.stride(), *strides, *_strides(sinks, 1), *o.stride(), *lse.stride(),
        n_tiles=n_tiles, HAS_SINKS=sinks is not None, **constants,
    )  # fmt: skip
    return o, lse


def flash_backward(
    q, k, v, do, *, causal=False, scale=None, align="bottom-right", window=None, softcap=None, bias=None, alibi=None,
    mask=None, sinks=None, seqlens=None, cu_seqlens_q=None, cu_seqlens_k=None, dots="ieee", block_m=32, block_n=32,
    o=None, lse=None, export=False, dq=None, dk=None, dv=None,
):  # fmt: skip
    """The gradients of softmax attention, and on request the intermediates that the kernels keep on chip.

    Args:
        do: [B, H, M, Dv], the gradient of O, any strides, 0 included.
        o, lse: [B, H, M, Dv] and [B, H, M] float32, natural log, from `flash_forward`; computed here when None.
        export: also store P, dP and dS, each [B, H, M, N] float32, 0 where a key is not seen.
        dq, dk, dv: where the gradient is written, like q, k and v, any strides but 0; made here when None.
        The others are those of `flash_forward`.

    Returns:
        A dict of dQ, dK, dV in the shapes and dtypes of q, k, v, delta [B, H, M] float32, dBias in the shape and dtype
        of bias where there is one, dSink [H] float32 where there are sinks, and with `export` P, dP and dS. Rows that
        see no key, and keys that no row sees, hold 0.

    Raises:
        ValueError: where shapes, dtypes or lengths do not agree.
    """
    options = {
        "causal": causal, "scale": scale, "align": align, "window": window, "softcap": softcap, "bias": bias,
        "alibi": alibi, "mask": mask, "sinks": sinks, "seqlens": seqlens, "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k, "dots": dots, "block_m": block_m, "block_n": block_n,
    }  # fmt: skip
    extras, strides, constants, (n_sequences, row_tiles), (_, key_tiles) = _plan(q, k, v, do, o, lse, **options)
    dq, dk, dv = _written("dq", dq, q), _written("dk", dk, k), _written("dv", dv, v)
    if o is None or lse is None:
        own_o, own_lse = flash_forward(q, k, v, **options)
        o, lse = own_o if o is None else o, own_lse if lse is None else lse
    (n_batch, n_heads, n_rows, _), n_kv_heads, n_keys = q.shape, k.shape[1], k.shape[2]
    delta = torch.empty((n_batch, n_heads, n_rows), dtype=torch.float32, device=q.device)
    # Added to by many programs, so these begin at zero; hidden entries of the exports are never written.
    dsink = None if sinks is None else torch.zeros((n_heads,), dtype=torch.float32, device=q.device)
    dbias = None if bias is None else torch.zeros(bias.shape, dtype=torch.float32, device=q.device)
    full_dbias = _expanded(dbias, (n_batch, n_heads, n_rows, n_keys))
    p = dp = ds = None
    if export:
        p, dp, ds = (q.new_zeros((n_batch, n_heads, n_rows, n_keys), dtype=torch.float32) for _ in range(3))

    row_grid, key_grid = (n_sequences * n_heads * row_tiles,), (n_sequences * n_kv_heads * key_tiles,)
    used = ("n_heads", "n_ctx_m", "head_dim_v", "HAS_SEQLENS", "PACKED", "BLOCK_M", "BLOCK_DV")
    flash_preprocess_kernel[row_grid](
        o, do, sinks, seqlens, cu_seqlens_q, lse, delta, dsink,
        *o.stride(), *do.stride(), *_strides(sinks, 1), *_strides(seqlens, 1), *_strides(cu_seqlens_q, 1),
        *lse.stride(), *delta.stride(), *_strides(dsink, 1),
        n_tiles=row_tiles, HAS_SINKS=sinks is not None, **{name: constants[name] for name in used},
    )  # fmt: skip
    inputs = (q, k, v, do, *extras, lse, delta)
    input_strides = (
        *q.stride(), *k.stride(), *v.stride(), *do.stride(), *strides, *lse.stride(), *delta.stride(),
    )  # fmt: skip
    flash_dq_kernel[row_grid](
        *inputs, dq, full_dbias, p, dp, ds,
        *input_strides, *dq.stride(), *_strides(full_dbias, 4), *_strides(p, 4), *_strides(dp, 4), *_strides(ds, 4),
        n_tiles=row_tiles, EXPORT=export, **constants,
    )  # fmt: skip
    flash_dkdv_kernel[key_grid](
        *inputs, dk, dv, *input_strides, *dk.stride(), *dv.stride(), n_tiles=key_tiles, **constants
    )  # fmt: skip

    results = {"delta": delta, "dQ": dq, "dK": dk, "dV": dv}
    if bias is not None:
        results["dBias"] = dbias.to(bias.dtype)
    if sinks is not None:
        results["dSink"] = dsink
    return results | ({"P": p, "dP": dp, "dS": ds} if export else {})


def flash_intermediates(
    q, k, v, do, *, causal=False, scale=None, align="bottom-right", window=None, softcap=None, bias=None, alibi=None,
    mask=None, sinks=None, seqlens=None, cu_seqlens_q=None, cu_seqlens_k=None, dots="ieee", block_m=32, block_n=32,
    dq=None, dk=None, dv=None,
):  # fmt: skip
    """Forward and backward with everything exposed: O and LSE beside what `flash_backward` gives with `export`.

    Args:
        dq, dk, dv: where the gradient is written, like q, k and v, any strides but 0; made here when None.
        The others are those of `flash_backward`.
    """
    options = {
        "causal": causal, "scale": scale, "align": align, "window": window, "softcap": softcap, "bias": bias,
        "alibi": alibi, "mask": mask, "sinks": sinks, "seqlens": seqlens, "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k, "dots": dots, "block_m": block_m, "block_n": block_n,
    }  # fmt: skip
    o, lse = flash_forward(q, k, v, **options)
    own = {"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv}
    return {"O": o, "LSE": lse} | flash_backward(q, k, v, do, export=True, **own, **options)


def flash_black_box(
    q, k, v, do, *, causal=False, scale=None, align="bottom-right", window=None, softcap=None, bias=None, alibi=None,
    mask=None, sinks=None, seqlens=None, cu_seqlens_q=None, cu_seqlens_k=None, dots="ieee", block_m=32, block_n=32,
    dq=None, dk=None, dv=None,
):  # fmt: skip
    """Only the gradients of what was given: dQ, dK, dV, and dBias and dSink where there is a bias and are sinks.

    Args:
        dq, dk, dv: where the gradient is written, like q, k and v, any strides but 0; made here when None.
        The others are those of `flash_backward`.
    """
    results = flash_backward(
        q, k, v, do, causal=causal, scale=scale, align=align, window=window, softcap=softcap, bias=bias, alibi=alibi,
        mask=mask, sinks=sinks, seqlens=seqlens, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        dots=dots, block_m=block_m, block_n=block_n, dq=dq, dk=dk, dv=dv,
    )  # fmt: skip
    return {name: value for name, value in results.items() if name != "delta"}
