"""The front end of Triton's compiler: what it says of launches, and what is no error though it says so."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
import triton
import triton.language as tl

from gradprobe.frontends.triton.interpreter.language_patches import shipped_language
from gradprobe.frontends.triton.launches import called
from gradprobe.frontends.triton.lowering import compile_errors
from gradprobe.processes.forks import ParallelWork
from tests.runtime.front_end import asking, kernels, wrong_kernels

shipped_language()
A = torch.zeros(4096)


def errors(*launches):
    """What is wrong with each of some launches: (kernel, arguments by name)."""
    calls = [called(kernel, (A, A), named) for kernel, named in launches]
    found = ParallelWork(lambda: compile_errors(calls)).answer(60)
    assert found is not None
    return [one and one.sentence.partition(": ")[2] for one in found]


def test_right_kernels_compile_with_all_that_they_reach():
    reaching = (kernels.reaching, {"stride": 1, "count": 7, "D": 16})
    assert (
        errors(reaching, (kernels.closed_over(), {}), (kernels.one_stride, {"stride": 2}))
        == [None] * 3
    )


@pytest.mark.parametrize(
    ("kernel", "named"),
    [
        (kernels.small_dot, {"K": 4}),
        (kernels.odd_range, {"D": 24}),
        (kernels.asserting, {"D": 16}),
    ],
)
def test_what_comes_of_the_sizes_of_a_case_is_no_error(kernel, named):
    assert errors((kernel, named)) == [None]


def test_a_file_that_asks_whether_it_is_interpreted_is_not_accused():
    assert errors((asking.asking, {})) == [None]


def test_an_unknown_keyword_of_the_language_and_a_constant_without_dtype_are_told_with_their_lines():
    unknown, one = errors((wrong_kernels.keyword, {}), (wrong_kernels.one_stride, {"stride": 1}))
    assert unknown.startswith("wrong_kernels.py:")
    assert "unexpected keyword argument" in unknown
    assert one.startswith("wrong_kernels.py:")
    assert "'to'" in one


def test_launches_that_compile_alike_have_one_key():
    def key(*args, **named):
        return called(kernels.reaching, args, named).key

    assert key(A, A, 2, 3, D=16) == key(torch.ones(3), A, 5, 32, D=16, grid=(1,), warmup=False)
    assert key(A, A, 2, 3, D=16) != key(A, A, 1, 3, D=16)
    assert key(A, A, 2, 3, D=16) != key(A, A, 2, 3, D=32)
    assert key(A, A, 2, 3, D=16) != key(A.half(), A, 2, 3, D=16)


def test_descriptors_tuples_and_constants_can_be_told():
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit
    def described(descriptor, pair, KIND: tl.constexpr):
        if KIND == "sum":
            tl.store(pair[0], tl.sum(descriptor.load([0, 0])) + pair[1])

    descriptor = TensorDescriptor.from_tensor(torch.zeros(64, 64), [16, 16])
    call = called(described, (descriptor, (A, 3)), {"KIND": "sum"})
    (error,) = ParallelWork(lambda: compile_errors([call])).answer(60) or ["no answer"]
    assert error is None
