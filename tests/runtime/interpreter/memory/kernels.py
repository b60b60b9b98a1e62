"""Kernels that load and store in all the ways there are, and at wrong addresses in some."""

import triton
import triton.language as tl

# ruff: noqa: E501


@triton.jit
def copy(in_ptr, out_ptr, shift_in, shift_out, size, SIZE: tl.constexpr):
    offs = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(in_ptr + offs + shift_in, mask=offs < size, other=-1.0)
    tl.store(out_ptr + offs + shift_out, x, mask=offs < size)


@triton.jit
def copy_all(in_ptr, out_ptr, SIZE: tl.constexpr):
    offs = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out_ptr + offs, tl.load(in_ptr + offs))


@triton.jit
def store_number(out_ptr, step, value, by_program):
    tl.store(out_ptr + tl.program_id(0) * step, value + by_program * tl.program_id(0))


@triton.jit
def store_and_add(out_ptr, value, PLAIN: tl.constexpr):
    if tl.program_id(0) == PLAIN:
        tl.store(out_ptr, value)
    else:
        tl.atomic_add(out_ptr, value)


@triton.jit
def add_all(out_ptr, N: tl.constexpr):
    tl.atomic_add(out_ptr + tl.arange(0, N), 1.0)


@triton.jit
def sum_tiles(in_ptr, out_ptr, begin, end, N: tl.constexpr):
    total = tl.zeros([N], tl.float32)
    for start in range(begin, end, N):
        total += tl.load(in_ptr + start + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, N), total)


@triton.jit
def add_under_lock(out_ptr, lock_ptr, LOCKING: tl.constexpr, N: tl.constexpr):
    # the first programs, LOCKING of them, take the lock
    offs = tl.arange(0, N)
    if tl.program_id(0) < LOCKING:
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
    tl.store(out_ptr + offs, tl.load(out_ptr + offs) + 1.0)
    if tl.program_id(0) < LOCKING:
        tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def swap_out_of_range(out_ptr, seen_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(seen_ptr + offs, tl.atomic_cas(out_ptr + offs, offs * 0, offs * 0 + 7))


@triton.jit
def inner_load(ptr, offs):
    return tl.load(ptr + offs)


@triton.jit
def middle_load(ptr, offs, shift):
    moved = offs + shift
    return inner_load(ptr, moved)


@triton.jit
def load_through_two(x_ptr, out_ptr, shift, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(out_ptr + offs, inner_load(x_ptr, offs))
    tl.store(
        out_ptr + offs,
        middle_load(x_ptr, offs, shift),  # a line of its own
    )


@triton.jit
def move_pointers(a_ptr, b_ptr, out_ptr, shift, HOW: tl.constexpr, N: tl.constexpr):
    # 8 x 8 pointers, half of them of a and half of b where HOW chooses, made and moved about in every way
    offs = tl.arange(0, N)
    a, b = a_ptr + offs + shift, b_ptr + offs
    if HOW == "select":
        p = tl.where(offs % 2 == 0, a, b)
    elif HOW == "reshape":
        p = tl.reshape(tl.reshape(a, [8, N // 8]), [N])
    elif HOW == "trans":
        p = tl.reshape(tl.trans(tl.reshape(a, [8, N // 8])), [N])
    elif HOW == "integers":
        p = (a.to(tl.int64) + 0).to(tl.pointer_type(tl.float32))
    else:
        tl.static_assert(False, HOW)
    tl.store(out_ptr + offs, tl.load(p))


@triton.jit
def load_wide(x_ptr, out_ptr, shift, N: tl.constexpr):
    # two float32 as one int64, from `shift` bytes on
    offs = tl.arange(0, N)
    p = (x_ptr.to(tl.pointer_type(tl.int8)) + shift).to(tl.pointer_type(tl.int64))
    tl.store(out_ptr + offs, tl.load(p + offs))


@triton.jit
def copy_block(x_ptr, out_ptr, rows, cols, stride, start, CHECKED: tl.constexpr):
    x = tl.make_block_ptr(x_ptr, [rows, cols], [stride, 1], [0, 0], [8, 16], [1, 0])
    x = tl.advance(x, [start, 0])
    out = tl.make_block_ptr(out_ptr, [8, 16], [16, 1], [0, 0], [8, 16], [1, 0])
    tl.store(out, tl.load(x, boundary_check=(0, 1)) if CHECKED else tl.load(x))


@triton.jit
def copy_described(x_ptr, out_ptr, rows, cols, stride, M: tl.constexpr, N: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, cols], [stride, 1], [M, N])
    out = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [M, N])
    out.store([0, 0], x.load([0, 0]))


@triton.jit
def copy_from_descriptor(x_desc, out_ptr, M: tl.constexpr, N: tl.constexpr):
    offs = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + offs, x_desc.load([0, 0]))


@triton.jit
def copy_of_tuple(pair, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(pair[1] + offs, tl.load(pair[0] + offs))
