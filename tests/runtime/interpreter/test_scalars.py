"""Operands in the interpreter: what counts a loop, what is compared to make a mask, and what differs in type."""

import torch
import triton
import triton.language as tl

from gradprobe.frontends.triton import interpreter


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


@triton.jit
def multiply_twice(rows_ptr, columns_ptr, far, out_ptr, far_ptr, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    for turn in range(2):  # what the first turn works out of types the second finds
        places = turn * SIZE * SIZE + rows * SIZE + columns
        tl.store(out_ptr + places, tl.load(rows_ptr + rows) * tl.load(columns_ptr + columns))
        tl.store(far_ptr + places, tl.where(columns > 0, rows * far, columns - rows))


def test_operands_of_other_types_and_shapes_are_cast_and_spread_each_time():
    interpreter.mend_interpreter()
    rows, columns = torch.linspace(0, 1, 4).to(torch.float16), torch.linspace(1, 2, 4)
    out, far = torch.empty(2, 4, 4), torch.empty(2, 4, 4, dtype=torch.int64)
    multiply_twice[(1,)](rows, columns, 2**40, out, far, SIZE=4)
    product, distance = rows.float()[:, None] * columns, torch.arange(4)[:, None]
    places = torch.arange(4) > 0
    assert torch.equal(out, torch.stack([product, product]))
    assert torch.equal(far, torch.where(places, distance * 2**40, -distance).expand(2, 4, 4))
