"""The interpreter's bfloat16, operation by operation, against torch on the same values."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from gradprobe.frontends.triton import interpreter
from tests.runtime.interpreter.bfloat16_probe import wrong_operations

os.environ["TRITON_INTERPRET"] = "1"


SIZE = 32
SPECIAL = [
    0.0,
    -0.0,
    float("inf"),
    -float("inf"),
    float("nan"),
    1e-40,
    -1e-40,
    3.4e38,
    1.0039062,
    1.0117188,
    65520.0,
]


@pytest.fixture(autouse=True)
def patched():
    interpreter.make_bfloat16_right()


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


def within_roundings(found, expected, count=1):
    size = expected.double().abs().max() * 2**-8
    return bool(((found.double() - expected.double()).abs() <= count * size).all())


@triton.jit
def square(N: tl.constexpr):
    return tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]


@triton.jit
def elementwise(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr, OP: tl.constexpr):
    p = square(N)
    x = tl.load(x_ptr + p)
    y = tl.load(y_ptr + p)
    z = tl.load(z_ptr + p)
    if OP == "add":
        r = x + y
    elif OP == "sub":
        r = x - y
    elif OP == "mul":
        r = x * y
    elif OP == "neg":
        r = -x
    elif OP == "abs":
        r = tl.abs(x)
    elif OP == "minimum":
        r = tl.minimum(x, y)
    elif OP == "maximum":
        r = tl.maximum(x, y)
    elif OP == "clamp":
        r = tl.clamp(x, -tl.abs(y), tl.abs(y))
    elif OP == "fma":
        r = tl.fma(x, y, z)
    elif OP == "where":
        r = tl.where(x < y, x, z)
    elif OP == "constant":
        r = x * 2.5 + 1
    elif OP == "transposed":
        r = tl.trans(x)
    elif OP == "cumsum":
        r = tl.cumsum(x, 1)
    elif OP == "cumsum reversed":
        r = tl.cumsum(x, 1, reverse=True)
    elif OP == "cumprod":
        r = tl.cumprod(x, 0)
    elif OP == "sort":
        r = tl.sort(x)
    elif OP == "full":
        r = tl.full((N, N), 1.7, tl.bfloat16) + tl.zeros((N, N), tl.bfloat16)
    elif OP == "bitcast":
        r = x.to(tl.int16, bitcast=True).to(tl.bfloat16, bitcast=True)
    elif OP == "other":
        r = tl.load(x_ptr + p, mask=p % 2 == 0, other=-1.5)
    elif OP == "reshape":
        r = tl.reshape(tl.reshape(x, (N * N,)), (N, N))
    tl.store(out_ptr + p, r)


def alternating(x, other):
    return torch.where(
        torch.arange(SIZE * SIZE).reshape(SIZE, SIZE) % 2 == 0, x, torch.tensor(other).bfloat16()
    )


ROUNDS_SCANS = "bfloat16" not in inspect.getsource(tl.standard.cumsum.fn)


def stepwise(x, dim, combine):
    steps = list((x if ROUNDS_SCANS else x.float()).unbind(dim))
    for i in range(1, len(steps)):
        steps[i] = combine(steps[i - 1], steps[i])
    return torch.stack(steps, dim).bfloat16()


EXPECTED = {
    "add": lambda x, y, z: x + y,
    "sub": lambda x, y, z: x - y,
    "mul": lambda x, y, z: x * y,
    "neg": lambda x, y, z: -x,
    "abs": lambda x, y, z: x.abs(),
    "minimum": lambda x, y, z: torch.minimum(x, y),
    "maximum": lambda x, y, z: torch.maximum(x, y),
    "clamp": lambda x, y, z: x.clamp(-y.abs(), y.abs()),
    "fma": lambda x, y, z: (x.double() * y.double() + z.double()).bfloat16(),
    "where": lambda x, y, z: torch.where(x < y, x, z),
    "constant": lambda x, y, z: x * 2.5 + 1,
    "transposed": lambda x, y, z: x.T,
    "cumsum": lambda x, y, z: stepwise(x, 1, torch.add),
    "cumsum reversed": lambda x, y, z: stepwise(x.flip(1), 1, torch.add).flip(1),
    "cumprod": lambda x, y, z: stepwise(x, 0, torch.mul),
    "sort": lambda x, y, z: x.sort(1).values,
    "full": lambda x, y, z: torch.full_like(x, 1.7),
    "bitcast": lambda x, y, z: x,
    "other": lambda x, y, z: alternating(x, -1.5),
    "reshape": lambda x, y, z: x,
}


@pytest.mark.parametrize("op", EXPECTED)
def test_an_elementwise_operation_gives_what_torch_gives(op, operands):
    assert same(launch(elementwise, *operands, OP=op), EXPECTED[op](*operands).contiguous())


@triton.jit
def wide(x_ptr, y_ptr, out_ptr, N: tl.constexpr, OP: tl.constexpr):
    p = square(N)
    x = tl.load(x_ptr + p)
    y = tl.load(y_ptr + p)
    if OP == "div":
        r = x / y
    elif OP == "rem":
        r = x % y
    elif OP == "less":
        r = (x < y).to(tl.float32)
    elif OP == "equal":
        r = (x == y).to(tl.float32) + (x != y).to(tl.bfloat16) * 2
    elif OP == "both":
        r = ((x >= y) & (x > 0)).to(tl.float32)
    elif OP == "float":
        r = x.to(tl.float32)
    elif OP == "half":
        r = x.to(tl.float16).to(tl.float32)
    elif OP == "mixed":
        r = x * y.to(tl.float32)
    elif OP == "exp":
        r = tl.exp(x.to(tl.float32))
    elif OP == "dot":
        r = tl.dot(x, tl.trans(y))
    elif OP == "dot onto acc":
        r = tl.dot(x, y, tl.full((N, N), 3.0, tl.float32), input_precision="ieee")
    elif OP == "dot of three":
        r = tl.reshape(
            tl.dot(tl.reshape(x, (2, N // 2, N)), tl.reshape(tl.join(y, y), (2, N, N))), (N, N)
        )
    tl.store(out_ptr + p, r)


WIDE = {
    "div": lambda x, y: x.float() / y.float(),
    "rem": lambda x, y: torch.fmod(x.float(), y.float()),
    "less": lambda x, y: (x < y).float(),
    "equal": lambda x, y: (x == y).float() + (x != y).float() * 2,
    "both": lambda x, y: ((x >= y) & (x > 0)).float(),
    "float": lambda x, y: x.float(),
    "half": lambda x, y: x.half().float(),
    "mixed": lambda x, y: x.float() * y.float(),
}


@pytest.mark.parametrize("op", WIDE)
def test_an_operation_that_leaves_bfloat16_gives_what_torch_gives(op, operands):
    assert same(launch(wide, *operands[:2], OP=op, dtype=torch.float32), WIDE[op](*operands[:2]))


def test_a_dot_of_bfloat16_is_the_float32_product(operands):
    x, y, _ = (operand.double() for operand in operands)
    for op, expected in ("dot", x @ y.T), ("dot onto acc", x @ y + 3):
        found = launch(wide, *operands[:2], OP=op, dtype=torch.float32)
        assert (found.double() - expected).abs().max() < 1e-5


def test_a_batched_dot_is_the_float32_product(operands):
    x, y, _ = operands
    found = launch(wide, x, y, OP="dot of three", dtype=torch.float32)
    pair = torch.stack((y, y), -1).reshape(2, SIZE, SIZE).double()
    assert (
        found.double() - (x.double().reshape(2, -1, SIZE) @ pair).reshape(SIZE, SIZE)
    ).abs().max() < 1e-5


@triton.jit
def rowwise(x_ptr, y_ptr, out_ptr, N: tl.constexpr, OP: tl.constexpr):
    x = tl.load(x_ptr + square(N))
    if OP == "sum":
        r = tl.sum(x, 1)
    elif OP == "sum kept":
        r = tl.reshape(tl.sum(x, 1, keep_dims=True), (N,))
    elif OP == "sum wide":
        r = tl.sum(x, 1, dtype=tl.float32)
    elif OP == "sum of all":
        r = tl.sum(x) + tl.zeros((N,), tl.bfloat16)
    elif OP == "max":
        r = tl.max(x, 1)
    elif OP == "min":
        r = tl.min(x, 1)
    elif OP == "argmax":
        r = tl.argmax(x, 1)
    elif OP == "argmin":
        r = tl.argmin(x, 1)
    elif OP == "max of both":
        r, _ = tl.max(x, 1, return_indices=True)
    tl.store(out_ptr + tl.arange(0, N), r)


ROWWISE = {
    "max": lambda x: x.amax(1),
    "min": lambda x: x.amin(1),
    "argmax": lambda x: x.argmax(1).bfloat16(),
    "argmin": lambda x: x.argmin(1).bfloat16(),
    "max of both": lambda x: x.amax(1),
}


@pytest.mark.parametrize("op", ROWWISE)
@pytest.mark.parametrize("shift", [0.0, -9.0])
def test_an_extreme_and_its_place_are_exact(op, shift, operands):
    x = operands[0] + shift
    expected = ROWWISE[op](x) if not op.startswith("arg") else None
    found = launch(rowwise, x, x, shape=(SIZE,), OP=op)
    if expected is None:
        expected = x.amax(1) if op == "argmax" else x.amin(1)
        found = x.gather(1, found.long()[:, None])[:, 0]
    assert same(found, expected)


@pytest.mark.parametrize("op", ["sum", "sum kept"])
def test_a_sum_is_within_its_trees_roundings(op, operands):
    x = operands[0]
    found = launch(rowwise, x, x, shape=(SIZE,), OP=op)
    assert within_roundings(found, x.double().sum(1), count=3)
    assert same(found, pairwise(x))


def pairwise(x):
    while x.shape[1] > 1:
        x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
    return x[:, 0]


def test_a_sum_that_is_asked_for_in_float32_does_not_round(operands):
    x = operands[0]
    found = launch(rowwise, x, x, shape=(SIZE,), OP="sum wide", dtype=torch.float32)
    assert torch.allclose(found, x.float().sum(1), atol=1e-5)


def test_a_sum_over_every_axis_is_one_number(operands):
    x = operands[0]
    found = launch(rowwise, x, x, shape=(SIZE,), OP="sum of all")
    assert same(found, pairwise(x.reshape(1, -1)).expand(SIZE).clone())


@triton.jit
def cast(x_ptr, out_ptr, N: tl.constexpr):
    p = tl.arange(0, N)
    tl.store(out_ptr + p, tl.load(x_ptr + p).to(out_ptr.dtype.element_ty))


def cast_to(x, dtype):
    return torch.cat([launch(cast, part, shape=(SIZE,), dtype=dtype) for part in x.split(SIZE)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_a_float_becomes_the_nearest_bfloat16(dtype):
    random = torch.randint(
        -(2**31),
        2**31,
        (SIZE * 40,),
        generator=torch.Generator().manual_seed(2),
        dtype=torch.int32,
    )
    x = torch.cat((torch.tensor(SPECIAL * 32)[: SIZE * 8], random.view(torch.float32))).to(dtype)
    found, expected = cast_to(x, torch.bfloat16), x.to(torch.bfloat16)
    assert same(found, expected)
    assert bool((found.isnan() == expected.isnan()).all())
    assert torch.equal(found.signbit()[~x.isnan()], x.signbit()[~x.isnan()])


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
)
def test_an_integer_becomes_the_nearest_bfloat16_and_goes_back(dtype):
    x = torch.randint(-128, 127, (SIZE,)).to(dtype) * (
        257 if dtype not in (torch.int8, torch.uint8) else 1
    )
    found = cast_to(x, torch.bfloat16)
    assert same(found, x.double().bfloat16())
    small = found / 256
    assert same(cast_to(small.abs(), dtype), small.abs().to(dtype))


def test_a_double_is_rounded_once():
    x = torch.full((SIZE,), 1 + 2**-8 + 2**-40, dtype=torch.float64)
    assert cast_to(x, torch.bfloat16)[0].item() == 1 + 2**-7


def test_every_bfloat16_becomes_its_float32_and_comes_back():
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    for part in x.reshape(-1, 4096)[[7, 8]]:
        assert same(cast_to(part, torch.float32), part.float())
        assert same(cast_to(cast_to(part, torch.float32), torch.bfloat16), part)


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


def test_the_self_test_finds_the_patched_interpreter_right():
    assert wrong_operations() == []


def in_another_process(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_the_self_test_finds_the_shipped_interpreter_wrong():
    wrong = in_another_process(
        "from tests.runtime.interpreter.bfloat16_probe import wrong_operations; print(wrong_operations())"
    )
    for operation in "dot", "arithmetic", "sum", "exp and casts":
        assert operation in wrong


@pytest.mark.nightly
def test_an_interpreter_without_a_patched_place_is_refused_and_left_alone():
    code = """
from gradprobe.frontends.triton import interpreter
from gradprobe.frontends.triton.interpreter import bfloat16 as patches
from tests.runtime.interpreter.bfloat16_probe import wrong_operations
del patches.shipped.ReduceOps.sum
before = patches.shipped.InterpreterBuilder.binary_op
try:
    interpreter.make_bfloat16_right()
except interpreter.InterpreterNotKnown as e:
    print(e, patches.shipped.InterpreterBuilder.binary_op is before)
"""
    assert "ReduceOps.sum True" in in_another_process(code)
