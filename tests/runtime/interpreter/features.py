"""One small kernel for each feature of the language that a compiler takes, and what it should give.

Each is given x and y of [16] float32, n = 16 as a number, and a buffer for 16 results; it stores `r` at its end.
"""

import triton
import triton.language as tl

from tests.runtime.interpreter.tabled import kernels_of

FRAME = """
# x, y
@triton.jit
def {name}(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
    d = tl.arange(0, D)
    x, y = tl.load(x_ptr + d), tl.load(y_ptr + d)
{body}
    tl.store(out_ptr + d, r)
"""
HELPERS = """
@triton.jit
def plus(a, b):
    return a + b

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
"""
TABLE = """
alias  x.exp()
    r = exp(x)
imported_name  x.exp2()
    r = exp2(x)
loaded_bound  x * 6
    r, count = tl.zeros([D], tl.float32), tl.load(x_ptr).to(tl.int32) * 0 + 4
    for i in range(count):
        r += x * i.to(tl.float32)
loop_in_helper  x * 6
    r = tl.zeros([D], tl.float32)
    for i in range(0, 4):
        r += x * as_float(i)
tuples  x + y + (x - y)
    pair = (x, y)
    total, rest = several(pair[0], pair[1])
    r = total + rest
own_reduction  x.sum().expand(16)
    r = tl.zeros([D], tl.float32) + tl.reduce(x, 0, plus)
own_scan  x.cumsum(0)
    r = tl.associative_scan(x, 0, plus)
inline_assembly  x * 2
    r = tl.inline_asm_elementwise(
        "add.f32 $0, $1, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
printing_and_assuming  x
    tl.static_assert(D >= 4, "too small")
    tl.static_print("D", D)
    tl.assume(n > 0)
    tl.device_assert(n > 0, "n")
    tl.debug_barrier()
    r = tl.load(x_ptr + tl.max_contiguous(tl.multiple_of(d, D), D))
device_library  x.tanh() + x.abs().sqrt() + x.erf()
    r = libdevice.tanh(x) + tl.sqrt(tl.abs(x)) + tl.math.erf(x)
device_power_of_a_whole_number  2 ** x
    r = libdevice.pow(2, x)
block_pointer  x
    source = tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (D,), (0,))
    target = tl.make_block_ptr(out_ptr, (n,), (1,), (0,), (D,), (0,))
    loaded = tl.load(source, boundary_check=(0,), padding_option="zero")
    tl.store(target, loaded, boundary_check=(0,))
    r = tl.load(out_ptr + d)
descriptor  x.view(4, 4).T.reshape(16)
    source = tl.make_tensor_descriptor(x_ptr, [4, 4], [4, 1], [4, 4])
    target = tl.make_tensor_descriptor(out_ptr, [4, 4], [4, 1], [4, 4])
    target.store([0, 0], source.load([0, 0]).T)
    r = tl.load(out_ptr + d)
while_loop  x * 8
    r, at = x, 0
    while (at < n) and (at < 3):
        r, at = r * 2, at + 1
early_return  x * 2
    tl.store(out_ptr + d, early(x, "double"))
    if n > 4:
        return
    r = x
truths  x * 3
    if (n > 4 and n < 20) or n != 16:
        x *= 3
    r = x * (1.0 if n > 4 else 0.0)
    r -= 0.0
atomics  x + y
    tl.store(out_ptr + d, x)
    tl.atomic_add(out_ptr + d, y, sem="relaxed", scope="cta")
    tl.atomic_max(out_ptr + d, x + y, sem="acq_rel", scope="gpu")
    r = tl.load(out_ptr + d)
names_of_types  x + 96
    dtype = x_ptr.dtype.element_ty
    width: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth
    r = x.to(dtype)
    if r.dtype == tl.float32:
        r += tl.full([D], width * 2, dtype)
    r += tl.num_programs(0).to(tl.float32) * 32
"""


def closed_over():
    """A kernel that finds a helper and a constant outside itself, and not in its file."""
    factor = tl.constexpr(3.0)

    @triton.jit
    def helper(a):
        return a * factor

    @triton.jit
    def closure(x_ptr, y_ptr, out_ptr, n, D: tl.constexpr):
        d = tl.arange(0, D)
        tl.store(out_ptr + d, helper(tl.load(x_ptr + d)))

    return closure


EXPECTED = kernels_of(TABLE, FRAME, HELPERS) | {closed_over(): lambda x, y: x * 3}
