"""Kernels and wrappers that raise, each in its own way; the lines count."""

import triton
import triton.language as tl


@triton.jit
def dot_kernel(x, n, BLOCK: tl.constexpr):
    a = tl.zeros([BLOCK, 16], tl.float32)
    b = tl.zeros([32, BLOCK], tl.float32)
    tl.store(x, tl.sum(tl.dot(a, b)))


@triton.jit
def added(offs, other):
    return offs[:, None] + other


@triton.jit
def calling_kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x, tl.sum(added(tl.arange(0, BLOCK), tl.zeros([8, 4], tl.int32))))


@triton.jit
def assert_kernel(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK <= 16)
    tl.store(x, 0.0)


def dot(q, k, v, do, scale):
    dot_kernel[(1,)](q, q.shape[2], BLOCK=32)


def calling(q, k, v, do, scale):
    calling_kernel[(1,)](q, q.shape[2], BLOCK=32)


def asserting(q, k, v, do, scale):
    assert_kernel[(1,)](q, q.shape[2], BLOCK=32)
