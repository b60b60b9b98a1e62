"""Kernels whose programs meet one another in memory in all the ways there are."""

import triton
import triton.language as tl


@triton.jit
def add_numbers(in_ptr, out_ptr):
    # float sums, which depend on the order of programs
    pid = tl.program_id(0)
    x = tl.load(in_ptr + pid)
    tl.atomic_add(out_ptr + tl.arange(0, 4), x * (1.0 + tl.arange(0, 4)))


@triton.jit
def queue(out_ptr, ticket_ptr):
    # each program stores where its ticket says
    ticket = tl.atomic_add(ticket_ptr, 1)
    tl.store(out_ptr + ticket, tl.program_id(0) * 1.0)


@triton.jit
def add_to_the_one_before(out_ptr):
    pid = tl.program_id(0)
    tl.store(out_ptr + pid + 1, tl.load(out_ptr + pid) + 1.0)


@triton.jit
def add_to_its_own(out_ptr, N: tl.constexpr):
    own = out_ptr + tl.program_id(0) * N + tl.arange(0, N)
    tl.store(own, tl.load(own) + 1.0)


@triton.jit
def begin_then_add(in_ptr, out_ptr):
    # each program begins a sum of its own with a plain store
    pid = tl.program_id(0)
    tl.store(out_ptr + pid, 1.0)
    tl.atomic_add(out_ptr + pid, tl.load(in_ptr + pid))


@triton.jit
def print_numbers(out_ptr):
    pid = tl.program_id(0)
    print("program", pid.handle.data.item())
    tl.store(out_ptr + pid, 1.0)


@triton.jit
def write_bytes_between(out_ptr):
    # single bytes of numbers that are stored whole
    pid = tl.program_id(0)
    tl.store(out_ptr + pid, 1.0)
    tl.store(out_ptr.to(tl.pointer_type(tl.int8)) + 4 * pid + 1, 7)


@triton.jit
def store_for_the_tool(gradprobe_ptr):
    # of which nothing is kept account
    tl.store(gradprobe_ptr + tl.program_id(0), 1.0)


@triton.jit
def store_late(in_ptr, out_ptr):
    # of a tensor that is only read, but by the last programs
    pid = tl.program_id(0)
    tl.store(out_ptr + pid, tl.load(in_ptr + pid))
    if pid > 6:
        tl.store(in_ptr + pid, 1.0)
