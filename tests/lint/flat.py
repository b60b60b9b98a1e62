"""A wrapper that allocates by its inputs' extents: harmless where they are dense, many GiB where they lie far apart."""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr, stride_xb, stride_xh, stride_xm, stride_xd, stride_qh, heads, rows, dims,
                BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    inside = (offs_m < rows)[:, None] & (offs_d < dims)[None, :]
    x_ptr += b * stride_xb + h * stride_qh
    out_ptr += b * stride_xb + h * stride_xh
    x = tl.load(x_ptr + offs_m[:, None] * stride_xm + offs_d[None, :] * stride_xd, inside)
    tl.store(out_ptr + offs_m[:, None] * stride_xm + offs_d[None, :] * stride_xd, x, inside)


def extent(x):
    return sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)) + 1


def copied(x, q):
    """Three times as many elements each time."""
    batch, heads, rows, dims = x.shape
    flat = torch.empty(extent(x), dtype=x.dtype, device=x.device)
    scratch = torch.zeros(extent(flat), dtype=x.dtype, device=x.device)
    copy_kernel[(triton.cdiv(rows, 16), batch * heads)](
        x, flat, *x.stride(), q.stride(1), heads, rows, dims, BLOCK_M=16, BLOCK_D=triton.next_power_of_2(dims)
    )
    return flat.as_strided(x.shape, x.stride()) + torch.zeros(extent(scratch)).sum()


def backward(q, k, v, do, *, causal=False, scale=1.0):
    assert not causal
    wide = [x.detach().float().contiguous().requires_grad_() for x in (q, k, v)]
    o = (scale * wide[0] @ wide[1].mT).softmax(-1) @ wide[2]
    found = torch.autograd.grad((o * copied(do, q).float()).sum(), wide)
    return {name: x.to(q.dtype) for name, x in zip(("dQ", "dK", "dV"), found, strict=True)}


def needs_values(q, k, v, do, *, causal=False, scale=1.0):
    assert q.abs().sum().item() > 0
    return backward(q, k, v, do, causal=causal, scale=scale)
