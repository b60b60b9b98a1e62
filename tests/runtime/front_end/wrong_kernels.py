"""Kernels that no compiler takes."""

import triton
import triton.language as tl


@triton.jit
def keyword(a_ptr, out_ptr):
    tl.store(out_ptr, tl.load(a_ptr), value_type=tl.float32)


@triton.jit
def one_stride(a_ptr, out_ptr, stride):
    tl.store(out_ptr, tl.load(a_ptr + stride.to(tl.int64)))
