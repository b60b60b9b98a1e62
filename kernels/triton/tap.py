"""Stores a value that a kernel holds on chip at its place in a whole tensor."""

from __future__ import annotations

import triton
import triton.language as tl

# Behind the tensor's own elements lie marks: a scalar index was out of range; the value was of this dtype.
MARKS = ("out of range", "float16", "bfloat16", "other")


@triton.jit
def along(index, AXIS: tl.constexpr, RANK: tl.constexpr):
    # an index block along its axis of a tile; a scalar as it is
    if len(index.shape) == 1 and RANK == 2:
        index = index[:, None] if AXIS == 0 else index[None, :]
    return index


@triton.jit
def check_block(value, index, AXIS: tl.constexpr, TAP: tl.constexpr):
    if len(index.shape) == 1:
        LENGTH: tl.constexpr = value.shape[AXIS]
        BLOCK: tl.constexpr = index.shape[0]
        tl.static_assert(LENGTH == BLOCK, f"{TAP} length {AXIS} {LENGTH} {BLOCK}")


@triton.jit
def outside(index, size):
    # whether a scalar index is out of range; a block may be, and is masked
    is_outside = tl.full([], 0, tl.int1)
    if len(index.shape) == 0:
        is_outside = (index < 0) | (index >= size)
    return is_outside


@triton.jit
def mark(ptr, DTYPE: tl.constexpr, is_outside):
    tl.store(ptr, 1.0, mask=is_outside)
    if DTYPE == tl.float16:
        tl.store(ptr + 1, 1.0)
    elif DTYPE == tl.bfloat16:
        tl.store(ptr + 2, 1.0)
    else:
        tl.store(ptr + 3, 1.0)


@triton.jit
def store_tap(
    value, variable, i0, i1, i2, i3, ptr, n0, n1, n2, n3, TRANSPOSED: tl.constexpr, TAP: tl.constexpr,
):  # fmt: skip
    # value: a scalar, [R] or [R, C], computed from a variable whose dtype tells what it was rounded to
    # i*: the place along each axis of a tensor [n0, n1, n2, n3], scalars, and one block for every axis of the value, in
    # order, or backwards where TRANSPOSED
    # A constant has no shape and no dtype until it is a tensor; tl.to_tensor does that from Triton 3.7 on only.
    value = tl.cast(value, tl.float32)
    variable = tl.where(True, variable, variable)
    i0 = tl.cast(i0, tl.int64)
    i1 = tl.cast(i1, tl.int64)
    i2 = tl.cast(i2, tl.int64)
    i3 = tl.cast(i3, tl.int64)
    R0: tl.constexpr = len(i0.shape)
    R1: tl.constexpr = len(i1.shape)
    R2: tl.constexpr = len(i2.shape)
    R3: tl.constexpr = len(i3.shape)
    # in pairs: Triton 3.6 takes no longer chains
    tl.static_assert((R0 <= 1 and R1 <= 1) and (R2 <= 1 and R3 <= 1), f"{TAP} index {R0} {R1} {R2} {R3}")
    BLOCKS: tl.constexpr = R0 + R1 + R2 + R3
    RANK: tl.constexpr = len(value.shape)
    tl.static_assert(RANK == BLOCKS and RANK <= 2, f"{TAP} rank {RANK} {BLOCKS}")
    FLIP: tl.constexpr = RANK == 2 and TRANSPOSED
    # Of two blocks the first runs along the tile's first axis, unless the tile is transposed.
    A0: tl.constexpr = 1 if FLIP else 0
    A1: tl.constexpr = A0 if R0 == 0 else 1 - A0
    A2: tl.constexpr = A0 if R0 + R1 == 0 else 1 - A0
    A3: tl.constexpr = 1 - A0 if RANK == 2 else 0
    check_block(value, i0, A0, TAP)
    check_block(value, i1, A1 if RANK == 2 else 0, TAP)
    check_block(value, i2, A2 if RANK == 2 else 0, TAP)
    check_block(value, i3, A3, TAP)

    i0 = along(i0, A0, RANK)
    i1 = along(i1, A1, RANK)
    i2 = along(i2, A2, RANK)
    i3 = along(i3, A3, RANK)
    place = ((i0 * n1 + i1) * n2 + i2) * n3 + i3
    inside = (i0 >= 0) & (i0 < n0) & (i1 >= 0) & (i1 < n1) & (i2 >= 0) & (i2 < n2) & (i3 >= 0) & (i3 < n3)
    tl.store(ptr + place, value, mask=inside)
    end = tl.cast(n0, tl.int64) * n1 * n2 * n3
    mark(ptr + end, variable.dtype, outside(i0, n0) | outside(i1, n1) | outside(i2, n2) | outside(i3, n3))
