"""A right attention in the style of most published Triton kernels, and faults to plant in it.

Offsets of 32 bits, one head dim, which is a power of two and the same for v, as many keys as rows, no window, slopes
that lie contiguous: all of that is right for those who use it so.
"""

SOURCE = """
import torch
import triton
import triton.language as tl


@triton.jit
def _scores(q, k, offs_m, offs_n, slope, scale, n_ctx, CAUSAL: tl.constexpr):
    s = tl.dot(q, tl.trans(k)) * scale - slope * tl.abs(offs_m[:, None] - offs_n[None, :])
    seen = (offs_n[None, :] < n_ctx) & ((offs_m[:, None] >= offs_n[None, :]) | (not CAUSAL))
    return tl.where(seen, s, float("-inf"))


@triton.jit
def _fwd_kernel(
    Q, K, V, Slopes, Out, Lse,
    sqb, sqh, sqm, sqd, skb, skh, skn, skd, svb, svh, svn, svd, sob, soh, som, sod,
    scale, H, n_ctx, CAUSAL: tl.constexpr, SLOPES: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr,
):
    start, off_b, off_h = tl.program_id(0) * BLOCK, tl.program_id(1) // H, tl.program_id(1) % H
    offs_m, offs_d = start + tl.arange(0, BLOCK), tl.arange(0, D)
    q_ptrs = Q + off_b * sqb + off_h * sqh + offs_m[:, None] * sqm + offs_d[None, :] * sqd
    q = tl.load(q_ptrs, mask=offs_m[:, None] < n_ctx, other=0.0)
    slope = tl.load(Slopes + off_h) if SLOPES else 0.0
    m_i, l_i = tl.full([BLOCK], float("-inf"), tl.float32), tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, D], tl.float32)
    for n in range(0, n_ctx, BLOCK):
        offs_n = n + tl.arange(0, BLOCK)
        k = tl.load(K + off_b * skb + off_h * skh + offs_n[:, None] * skn + offs_d[None, :] * skd,
                    mask=offs_n[:, None] < n_ctx, other=0.0)
        v = tl.load(V + off_b * svb + off_h * svh + offs_n[:, None] * svn + offs_d[None, :] * svd,
                    mask=offs_n[:, None] < n_ctx, other=0.0)
        s = _scores(q, k, offs_m, offs_n, slope, scale, n_ctx, CAUSAL)
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p, alpha = tl.exp(s - m_new[:, None]), tl.exp(m_i - m_new)
        l_i, acc, m_i = l_i * alpha + tl.sum(p, 1), acc * alpha[:, None] + tl.dot(p.to(v.dtype), v), m_new
    o_ptrs = Out + off_b * sob + off_h * soh + offs_m[:, None] * som + offs_d[None, :] * sod
    tl.store(o_ptrs, (acc / l_i[:, None]).to(Out.dtype.element_ty), mask=offs_m[:, None] < n_ctx)
    tl.store(Lse + tl.program_id(1) * n_ctx + offs_m, m_i + tl.log(l_i), mask=offs_m < n_ctx)


@triton.jit
def _bwd_kernel(
    Q, K, V, DO, Slopes, Lse, Delta, DQ, DK, DV,
    sqb, sqh, sqm, sqd, skb, skh, skn, skd, svb, svh, svn, svd, sdob, sdoh, sdom, sdod,
    scale, H, n_ctx, CAUSAL: tl.constexpr, SLOPES: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr,
):
    off_b, off_h = tl.program_id(1) // H, tl.program_id(1) % H
    offs_n, offs_d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    own = tl.program_id(1) * n_ctx
    k = tl.load(K + off_b * skb + off_h * skh + offs_n[:, None] * skn + offs_d[None, :] * skd,
                mask=offs_n[:, None] < n_ctx, other=0.0)
    v = tl.load(V + off_b * svb + off_h * svh + offs_n[:, None] * svn + offs_d[None, :] * svd,
                mask=offs_n[:, None] < n_ctx, other=0.0)
    slope = tl.load(Slopes + off_h) if SLOPES else 0.0
    dk, dv = tl.zeros([BLOCK, D], tl.float32), tl.zeros([BLOCK, D], tl.float32)
    for m in range(0, n_ctx, BLOCK):
        offs_m = m + tl.arange(0, BLOCK)
        rows = offs_m < n_ctx
        q = tl.load(Q + off_b * sqb + off_h * sqh + offs_m[:, None] * sqm + offs_d[None, :] * sqd,
                    mask=rows[:, None], other=0.0)
        do = tl.load(DO + off_b * sdob + off_h * sdoh + offs_m[:, None] * sdom + offs_d[None, :] * sdod,
                     mask=rows[:, None], other=0.0)
        lse = tl.load(Lse + own + offs_m, mask=rows, other=float("inf"))
        delta = tl.load(Delta + own + offs_m, mask=rows, other=0.0)
        p = tl.exp(_scores(q, k, offs_m, offs_n, slope, scale, n_ctx, CAUSAL) - lse[:, None])
        dv += tl.dot(tl.trans(p.to(do.dtype)), do)
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None]) * scale
        dk += tl.dot(tl.trans(ds.to(q.dtype)), q)
        dq_ptrs = DQ + (own + offs_m[:, None]) * D + offs_d[None, :]
        tl.atomic_add(dq_ptrs, tl.dot(ds.to(k.dtype), k).to(tl.float32), mask=rows[:, None])
    out = (own + offs_n[:, None]) * D + offs_d[None, :]
    tl.store(DK + out, dk.to(DK.dtype.element_ty), mask=offs_n[:, None] < n_ctx)
    tl.store(DV + out, dv.to(DV.dtype.element_ty), mask=offs_n[:, None] < n_ctx)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, slopes, causal, scale):
        B, H, n_ctx, D = q.shape
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty((B, H, n_ctx), dtype=torch.float32, device=q.device)
        ctx.options = {"CAUSAL": causal, "SLOPES": slopes is not None, "BLOCK": 16, "D": D}
        ctx.grid, ctx.scale = (triton.cdiv(n_ctx, 16), B * H), scale
        _fwd_kernel[ctx.grid](
            q, k, v, slopes, o, lse, *q.stride(), *k.stride(), *v.stride(), *o.stride(), scale, H, n_ctx, **ctx.options
        )
        ctx.save_for_backward(q, k, v, slopes, o, lse)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, slopes, o, lse = ctx.saved_tensors
        B, H, n_ctx, D = q.shape
        delta = (do.float() * o.float()).sum(-1)
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
        _bwd_kernel[ctx.grid](
            q, k, v, do, slopes, lse, delta, dq, dk, dv, *q.stride(), *k.stride(), *v.stride(), *do.stride(),
            ctx.scale, H, n_ctx, **ctx.options
        )
        return dq.to(q.dtype), dk, dv, None, None, None


def attention(q, k, v, *, causal=False, scale=1.0, alibi_slopes=None):
    assert q.shape[:3] == k.shape[:3], "as many keys as rows, and as many key heads as heads"
    return _Attention.apply(q, k, v, alibi_slopes, causal, scale)
"""
# By name: what is found and what takes its place.
FAULTS = {
    "do_by_q_heads": ("off_h * sdoh", "off_h * sqh"),
    "delta_of_head_0": ("Delta + own + offs_m", "Delta + off_b * H * n_ctx + offs_m"),
    "rows_of_the_last_tile_unmasked": (
        'lse = tl.load(Lse + own + offs_m, mask=rows, other=float("inf"))', "lse = tl.load(Lse + own + offs_m)",
    ),
    "no_shape_is_checked": ("    assert q.shape[:3] == k.shape[:3]", "    assert True"),
}  # fmt: skip


def write(folder, fault=""):
    """The word of the attention, with the fault of that name where one is given."""
    find, replacement = FAULTS.get(fault, ("", ""))
    assert SOURCE.count(find) == 1 or not fault
    path = folder / f"{fault or 'right'}.py"
    path.write_text(SOURCE.replace(find, replacement) if fault else SOURCE)
    return f"{path}:attention"
