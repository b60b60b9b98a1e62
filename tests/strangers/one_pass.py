"""Attention whose backward is one kernel: a program holds a tile of keys, and adds its share of dQ by atomics.

Scores and LSE are in units of log2. Programs lie along one axis, and those of odd planes begin at the other end. The
next tile of queries is loaded before it is needed; the tiles that the diagonal cuts take another path.
"""

import torch
import triton
import triton.language as tl

ROWS, KEYS = 32, 16
LOG2E = 1.4426950408889634


@triton.jit
def _tile(ptr, rows, stride_row, stride_col, end, dim, DIM: tl.constexpr):
    cols = tl.arange(0, DIM)
    inside = (rows[:, None] < end) & (cols[None, :] < dim)
    where = ptr + rows[:, None] * stride_row + cols[None, :] * stride_col
    return tl.load(where, mask=inside, other=0.0)


@triton.jit
def _put(ptr, value, rows, stride_row, stride_col, end, dim, DIM: tl.constexpr):
    cols = tl.arange(0, DIM)
    inside = (rows[:, None] < end) & (cols[None, :] < dim)
    where = ptr + rows[:, None] * stride_row + cols[None, :] * stride_col
    tl.store(where, value.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def _place(pid, tiles, planes):
    plane = pid % planes
    turn = pid // planes
    return tl.where(plane % 2 == 0, turn, tiles - 1 - turn), plane


@triton.jit
def _absorb(
    acc, top, total, q, rows, start, k_ptr, k_l, k_d, v_ptr, v_l, v_d, length, dim, scale2,
    CAUSAL: tl.constexpr, CUT: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    keys = start + tl.arange(0, KEYS)
    k = _tile(k_ptr, keys, k_l, k_d, length, dim, DIM)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale2
    if CUT:
        s = tl.where(keys[None, :] < length, s, float("-inf"))
        if CAUSAL:
            s = tl.where(rows[:, None] >= keys[None, :], s, float("-inf"))
    higher = tl.maximum(top, tl.max(s, 1))
    fade = tl.exp2(top - higher)
    p = tl.exp2(s - higher[:, None])
    total = total * fade + tl.sum(p, 1)
    v = _tile(v_ptr, keys, v_l, v_d, length, dim, DIM)
    if CUT:
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    else:
        acc = tl.dot(p.to(v.dtype), v, acc=acc * fade[:, None], input_precision="ieee")
    return acc, higher, total


@triton.jit
def one_pass_forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    q_b, q_h, q_l, q_d, k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d, o_b, o_h, o_l, o_d,
    heads, planes, tiles, length, dim, scale2,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    tile, plane = _place(tl.program_id(0), tiles, planes)
    batch, head = (plane // heads).to(tl.int64), (plane % heads).to(tl.int64)
    k_ptr += batch * k_b + head * k_h
    v_ptr += batch * v_b + head * v_h
    rows = tile * ROWS + tl.arange(0, ROWS)
    q = _tile(q_ptr + batch * q_b + head * q_h, rows, q_l, q_d, length, dim, DIM)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    cut, end = length // KEYS * KEYS, length
    if CAUSAL:
        cut = tile * ROWS // KEYS * KEYS
        end = tl.minimum(tile * ROWS + ROWS, length)
    for start in range(0, cut, KEYS):
        acc, top, total = _absorb(
            acc, top, total, q, rows, start, k_ptr, k_l, k_d, v_ptr, v_l, v_d, length, dim, scale2,
            CAUSAL, False, KEYS, DIM,
        )  # fmt: skip
    for start in range(cut, end, KEYS):
        acc, top, total = _absorb(
            acc, top, total, q, rows, start, k_ptr, k_l, k_d, v_ptr, v_l, v_d, length, dim, scale2,
            CAUSAL, True, KEYS, DIM,
        )  # fmt: skip
    tl.store(lse_ptr + plane * length + rows, top + tl.log2(total), mask=rows < length)
    _put(
        o_ptr + batch * o_b + head * o_h, acc / total[:, None], rows, o_l, o_d, length, dim, DIM
    )


@triton.jit
def _of_tile(q, k, v, do, lse, delta, rows, keys, scale2, DIAGONAL: tl.constexpr):
    """P and dS of one tile."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    p = tl.exp2(s * scale2 - lse[:, None])
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    ds = p * (dp - delta[:, None])
    if DIAGONAL:
        seen = rows[:, None] >= keys[None, :]
        p = tl.where(seen, p, 0.0)
        ds = tl.where(seen, ds, 0.0)
    return p, ds


@triton.jit
def one_pass_backward(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
    q_b, q_h, q_l, q_d, k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d, do_b, do_h, do_l, do_d, dk_b, dk_h, dk_l, dk_d,
    heads, planes, tiles, length, dim, scale, scale2,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    tile, plane = _place(tl.program_id(0), tiles, planes)
    batch, head = (plane // heads).to(tl.int64), (plane % heads).to(tl.int64)
    q_ptr += batch * q_b + head * q_h
    do_ptr += batch * do_b + head * do_h
    keys = tile * KEYS + tl.arange(0, KEYS)
    k = _tile(k_ptr + batch * k_b + head * k_h, keys, k_l, k_d, length, dim, DIM)
    v = _tile(v_ptr + batch * v_b + head * v_h, keys, v_l, v_d, length, dim, DIM)
    dk = tl.zeros([KEYS, DIM], tl.float32)
    dv = tl.zeros([KEYS, DIM], tl.float32)
    first, clear = 0, 0
    if CAUSAL:
        first = tile * KEYS // ROWS * ROWS
        clear = tl.cdiv(tile * KEYS + KEYS, ROWS) * ROWS
    cols = tl.arange(0, DIM)
    rows = first + tl.arange(0, ROWS)
    q = _tile(q_ptr, rows, q_l, q_d, length, dim, DIM)
    do = _tile(do_ptr, rows, do_l, do_d, length, dim, DIM)
    for start in range(first, length, ROWS):
        rows = start + tl.arange(0, ROWS)
        lse = tl.load(lse_ptr + plane * length + rows, mask=rows < length, other=float("inf"))
        delta = tl.load(delta_ptr + plane * length + rows, mask=rows < length, other=0.0)
        if start < clear:
            p, ds = _of_tile(q, k, v, do, lse, delta, rows, keys, scale2, True)
        else:
            p, ds = _of_tile(q, k, v, do, lse, delta, rows, keys, scale2, False)
        dq = tl.dot(ds.to(k.dtype), k, input_precision="ieee") * scale
        where = dq_ptr + (plane * length + rows[:, None]).to(tl.int64) * dim + cols[None, :]
        tl.atomic_add(where, dq, mask=(rows[:, None] < length) & (cols[None, :] < dim))
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
        dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
        q = _tile(q_ptr, rows + ROWS, q_l, q_d, length, dim, DIM)
        do = _tile(do_ptr, rows + ROWS, do_l, do_d, length, dim, DIM)
    _put(dk_ptr + batch * dk_b + head * dk_h, dk * scale, keys, dk_l, dk_d, length, dim, DIM)
    _put(dv_ptr + batch * dk_b + head * dk_h, dv, keys, dk_l, dk_d, length, dim, DIM)


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        batch, heads, length, dim = q.shape
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
        tiles, planes = triton.cdiv(length, ROWS), batch * heads
        size = max(16, triton.next_power_of_2(dim))
        one_pass_forward[(tiles * planes,)](
            q, k, v, o, lse, *q.stride(), *k.stride(), *v.stride(), *o.stride(),
            heads, planes, tiles, length, dim, scale * LOG2E, causal, ROWS, KEYS, size,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale = causal, scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        batch, heads, length, dim = q.shape
        delta = (o.float() * do.float()).sum(-1)
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        dk, dv = (torch.empty(k.shape, dtype=k.dtype, device=k.device) for _ in range(2))
        tiles, planes = triton.cdiv(length, KEYS), batch * heads
        size = max(16, triton.next_power_of_2(dim))
        one_pass_backward[(tiles * planes,)](
            q, k, v, do, lse, delta, dq, dk, dv, *q.stride(), *k.stride(), *v.stride(), *do.stride(), *dk.stride(),
            heads, planes, tiles, length, dim, ctx.scale, ctx.scale * LOG2E, ctx.causal, ROWS, KEYS, size,
        )  # fmt: skip
        return dq.to(q.dtype), dk, dv, None, None


def one_pass(q, k, v, causal, scale):
    """O of [B, H, L, D] tensors."""
    return _OnePass.apply(q, k, v, causal, scale)
