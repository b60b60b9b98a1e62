"""Kernels that are right, or wrong only at some sizes."""

import triton
import triton.language as tl

alias = tl.exp


@triton.jit
def multiply(a, b):
    return a * b


PASSED = tl.constexpr(multiply)


@triton.jit
def small_dot(a_ptr, out_ptr, K: tl.constexpr):
    """No GPU multiplies 4 by 4."""
    at = tl.arange(0, K)[:, None] * K + tl.arange(0, K)[None, :]
    a = tl.load(a_ptr + at)
    tl.store(out_ptr + at, tl.dot(a, a))


@triton.jit
def odd_range(a_ptr, out_ptr, D: tl.constexpr):
    """A compiler takes powers of two alone, the interpreter any length."""
    at = tl.arange(0, D)
    tl.store(out_ptr + at, tl.load(a_ptr + at))


@triton.jit
def asserting(a_ptr, out_ptr, D: tl.constexpr):
    tl.static_assert(D > 64, "too small")
    tl.store(out_ptr, tl.load(a_ptr))


@triton.jit
def reaching(a_ptr, out_ptr, stride, count, D: tl.constexpr, STEP: tl.constexpr = multiply):
    """Helpers by every way in which one is reached: a global, a constant, a default, a method, the language."""
    a = tl.load(a_ptr + tl.arange(0, D) * stride)
    b = multiply(a, a) + PASSED(a, a) + STEP(a, a) + alias(a) + tl.cdiv(count, 2) + tl.flip(a, 0)
    tl.store(out_ptr, b.sum(0) + tl.max(b, 0) + b.cumsum(0).max(0))


@triton.jit
def one_stride(a_ptr, out_ptr, stride):
    """A stride of 1 is a constant, which has no dtype to be cast from."""
    tl.store(out_ptr, tl.load(a_ptr + stride.to(tl.int64)))


def closed_over():
    """A kernel that finds its helper in a closure."""

    @triton.jit
    def helper(a):
        return a + 1.0

    @triton.jit
    def kernel(a_ptr, out_ptr):
        tl.store(out_ptr, helper(tl.load(a_ptr)))

    return kernel
