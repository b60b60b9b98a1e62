"""A small attention backward in one Triton kernel, as a user would write it."""

TINY = """
import torch
import triton
import triton.language as tl


@triton.jit
def tiny_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, dq_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_km, stride_kd,
    stride_vb, stride_vh, stride_vm, stride_vd,
    stride_dob, stride_doh, stride_dom, stride_dod,
    stride_gb, stride_gh, stride_gm, stride_gd,
    scale, n_heads, n_ctx, head_dim,
    CAUSAL: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):
    pid = tl.program_id(0)
    b, h = pid // n_heads, pid % n_heads
    offs, offs_d = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK_D)[None, :]
    inside = (offs < n_ctx) & (offs_d < head_dim)
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + offs * stride_qm + offs_d * stride_qd, mask=inside, other=0.0)
    k = tl.load(k_ptr + b * stride_kb + h * stride_kh + offs * stride_km + offs_d * stride_kd, mask=inside, other=0.0)
    v = tl.load(v_ptr + b * stride_vb + h * stride_vh + offs * stride_vm + offs_d * stride_vd, mask=inside, other=0.0)
    p_do = do_ptr + b * stride_dob + h * stride_doh + offs * stride_dom + offs_d * stride_dod
    do = tl.load(p_do, mask=inside, other=0.0)
    keys = tl.arange(0, BLOCK)[None, :]
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    s = tl.where(keys < n_ctx, s, float("-inf"))
    if CAUSAL:
        s = tl.where(keys <= offs, s, float("-inf"))
    p = tl.exp(s - tl.max(s, 1)[:, None])
    p = p / tl.sum(p, 1)[:, None]
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    delta = tl.sum(p * dp, 1)
    ds = p * (dp - delta[:, None])
    place = b * stride_gb + h * stride_gh + offs * stride_gm + offs_d * stride_gd
    tl.store(dq_ptr + place, tl.dot(ds, k, input_precision="ieee") * scale, mask=inside)
    tl.store(dk_ptr + place, tl.dot(tl.trans(ds), q, input_precision="ieee") * scale, mask=inside)
    tl.store(dv_ptr + place, tl.dot(tl.trans(p), do, input_precision="ieee"), mask=inside)


def tiny(q, k, v, do, *, scale, causal=False):
    gradients = torch.zeros(3, *q.shape)
    batch, heads, rows, dim = q.shape
    tiny_kernel[(batch * heads,)](
        q, k, v, do, *gradients,
        *q.stride(), *k.stride(), *v.stride(), *do.stride(), *gradients[0].stride(),
        scale, heads, rows, dim,
        CAUSAL=causal, BLOCK=max(16, triton.next_power_of_2(rows)), BLOCK_D=max(16, triton.next_power_of_2(dim)),
    )
    return dict(zip(("dQ", "dK", "dV"), gradients))
"""
