"""A small kernel of bfloat16, and which of its operations are not what torch says."""

import itertools

import numpy as np
import torch
import triton
import triton.language as tl


@triton.jit
def probe_kernel(a_ptr, b_ptr, out_ptr, size: tl.constexpr):
    places = tl.arange(0, size)[:, None] * size + tl.arange(0, size)[None, :]
    a, b = tl.load(a_ptr + places), tl.load(b_ptr + places)
    out_ptr += places
    tl.store(out_ptr, tl.dot(a, b))
    tl.store(out_ptr + size * size, a * b * b - a)
    tl.store(out_ptr + 2 * size * size, tl.where(a < b, a, -b))
    tl.store(out_ptr + 3 * size * size, tl.exp(a.to(tl.float32)).to(tl.bfloat16))
    tl.store(out_ptr + 4 * size * size, tl.sum(a, 1)[:, None])
    tl.store(out_ptr + 5 * size * size, tl.max(a, 1)[:, None])
    tl.store(out_ptr + 6 * size * size, tl.cumsum(a, 1))


def wrong_operations():
    """The operations on bfloat16 whose results in the interpreter differ from torch's."""
    a = (torch.arange(256).reshape(16, 16) * 7 % 17 - 8).to(torch.bfloat16) / 4
    b = a.T.flip(0).contiguous()
    expected = {
        "dot": a.float() @ b.float(), "arithmetic": a * b * b - a,
        "comparison and where": torch.where(a < b, a, -b),
        "exp and casts": a.float().exp().bfloat16(), "sum": a.sum(1, keepdim=True),
        "max": a.amax(1, keepdim=True), "cumsum": a.cumsum(1),
    }  # fmt: skip
    found = torch.empty(len(expected), 16, 16)
    with np.errstate(all="ignore"):
        probe_kernel[(1,)](a, b, found, size=16)
    wrong = [
        (got != expected[name].float()).any() for name, got in zip(expected, found, strict=True)
    ]
    return list(itertools.compress(expected, wrong))
