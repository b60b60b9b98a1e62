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
def add_numbers_of_a_name(in_ptr, out_ptr):
    # what was there gets a name, and is not used
    before = tl.atomic_add(out_ptr, tl.load(in_ptr + tl.program_id(0)))  # noqa: F841


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
def tell_later_ones(out_ptr, told_ptr):
    # nothing is stored in `told` before the programs are split
    pid = tl.program_id(0)
    if pid == 1:
        tl.store(told_ptr, 5.0)
    tl.store(out_ptr + pid, tl.load(told_ptr) if pid > 5 else 1.0)


@triton.jit
def add_up_apart_then_read(out_ptr, sum_ptr):
    # a program reads a sum that others add to
    pid = tl.program_id(0)
    tl.atomic_add(sum_ptr, 1.0)
    tl.store(out_ptr + pid, tl.load(sum_ptr))


@triton.jit
def read_what_the_share_before_added(out_ptr, sum_ptr):
    # of three shares, the first of a program alone adds before they are split
    pid = tl.program_id(0)
    tl.atomic_add(sum_ptr, 1.0, mask=(pid == 0) | (pid == 4) | (pid == 5))
    tl.store(out_ptr + pid, tl.load(sum_ptr, mask=pid > 6))


@triton.jit
def begin_then_add(in_ptr, out_ptr):
    # each program begins a sum of its own with a plain store
    pid = tl.program_id(0)
    tl.store(out_ptr + pid, 1.0)
    tl.atomic_add(out_ptr + pid, tl.load(in_ptr + pid))


@triton.jit
def begin_of_others(in_ptr, out_ptr):
    # programs add to what the first one stores
    pid = tl.program_id(0)
    if pid == 1:
        tl.store(out_ptr, 3.0)
    tl.atomic_add(out_ptr, tl.load(in_ptr + pid))


@triton.jit
def print_numbers(out_ptr):
    pid = tl.program_id(0)
    print("program", pid.handle.data.item())
    tl.store(out_ptr + pid, 1.0)


@triton.jit
def fail_late(out_ptr, at):
    pid = tl.program_id(0)
    tl.store(out_ptr + pid, 1.0)
    if pid == at:
        tl.static_assert(False, "the last")


@triton.jit
def wait_for_the_first(out_ptr, flag_ptr):
    # the first program to be left to this process raises a flag, for which the last waits
    pid = tl.program_id(0)
    if pid == 1:
        tl.store(flag_ptr, 1.0)
    if pid == 8:
        while tl.load(flag_ptr) == 0.0:
            pass
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
