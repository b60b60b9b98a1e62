"""Kernels that Triton's interpreter runs and no compiler takes, and those that it ran wrongly or not at all."""

import torch
import triton
import triton.language as tl

exponential = tl.exp
WEIGHT = 1.0
SHARE: tl.constexpr = tl.constexpr(1.0)
PLAIN = tl.constexpr(1.0)


@triton.jit
def rows_kernel(
    o_ptr, do_ptr, out_ptr, stride_h, stride_m, length,
    KIND: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    head, m = tl.program_id(1), tl.program_id(0) * M + tl.arange(0, M)
    d = tl.arange(0, D)
    at, seen = head * stride_h + m[:, None] * stride_m + d[None, :], m[:, None] < length
    o, do = tl.load(o_ptr + at, mask=seen, other=0.0), tl.load(do_ptr + at, mask=seen, other=0.0)
    total = tl.sum(o * do, 1)
    if KIND == "global":
        total = total * WEIGHT
    if KIND == "loop":
        mean = 0
        for _ in range(head + 1):
            mean = mean + 0.0
        total += mean
    if KIND == "wrong":
        total = total * (2.0 * WEIGHT)
    if KIND == "eight_bits":
        total = tl.where(head < 0, total.to(tl.float8e4nv).to(tl.float32), total)
    if KIND == "constant":
        total = total * SHARE * PLAIN
    if KIND == "alias":
        total = total * exponential(total * 0)
    if KIND == "assembly":
        total = tl.inline_asm_elementwise(
            "mov.f32 $0, $1;", "=r,r", [total], dtype=tl.float32, is_pure=True, pack=1
        )
    tl.store(out_ptr + head * length + m, total, mask=m < length)


def _delta(o, do, kind):
    batch, heads, length, dim = o.shape
    o, do, delta = o.contiguous(), do.contiguous(), torch.empty(batch, heads, length)
    grid = triton.cdiv(length, 16), batch * heads
    rows_kernel[grid](o, do, delta, length * dim, dim, length, KIND=kind, M=16, D=dim)
    return {"delta": delta}


def _of(kind):
    return lambda q, k, v, do, o: _delta(o, do, kind)


plain_global, loop = map(_of, ("global", "loop"))
eight_bits, wrong, constant = map(_of, ("eight_bits", "wrong", "constant"))
alias, assembly = map(_of, ("alias", "assembly"))


def causal_alone(q, k, v, do, o, causal=False):
    return _delta(o, do, "global" if causal else "constant")
