"""One small kernel for each feature of the language that a compiler takes, and what it should give.

Each is given x and y of [16] float32, n = 16 as a number, and a buffer for 16 results, of which it stores some.
"""

import torch
import triton
import triton.language as tl
from triton.language import exp2
from triton.language.extra import libdevice

exp = tl.exp
HALF = tl.constexpr(0.5)
EXPECTED = {}


def gives(expected):
    """Notes what a kernel should give of x and y."""

    def note(kernel):
        EXPECTED[kernel] = expected
        return kernel

    return note


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def larger(a, i, b, j):
    return tl.maximum(a, b), tl.where(a > b, i, j)


@triton.jit
def as_float(number):
    return number.to(tl.float32)


@triton.jit
def early(a, KIND: tl.constexpr):
    if KIND == "double":
        return a * 2
    return a


@triton.jit
def several(a, b):
    return a + b, a - b


@triton.constexpr_function
def doubled(size):
    return size * 2


@gives(lambda x, y: x.exp())
@triton.jit
def alias(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, exp(tl.load(x_ptr + d)))


@gives(lambda x, y: x.exp2())
@triton.jit
def imported_name(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, exp2(tl.load(x_ptr + d)))


@gives(lambda x, y: x * 6)
@triton.jit
def loaded_bound(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    total, count = tl.zeros([D], tl.float32), tl.load(x_ptr).to(tl.int32) * 0 + 4
    for i in range(count):
        total += tl.load(x_ptr + d) * i.to(tl.float32)
    tl.store(out_ptr + d, total)


@gives(lambda x, y: x * 2)
@triton.jit
def loop_expression(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    total = tl.zeros([D], tl.float32)
    for i in range(4):
        total += tl.load(x_ptr + d) * (i % 2).to(tl.float32)
    tl.store(out_ptr + d, total)


@gives(lambda x, y: x * 6)
@triton.jit
def loop_in_helper(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    total = tl.zeros([D], tl.float32)
    for i in range(0, 4):
        total += tl.load(x_ptr + d) * as_float(i)
    tl.store(out_ptr + d, total)


@gives(lambda x, y: x * 3)
@triton.jit
def static_loop(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    total = tl.zeros([D], tl.float32)
    for i in tl.static_range(1, 4, 1):
        total += tl.load(x_ptr + d) * (1 if i > 0 else 0)
    tl.store(out_ptr + d, total)


@gives(lambda x, y: x * 6)
@triton.jit
def range_with_hints(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    total = tl.zeros([D], tl.float32)
    for i in tl.range(0, 4, 1, num_stages=2, loop_unroll_factor=2, warp_specialize=False):
        total += tl.load(x_ptr + d) * i.to(tl.float32)
    tl.store(out_ptr + d, total)


@gives(lambda x, y: x + y + (x - y))
@triton.jit
def tuples(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    pair = (tl.load(x_ptr + d), tl.load(y_ptr + d))
    total, rest = several(pair[0], pair[1])
    tl.store(out_ptr + d, total + rest)


@gives(lambda x, y: x * 32)
@triton.jit
def constant_function(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    size: tl.constexpr = doubled(D)
    tl.store(out_ptr + d, tl.load(x_ptr + d) * size)


@gives(lambda x, y: x * 0.5)
@triton.jit
def where_with_scalars(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    weight = tl.where(n > 4, 0.5, 2.0)
    tl.store(out_ptr + d, tl.load(x_ptr + d) * weight)


@gives(lambda x, y: x.sum().expand(16))
@triton.jit
def own_reduction(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, tl.zeros([D], tl.float32) + tl.reduce(tl.load(x_ptr + d), 0, plus))


@gives(lambda x, y: x.argmax().float().expand(16))
@triton.jit
def own_reduction_of_pairs(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    value, at = tl.reduce((tl.load(x_ptr + d), d), 0, larger)
    tl.store(out_ptr + d, tl.zeros([D], tl.float32) + at.to(tl.float32) + value * 0)


@gives(lambda x, y: x.cumsum(0))
@triton.jit
def own_scan(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, tl.associative_scan(tl.load(x_ptr + d), 0, plus))


@gives(lambda x, y: x.flip(0).cumsum(0).flip(0))
@triton.jit
def reverse_scan(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, tl.cumsum(tl.load(x_ptr + d), 0, reverse=True))


@gives(lambda x, y: x * 2)
@triton.jit
def inline_assembly(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x = tl.load(x_ptr + d)
    doubled = tl.inline_asm_elementwise(
        "add.f32 $0, $1, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out_ptr + d, doubled)


@gives(lambda x, y: x)
@triton.jit
def printing_and_assuming(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    tl.static_assert(D >= 4, "too small")
    tl.static_print("D", D)
    tl.assume(n > 0)
    tl.device_assert(n > 0, "n")
    tl.debug_barrier()
    d = tl.max_contiguous(tl.multiple_of(tl.arange(0, D), D), D)
    tl.store(out_ptr + d, tl.load(x_ptr + d))


@gives(lambda x, y: x * 8)
@triton.jit
def divisions(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, tl.load(x_ptr + d) * (tl.cdiv(n, 3) + n // D + (n % 15)))


@gives(lambda x, y: x.tanh() + x.abs().sqrt() + x.erf())
@triton.jit
def device_library(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x = tl.load(x_ptr + d)
    tl.store(out_ptr + d, libdevice.tanh(x) + tl.sqrt(tl.abs(x)) + tl.math.erf(x))


@gives(lambda x, y: x.pow(2) + y.abs().rsqrt())
@triton.jit
def device_powers(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x, y = tl.load(x_ptr + d), tl.load(y_ptr + d)
    tl.store(out_ptr + d, libdevice.pow(x, 2.0) + libdevice.rsqrt(tl.abs(y)))


@gives(lambda x, y: x)
@triton.jit
def block_pointer(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    source = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (D,), (0,))
    target = tl.make_block_ptr(out_ptr, (n,), (1,), (0,), (D,), (0,))
    tl.store(
        target, tl.load(source, boundary_check=(0,), padding_option="zero"), boundary_check=(0,)
    )


@gives(lambda x, y: x.view(4, 4).T.reshape(16))
@triton.jit
def descriptor(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [4, 4], [4, 1], [4, 4])
    target = tl.make_tensor_descriptor(out_ptr, [4, 4], [4, 1], [4, 4])
    target.store([0, 0], source.load([0, 0]).T)


@gives(lambda x, y: x.view(torch.int32).float())
@triton.jit
def bits(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x = tl.load(x_ptr + d)
    tl.store(out_ptr + d, x.to(tl.int32, bitcast=True).to(tl.float32))


@gives(lambda x, y: x.half().float())
@triton.jit
def casts(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    narrow = tl.cast(tl.load(x_ptr + d), tl.float16, fp_downcast_rounding="rtne")
    tl.store(out_ptr + d, narrow.to(out_ptr.dtype.element_ty))


@gives(lambda x, y: x * 8)
@triton.jit
def while_loop(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x, at = tl.load(x_ptr + d), 0
    while (at < n) and (at < 3):
        x, at = x * 2, at + 1
    tl.store(out_ptr + d, x)


@gives(lambda x, y: x * 2)
@triton.jit
def early_return(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, early(tl.load(x_ptr + d), "double"))
    if n > 4:
        return
    tl.store(out_ptr + d, tl.load(x_ptr + d))


@gives(lambda x, y: x * 3)
@triton.jit
def truths(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x = tl.load(x_ptr + d)
    if (n > 4 and n < 20) or n != 16:
        x *= 3
    weight = 1.0 if n > 4 else 0.0
    x = x * weight
    x -= 0.0
    tl.store(out_ptr + d, x)


@gives(lambda x, y: x.flip(0))
@triton.jit
def flipped(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, tl.flip(tl.load(x_ptr + d), 0))


@gives(lambda x, y: torch.stack([x[:8], y[:8]], -1).reshape(16))
@triton.jit
def joined(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    half = tl.arange(0, D // 2)
    both = tl.join(tl.load(x_ptr + half), tl.load(y_ptr + half))
    first, second = tl.split(both)
    tl.store(out_ptr + tl.arange(0, D), tl.interleave(first, second))


@gives(lambda x, y: x.flip(0))
@triton.jit
def gathered(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, tl.gather(tl.load(x_ptr + d), D - 1 - d, 0))


@gives(lambda x, y: torch.full((16,), 4.0))
@triton.jit
def counted(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    counts = tl.histogram(tl.arange(0, D) % 4, 4)
    tl.store(out_ptr + tl.arange(0, 4), counts.to(tl.float32))
    tl.store(out_ptr + 4 + tl.arange(0, 4), counts.to(tl.float32))
    tl.store(out_ptr + 8 + tl.arange(0, 8), tl.zeros([8], tl.float32) + 4.0)


@gives(lambda x, y: x + y)
@triton.jit
def atomics(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, tl.load(x_ptr + d))
    tl.atomic_add(out_ptr + d, tl.load(y_ptr + d), sem="relaxed", scope="cta")
    tl.atomic_max(
        out_ptr + d, tl.load(x_ptr + d) + tl.load(y_ptr + d), sem="acq_rel", scope="gpu"
    )


@gives(lambda x, y: x.sort().values)
@triton.jit
def sorted_values(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, tl.sort(tl.load(x_ptr + d)))


@gives(lambda x, y: x.softmax(0))
@triton.jit
def shipped_softmax(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(out_ptr + d, tl.softmax(tl.load(x_ptr + d)))


@gives(lambda x, y: x.sigmoid() + y.clamp(-0.5, 0.5))
@triton.jit
def clamps(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(
        out_ptr + d, tl.sigmoid(tl.load(x_ptr + d)) + tl.clamp(tl.load(y_ptr + d), -HALF, HALF)
    )


@gives(lambda x, y: (x.view(4, 4) @ y.view(4, 4)).reshape(16))
@triton.jit
def summed_products(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    r = tl.arange(0, 4)
    at = r[:, None] * 4 + r[None, :]
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(out_ptr + at, tl.sum(x[:, :, None] * y[None, :, :], axis=1))


@gives(lambda x, y: x.view(4, 4).T.reshape(16) + y)
@triton.jit
def shapes(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x = tl.trans(tl.reshape(tl.load(x_ptr + d), (4, 4)))
    x = tl.permute(x[None, :, :], (0, 1, 2))
    tl.store(out_ptr + d, x.reshape(D) + tl.ravel(tl.load(y_ptr + d).reshape([4, 4])))


@gives(lambda x, y: torch.where(x > 0, x, y))
@triton.jit
def eviction_and_caches(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x = tl.load(
        x_ptr + d, mask=d < n, other=0.0, eviction_policy="evict_last", cache_modifier=".ca"
    )
    y = tl.load(y_ptr + d, mask=None, volatile=True)
    tl.store(out_ptr + d, tl.where(x > 0, x, y), mask=d < n, cache_modifier=".cg")


@gives(lambda x, y: x + 3)
@triton.jit
def unpacked_list(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    sizes: tl.constexpr = (1, 2)
    one, two = sizes
    tl.store(out_ptr + d, tl.load(x_ptr + d) + one + two)


@gives(lambda x, y: x + 96)
@triton.jit
def names_of_types(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    dtype = x_ptr.dtype.element_ty
    width: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth
    x = tl.load(x_ptr + d).to(dtype)
    if x.dtype == tl.float32:
        x += tl.full([D], width * 2, dtype)
    x += tl.num_programs(0).to(tl.float32) * 32
    tl.store(out_ptr + d, x)


@gives(lambda x, y: x * 0 + 1)
@triton.jit
def random_numbers(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    drawn = tl.rand(7, d)
    tl.store(out_ptr + d, tl.load(x_ptr + d) * 0 + tl.where((drawn >= 0) & (drawn < 1), 1.0, 0.0))


@gives(lambda x, y: (x.double() @ y.double()).float().expand(16))
@triton.jit
def wide_sums(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    product = tl.load(x_ptr + d).to(tl.float64) * tl.load(y_ptr + d)
    tl.store(out_ptr + d, tl.zeros([D], tl.float32) + tl.sum(product, 0).to(tl.float32))


@gives(lambda x, y: torch.fma(x, y, x) if hasattr(torch, "fma") else x * y + x)
@triton.jit
def fused(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x = tl.load(x_ptr + d)
    tl.store(out_ptr + d, tl.fma(x, tl.load(y_ptr + d), x))


@gives(lambda x, y: x.abs().log2() + x.cos() + x.sin() + y.floor() + y.ceil())
@triton.jit
def functions(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x, y = tl.load(x_ptr + d), tl.load(y_ptr + d)
    tl.store(out_ptr + d, tl.log2(tl.abs(x)) + tl.cos(x) + tl.sin(x) + tl.floor(y) + tl.ceil(y))


@gives(lambda x, y: x + 15)
@triton.jit
def integers(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    number = ((n >> 1) | 3) & 0xFF ^ 4
    high = tl.umulhi(tl.full([D], 1, tl.uint32) << 31, tl.full([D], 2, tl.uint32))
    tl.store(out_ptr + d, tl.load(x_ptr + d) + number.to(tl.float32) - high.to(tl.float32) + 1)


@gives(lambda x, y: x.max().expand(16) + x.argmin().float())
@triton.jit
def extremes(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x = tl.load(x_ptr + d)
    value, at = tl.max(x, 0, return_indices=True)
    tl.store(out_ptr + d, tl.zeros([D], tl.float32) + value + at * 0 + tl.argmin(x, 0))


@gives(lambda x, y: x + (torch.arange(16) % 2))
@triton.jit
def swizzled(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    i, j = tl.swizzle2d(d // 2, d % 2, 8, 2, 1)
    tl.store(out_ptr + d, tl.load(x_ptr + d) + (d % 2) + (i + j) * 0)


def closed_over():
    """A kernel that finds a helper and a constant outside itself, and not in its file."""
    factor = tl.constexpr(3.0)

    @triton.jit
    def helper(a):
        return a * factor

    @gives(lambda x, y: x * 3)
    @triton.jit
    def closure(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
        d = tl.arange(0, D)
        tl.store(out_ptr + d, helper(tl.load(x_ptr + d)))


closed_over()
