import inspect
import os

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from gradprobe.frontends.triton.interpreter.bfloat16 import make_bfloat16_right
from tests.runtime.interpreter.tabled import kernels_of

os.environ["TRITON_INTERPRET"] = "1"


SIZE = 32
INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, INF, -INF, NAN, 1e-40, -1e-40, 3.4e38, 1.0039062, 1.0117188, 65520.0]


@pytest.fixture(autouse=True)
def patched():
    make_bfloat16_right()


@pytest.fixture
def operands():
    made = torch.Generator().manual_seed(1)
    return tuple(torch.randn(SIZE, SIZE, generator=made).bfloat16() for _ in range(3))


def launch(kernel, *arguments, shape=(SIZE, SIZE), dtype=torch.bfloat16, **meta):
    found = torch.zeros(shape, dtype=dtype)
    with np.errstate(all="ignore"):
        kernel[(1,)](*arguments, found, N=SIZE, **meta)
    return found


def same(found, expected):
    assert found.dtype == expected.dtype
    return torch.equal(found.nan_to_num(7.0, 8.0, 9.0), expected.nan_to_num(7.0, 8.0, 9.0))


FRAME = """
# x, y, z
@triton.jit
def {name}(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr):
    p = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x, y, z = tl.load(x_ptr + p), tl.load(y_ptr + p), tl.load(z_ptr + p)
{body}
    tl.store(out_ptr + p, r)
"""
ELEMENTWISE = """
add  x + y
    r = x + y
mul  x * y
    r = x * y
maximum  torch.maximum(x, y)
    r = tl.maximum(x, y)
fma  (x.double() * y.double() + z.double()).bfloat16()
    r = tl.fma(x, y, z)
where  torch.where(x < y, x, z)
    r = tl.where(x < y, x, z)
cumsum  stepwise(x, 1, torch.add)
    r = tl.cumsum(x, 1)
other  torch.where(torch.arange(N * N).reshape(N, N) % 2 == 0, x, torch.tensor(-1.5).bfloat16())
    r = tl.load(x_ptr + p, mask=p % 2 == 0, other=-1.5)
"""
# What leaves bfloat16.
WIDE = """
div  x.float() / y.float()
    r = x / y
less  (x < y).float()
    r = (x < y).to(tl.float32)
float_  x.float()
    r = x.to(tl.float32)
mixed  x.float() * y.float()
    r = x * y.to(tl.float32)
"""
DOTS = """
dot  x.double() @ y.double().T
    r = tl.dot(x, tl.trans(y))
dot_onto_acc  x.double() @ y.double() + 3
    r = tl.dot(x, y, tl.full((N, N), 3.0, tl.float32), input_precision="ieee")
"""
# Of rows.
ALONG = FRAME.replace("tl.store(out_ptr + p, r)", "tl.store(out_ptr + tl.arange(0, N), r)")
EXTREMES = """
max_  x.amax(1)
    r = tl.max(x, 1)
argmax  x.amax(1)
    r = tl.argmax(x, 1)
"""
SUMS = """
sum_  pairwise(x)
    r = tl.sum(x, 1)
"""
SUM_WIDE = """
sum_wide  x.float().sum(1)
    r = tl.sum(x, 1, dtype=tl.float32)
"""
ROUNDS_SCANS = "bfloat16" not in inspect.getsource(tl.standard.cumsum.fn)


def stepwise(x, dim, combine):
    steps = list((x if ROUNDS_SCANS else x.float()).unbind(dim))
    for i in range(1, len(steps)):
        steps[i] = combine(steps[i - 1], steps[i])
    return torch.stack(steps, dim).bfloat16()


def pairwise(x):
    while x.shape[1] > 1:
        x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
    return x[:, 0]


ROW = (SIZE,)
# By table: its frame, the shape and the dtype of results, and how far these may be off.
TABLES = [
    (ELEMENTWISE, FRAME, (SIZE, SIZE), torch.bfloat16, 0), (WIDE, FRAME, (SIZE, SIZE), torch.float32, 0),
    (DOTS, FRAME, (SIZE, SIZE), torch.float32, 1e-5), (EXTREMES, ALONG, ROW, torch.bfloat16, 0),
    (SUMS, ALONG, ROW, torch.bfloat16, 0), (SUM_WIDE, ALONG, ROW, torch.float32, 1e-5),
]  # fmt: skip
OPERATIONS = [
    pytest.param(kernel, due, *how, id=kernel.__name__)
    for table, frame, *how in TABLES
    for kernel, due in kernels_of(
        table, frame, stepwise=stepwise, pairwise=pairwise, N=SIZE
    ).items()
]


@pytest.mark.parametrize(("kernel", "due", "shape", "dtype", "room"), OPERATIONS)
def test_an_operation_gives_what_torch_gives(kernel, due, shape, dtype, room, operands):
    found, wanted = launch(kernel, *operands, shape=shape, dtype=dtype), due(*operands)
    if kernel.__name__ == "argmax":
        found = operands[0].gather(1, found.long()[:, None])[:, 0]
    if room:
        assert (found.double() - wanted).abs().max() < room
    else:
        assert same(found, wanted.contiguous())


@triton.jit
def cast(x_ptr, out_ptr, N: tl.constexpr):
    p = tl.arange(0, N)
    tl.store(out_ptr + p, tl.load(x_ptr + p).to(out_ptr.dtype.element_ty))


def cast_to(x, dtype):
    return torch.cat([launch(cast, part, shape=(SIZE,), dtype=dtype) for part in x.split(SIZE)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_a_float_becomes_the_nearest_bfloat16(dtype):
    seed = torch.Generator().manual_seed(2)
    random = torch.randint(-(2**31), 2**31, (SIZE * 40,), generator=seed, dtype=torch.int32)
    x = torch.cat((torch.tensor(SPECIAL * 32)[: SIZE * 8], random.view(torch.float32))).to(dtype)
    found, expected = cast_to(x, torch.bfloat16), x.to(torch.bfloat16)
    assert same(found, expected)
    assert bool((found.isnan() == expected.isnan()).all())
    assert torch.equal(found.signbit()[~x.isnan()], x.signbit()[~x.isnan()])


@pytest.mark.parametrize(
    ("dtype", "by"), [(torch.int8, 1), (torch.int32, 257), (torch.int64, 257)]
)
def test_an_integer_becomes_the_nearest_bfloat16_and_goes_back(dtype, by):
    x = torch.randint(-128, 127, (SIZE,)).to(dtype) * by
    found = cast_to(x, torch.bfloat16)
    assert same(found, x.double().bfloat16())
    small = found / 256
    assert same(cast_to(small.abs(), dtype), small.abs().to(dtype))


@triton.jit
def scatter(x_ptr, place_ptr, before_ptr, out_ptr, N: tl.constexpr):
    p = tl.arange(0, N)
    before = tl.atomic_add(out_ptr + tl.load(place_ptr + p), tl.load(x_ptr + p), mask=p < N - 2)
    tl.store(before_ptr + p, before, mask=p < N - 2)


@pytest.mark.parametrize("distinct", [SIZE, 3, 1])
def test_an_atomic_addition_rounds_each_addend_and_loses_none(distinct, operands):
    x, place = operands[0][0].clone(), torch.arange(SIZE) % distinct
    before, expected, earlier = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    found = launch(scatter, x, place, before, shape=(SIZE,))
    for i in range(SIZE - 2):
        earlier[i] = expected[place[i]]
        expected[place[i]] += x[i]
    assert same(found, expected)
    assert same(before, earlier)
