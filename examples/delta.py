"""delta = sum(dO * O) in Triton, with a fault: `gradprobe check examples/delta.py:delta`, then `gradprobe lint`."""

import torch
import triton
import triton.language as tl


@triton.jit
def delta_kernel(
    o_ptr, do_ptr, delta_ptr,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_dob, stride_doh, stride_dom, stride_dod,
    n_heads, n_ctx, head_dim, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(1) // n_heads, tl.program_id(1) % n_heads
    offs_m, offs_d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside = (offs_m[:, None] < n_ctx) & (offs_d[None, :] < head_dim)
    o_ptr += b * stride_ob + h * stride_oh
    do_ptr += b * stride_dob + h * stride_oh
    o = tl.load(o_ptr + offs_m[:, None] * stride_om + offs_d[None, :] * stride_od, mask=inside, other=0.0)
    do = tl.load(do_ptr + offs_m[:, None] * stride_dom + offs_d[None, :] * stride_dod, mask=inside, other=0.0)
    rows = (b * n_heads + h) * n_ctx + offs_m
    tl.store(delta_ptr + rows, tl.sum(o * do, axis=1), mask=offs_m < n_ctx)


def delta(q, k, v, do, *, o):
    """[B, H, L, D] in; delta, [B, H, L], out."""
    batch, heads, n_ctx, head_dim = do.shape
    found = torch.empty(batch, heads, n_ctx, device=do.device, dtype=torch.float32)
    grid = (triton.cdiv(n_ctx, 32), batch * heads)
    block_d = triton.next_power_of_2(head_dim)
    delta_kernel[grid](o, do, found, *o.stride(), *do.stride(), heads, n_ctx, head_dim, BLOCK_M=32, BLOCK_D=block_d)
    return {"delta": found}
