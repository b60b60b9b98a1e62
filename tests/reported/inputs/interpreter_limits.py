"""Kernels that compile, and that the interpreter ran wrongly or not at all."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

exponential = tl.exp


@triton.jit
def weight_of(turn):
    return turn.to(tl.float32) * 2


@triton.jit
def rows_kernel(
    o_ptr,
    do_ptr,
    count_ptr,
    out_ptr,
    length,
    KIND: tl.constexpr,
    M: tl.constexpr,
    D: tl.constexpr,
):
    head, m = tl.program_id(1), tl.program_id(0) * M + tl.arange(0, M)
    at, seen = head * length * D + m[:, None] * D + tl.arange(0, D)[None, :], m[:, None] < length
    o, do = tl.load(o_ptr + at, mask=seen, other=0.0), tl.load(do_ptr + at, mask=seen, other=0.0)
    total = tl.sum(o * do, 1)
    if KIND == "alias":
        total = total * exponential(total * 0)
    if KIND == "loop":
        part = total * 0
        for turn in range(tl.load(count_ptr)):
            part += total * (turn % 2).to(tl.float32) * 0.5 + total * weight_of(turn) * 0.25
        total = part
    if KIND == "library":
        total = total * libdevice.pow(libdevice.cosh(total * 0), 2.0)
    if KIND == "assembly":
        total = tl.inline_asm_elementwise(
            "mov.f32 $0, $1;", "=r,r", [total], dtype=tl.float32, is_pure=True, pack=1
        )
    tl.store(out_ptr + head * length + m, total, mask=m < length)


def _delta(o, do, kind):
    batch, heads, length, dim = o.shape
    o, do, delta = o.contiguous(), do.contiguous(), torch.empty(batch, heads, length)
    grid, count = (triton.cdiv(length, 16), batch * heads), torch.tensor([2], dtype=torch.int32)
    rows_kernel[grid](o, do, count, delta, length, KIND=kind, M=16, D=dim)
    return {"delta": delta}


def _of(kind):
    return lambda q, k, v, do, o: _delta(o, do, kind)


alias, loop, library, assembly = map(_of, ("alias", "loop", "library", "assembly"))
