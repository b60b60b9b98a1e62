"""Scalars in the interpreter: what counts a loop, and what is compared to make a mask."""

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as shipped


@triton.jit
def sum_up_to(ends_ptr, out_ptr, limit, SIZE: tl.constexpr):
    offs = tl.arange(0, SIZE)
    total = tl.zeros([SIZE], tl.int32)
    for step in range(tl.load(ends_ptr)):
        total += step
    tl.store(out_ptr + offs, total, mask=(tl.program_id(0) < limit) & (offs < SIZE - 1))


def test_a_loaded_scalar_ends_a_loop_and_a_compared_one_is_part_of_a_mask():
    out = torch.full((4,), -1, dtype=torch.int32)
    sum_up_to[(1,)](torch.tensor([5]), out, 1, SIZE=4)
    assert out.tolist() == [10, 10, 10, -1]
    sum_up_to[(1,)](torch.tensor([6]), out, 0, SIZE=4)
    assert out.tolist() == [10, 10, 10, -1]


def test_a_compared_scalar_is_spread_as_bools_whatever_type_its_operands_have():
    compared = shipped.TensorHandle(np.array([True]), tl.int64)
    spread = shipped.InterpreterBuilder().create_splat(tl.block_type(tl.int1, [4]), compared)
    assert (spread.data.tolist(), spread.data.dtype) == ([True] * 4, bool)
