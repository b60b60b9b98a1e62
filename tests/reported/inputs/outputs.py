"""Triton backwards whose wrappers make dK and dV by `empty_like`, and store one by the other's strides."""

import torch
import triton
import triton.language as tl


@triton.jit
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, scale, heads, n_rows, keys,
    q_sb, q_sh, q_sl, k_sb, k_sh, k_sl, v_sb, v_sh, v_sl, do_sb, do_sh, do_sl,
    dk_sb, dk_sh, dk_sl, dv_sb, dv_sh, dv_sl,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.arange(0, D)
    here = n[:, None] < keys
    keys_at, rows = n[:, None], n_rows
    k = tl.load(k_ptr + b * k_sb + h * k_sh + keys_at * k_sl + d[None, :], mask=here, other=0.0)
    v = tl.load(v_ptr + b * v_sb + h * v_sh + keys_at * v_sl + d[None, :], mask=here, other=0.0)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    for start in range(0, rows, BM):
        m = start + tl.arange(0, BM)
        there = m[:, None] < rows
        q_at, do_at = b * q_sb + h * q_sh, b * do_sb + h * do_sh
        q = tl.load(q_ptr + q_at + m[:, None] * q_sl + d[None, :], mask=there, other=0.0)
        do = tl.load(do_ptr + do_at + m[:, None] * do_sl + d[None, :], mask=there, other=0.0)
        lse = tl.load(lse_ptr + tl.program_id(1) * rows + m, mask=m < rows, other=0.0)
        delta = tl.load(delta_ptr + tl.program_id(1) * rows + m, mask=m < rows, other=0.0)
        p = tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        p = tl.where(there & (n[None, :] < keys), p, 0.0)
        dv += tl.dot(tl.trans(p), do)
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dk += tl.dot(tl.trans(ds), q)
    dk *= scale
    tl.store(dk_ptr + b * dk_sb + h * dk_sh + n[:, None] * dk_sl + d[None, :], dk, mask=here)
    tl.store(dv_ptr + b * dv_sb + h * dv_sh + n[:, None] * dv_sl + d[None, :], dv, mask=here)


def _backward(q, k, v, do, dk, dv, dk_strides, dv_strides):
    batch, heads, rows, dim = q.shape
    scale = dim**-0.5
    scores = q @ k.mT * scale
    lse = scores.logsumexp(-1).contiguous()
    p = (scores - lse[..., None]).exp()
    delta = (do * (p @ v)).sum(-1).contiguous()
    dq = p * (do @ v.mT - delta[..., None]) @ k * scale
    q, k, v, do = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v, do))
    strides = [step for x in (q, k, v, do) for step in x.stride()[:3]]
    grid = (triton.cdiv(k.shape[2], 32), batch * heads)
    lengths = scale, heads, rows, k.shape[2]
    sizes = dim, 32, 32
    strides += [*dk_strides, *dv_strides]
    dkdv_kernel[grid](q, k, v, do, lse, delta, dk, dv, *lengths, *strides, *sizes)
    return {"dQ": dq, "dK": dk, "dV": dv}


def right(q, k, v, do):
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    dk, dv = (x if x.stride(-1) == 1 else x.contiguous() for x in (dk, dv))
    return _backward(q, k, v, do, dk, dv, dk.stride()[:3], dv.stride()[:3])


def dv_by_dk(q, k, v, do):
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    return _backward(q, k, v, do, dk, dv, dk.stride()[:3], dk.stride()[:3])
