"""The smallest kernels of what an attention backward is made of: atomic adds, dots, and a backward of one tile."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def add_one_kernel(out_ptr, stride_h):
    # every program of a head adds its number to the head's one element
    tl.atomic_add(out_ptr + tl.program_id(0) * stride_h, tl.program_id(1) + 1.0)


@triton.jit
def add_strided_kernel(out_ptr, stride_m, stride_n, n_rows, n_cols, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    # every program adds its number to all elements
    offs_m, offs_n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    p_out = out_ptr + offs_m[:, None] * stride_m + offs_n[None, :] * stride_n
    added = tl.zeros([BLOCK_M, BLOCK_N], tl.float32) + (tl.program_id(0) + 1.0)
    tl.atomic_add(p_out, added, mask=(offs_m[:, None] < n_rows) & (offs_n[None, :] < n_cols))


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, depth, SIZE: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):
    # out[0] = a b, and out[1] the same from a's transpose, which is turned on the chip
    offs, offs_k = tl.arange(0, SIZE), tl.arange(0, BLOCK_K)
    out = tl.zeros([SIZE, SIZE], tl.float32)
    turned = tl.zeros([SIZE, SIZE], tl.float32)
    for start in range(0, depth, BLOCK_K):
        a = tl.load(a_ptr + offs[:, None] * depth + (start + offs_k)[None, :])
        at = tl.load(a_ptr + offs[None, :] * depth + (start + offs_k)[:, None])
        b = tl.load(b_ptr + (start + offs_k)[:, None] * SIZE + offs[None, :])
        out = tl.dot(a, b, out, input_precision=PRECISION)
        turned = tl.dot(tl.trans(at), b, turned, input_precision=PRECISION)
    p_out = out_ptr + offs[:, None] * SIZE + offs[None, :]
    tl.store(p_out, out)
    tl.store(p_out + SIZE * SIZE, turned)


@triton.jit
def one_tile_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, dq_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_dob, stride_doh, stride_dom, stride_dod,
    stride_dqb, stride_dqh, stride_dqm, stride_dqd, stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    scale, n_ctx, head_dim, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # one program has a whole head: P, dP, delta and dS never leave the chip
    h, b = tl.program_id(0), tl.program_id(1)
    offs, offs_d = tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    live = (offs[:, None] < n_ctx) & (offs_d[None, :] < head_dim)
    rows, cols = offs[:, None], offs_d[None, :]
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    do_ptr += b * stride_dob + h * stride_doh
    q = tl.load(q_ptr + rows * stride_qm + cols * stride_qd, mask=live, other=0.0)
    k = tl.load(k_ptr + rows * stride_kn + cols * stride_kd, mask=live, other=0.0)
    v = tl.load(v_ptr + rows * stride_vn + cols * stride_vd, mask=live, other=0.0)
    do = tl.load(do_ptr + rows * stride_dom + cols * stride_dod, mask=live, other=0.0)
    s = tl.where(offs[None, :] < n_ctx, scale * tl.dot(q, tl.trans(k), input_precision="ieee"), float("-inf"))
    p = tl.exp(s - tl.max(s, 1)[:, None])
    p = p / tl.sum(p, 1)[:, None]
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    ds = p * (dp - tl.sum(p * dp, 1)[:, None])
    dq_ptr += b * stride_dqb + h * stride_dqh
    dk_ptr += b * stride_dkb + h * stride_dkh
    dv_ptr += b * stride_dvb + h * stride_dvh
    dq = scale * tl.dot(ds, k, input_precision="ieee")
    dk = scale * tl.dot(tl.trans(ds), q, input_precision="ieee")
    dv = tl.dot(tl.trans(p), do, input_precision="ieee")
    tl.store(dq_ptr + rows * stride_dqm + cols * stride_dqd, dq, mask=live)
    tl.store(dk_ptr + rows * stride_dkn + cols * stride_dkd, dk, mask=live)
    tl.store(dv_ptr + rows * stride_dvn + cols * stride_dvd, dv, mask=live)


def add_one(out: torch.Tensor, programs: int) -> None:
    """Adds 1, 2, ..., programs to each element of [H] float32, any stride, by atomic adds."""
    add_one_kernel[(out.shape[0], programs)](out, out.stride(0))


def add_strided(out: torch.Tensor, programs: int) -> None:
    """Adds 1, 2, ..., programs to each element of [M, N] float32, any strides, by atomic adds."""
    rows, cols = out.shape
    tiles = {"BLOCK_M": triton.next_power_of_2(rows), "BLOCK_N": triton.next_power_of_2(cols)}
    add_strided_kernel[(programs,)](out, *out.stride(), rows, cols, **tiles)


def dots(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """[2, S, S] float32, a b twice, the second with a turned on the chip.

    Args:
        a, b: [S, K] and [K, S] of one dtype, contiguous; S a power of two, K a multiple of 32.
        precision: of float32 operands: "ieee" or "tf32".
    """
    size, depth = a.shape
    out = torch.empty(2, size, size, dtype=torch.float32, device=a.device)
    dot_kernel[(1,)](a, b, out, depth, SIZE=size, BLOCK_K=32, PRECISION=precision)
    return out


def one_tile_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, *, scale: float
) -> dict[str, torch.Tensor]:
    """dQ, dK and dV of softmax attention without a mask, each head in one program.

    Args:
        q, k, v, do: [B, H, L, D] float32, any strides; L and D up to 64.
        scale: of the scores.
    """
    batch, heads, length, dim = q.shape
    made = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
    strides = [stride for x in (q, k, v, do, *made) for stride in x.stride()]
    blocks = {"BLOCK": max(16, triton.next_power_of_2(length)), "BLOCK_D": max(16, triton.next_power_of_2(dim))}
    one_tile_kernel[(heads, batch)](q, k, v, do, *made, *strides, scale, length, dim, **blocks)
    return dict(zip(("dQ", "dK", "dV"), made, strict=True))
