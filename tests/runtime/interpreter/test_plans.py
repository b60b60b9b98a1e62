"""Plans: operations that are repeated give the bits that they give when each is worked out by itself."""

from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as shipped

from gradprobe.frontends.triton import interpreter
from gradprobe.frontends.triton.interpreter import plans
from gradprobe.frontends.triton.interpreter.bfloat16 import make_bfloat16_right
from gradprobe.frontends.triton.interpreter.plans import PLANS, Plans


@pytest.fixture(autouse=True)
def kept():
    interpreter.mend_interpreter()


@triton.jit
def of_everything(x_ptr, lengths_ptr, out_ptr, sum_ptr, far, SIZE: tl.constexpr):
    program = tl.program_id(0)
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    places = program * SIZE * SIZE + rows * SIZE + columns
    length = tl.load(lengths_ptr + program)
    x = tl.load(x_ptr + places, mask=(rows < length) & (columns >= 0), other=-1.0)
    total = tl.zeros([SIZE, SIZE], tl.float32)
    for step in range(0, length):
        tl.debug_barrier()
        total += tl.dot(x, tl.trans(x)) * (0.5 - step) + tl.where(rows >= columns, x * x, -x).to(
            tl.float32
        )
        total = tl.exp(-tl.abs(total) / 16) + tl.maximum(total, -step) * (columns % 3 == step)
    near = tl.sum(total, 1) * 0.25 + (rows * far).to(tl.float32).reshape(SIZE) / (far + 1)
    tl.store(out_ptr + places, (total + near[:, None]).to(out_ptr.dtype.element_ty))
    tl.atomic_add(sum_ptr + tl.arange(0, SIZE), near)


def bits(dtype, far):
    torch.manual_seed(0)
    x, lengths = torch.randn(4, 16, 16).to(dtype), torch.tensor([3, 5, 1, 16])
    out, total = torch.empty(4, 16, 16, dtype=dtype), torch.zeros(16)
    of_everything[(4,)](x, lengths, out, total, far, SIZE=16)
    return [tensor.view(torch.uint8).tolist() for tensor in (out, total)]


@pytest.mark.parametrize(
    ("dtype", "far"),
    [(torch.float32, 3), (torch.float32, 2**40), (torch.float16, -0.0), (torch.bfloat16, True)],
)
def test_what_is_repeated_gives_the_bits_of_what_is_worked_out(monkeypatch, dtype, far):
    interpreter.mend_interpreter()
    if dtype == torch.bfloat16:
        make_bfloat16_right()
    repeated, plan = [], plans.plan_of

    def counted(*args):
        repeat = plan(*args)
        return repeat and (lambda *operands: (repeated.append(1), repeat(*operands))[1])

    monkeypatch.setattr(plans, "plan_of", counted)
    PLANS.forget()
    with monkeypatch.context() as patch:
        patch.setattr(PLANS, "is_used", False)
        expected = bits(dtype, far)
    assert not repeated
    first, again = bits(dtype, far), bits(dtype, far)
    assert first == expected
    assert again == expected  # a launch repeats what the launch before it did
    assert len(repeated) > 300
    PLANS.forget()


def plans_of(function):
    """(a function that is repeated from the second call on, the values that each of its runs was given)."""
    made = Plans(SimpleNamespace(builder=shipped.interpreter_builder))
    made.is_used = True
    runs = []

    def noted(*args, _semantic):
        runs.append(args)
        return function(*args, _semantic.builder)

    return made.planned(noted), runs


def tensor_of(value):
    return tl.tensor(shipped.interpreter_builder.get_int32(value), tl.int32)


def test_constants_that_are_equal_and_not_the_same_have_plans_of_their_own():
    one = tensor_of(7)
    call, runs = plans_of(lambda x, y, builder: tl.tensor(builder.get_fp64(y), tl.float64))
    for value in (0.0, -0.0, 1, 1.0, True):
        for _ in range(4):
            found = call(one, value).handle.data
            assert str(found[0]) == str(float(value))
    assert len(runs) == 5  # one each


def test_what_comes_from_anywhere_but_operands_and_constants_is_worked_out_each_time():
    values, one = iter(range(10)), tensor_of(7)
    elsewhere = [
        lambda x, builder: tensor_of(next(values)), lambda x, builder: (x, x), lambda x, builder: 3,
    ]  # fmt: skip
    for function in elsewhere:
        call, runs = plans_of(function)
        for _ in range(4):
            call(one)
        assert len(runs) == 4
    others = (tensor_of(value).handle for value in range(4))
    call, _ = plans_of(
        lambda x, builder: tl.tensor(builder.create_add(x.handle, next(others)), tl.int32)
    )
    assert [call(one).handle.data.item() for _ in range(4)] == [7, 8, 9, 10]


def test_a_plan_that_one_value_made_twice_is_right_for_two():
    def less(x, y, builder):
        return tl.tensor(builder.create_sub(x.handle, y.handle), tl.int32)

    call, _ = plans_of(less)
    one, two = tensor_of(3), tensor_of(5)
    two.shape = one.shape  # as where types are kept
    pairs = [(one, one), (one, one), (one, two), (two, one), (one, two), (one, one), (two, one)]
    assert [call(*pair).handle.data.item() for pair in pairs] == [0, 0, -2, 2, -2, 0, 2]


@triton.jit
def load_where(flags_ptr, out_ptr):
    is_on = tl.load(flags_ptr + tl.program_id(0)) > 0
    value = tl.load(flags_ptr + tl.program_id(0), mask=is_on, other=-1)
    tl.store(out_ptr + tl.program_id(0), value)


def test_a_scalar_that_is_taken_for_a_bool_is_asked_each_time():
    flags = torch.tensor([0, 0, 0, 4, 5, 0])
    out = torch.zeros_like(flags)
    load_where[(6,)](flags, out)
    assert out.tolist() == [-1, -1, -1, 4, 5, -1]
    refused = [one.__name__ for one, made in PLANS._made.items() if False in made.values()]
    assert "load" in refused
