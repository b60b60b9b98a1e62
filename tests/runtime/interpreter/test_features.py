import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch
import triton

from gradprobe.frontends.triton.launches import called
from gradprobe.frontends.triton.lowering import compile_errors
from gradprobe.model.case import Case
from gradprobe.processes.forks import ParallelWork
from gradprobe.runtime.backend import make_interpreter_right
from tests.runtime.interpreter.features import EXPECTED

RELEASE = tuple(map(int, triton.__version__.split(".")[:2]))
# Block pointers are gone since 3.9.
IN_THIS_RELEASE = [
    kernel for kernel in EXPECTED if kernel.__name__ != "block_pointer" or RELEASE < (3, 9)
]
# The interpreter has no assembly, and says so.
RUN = [kernel for kernel in IN_THIS_RELEASE if kernel.__name__ != "inline_assembly"]
X, Y = (torch.randn(16, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


@pytest.fixture(autouse=True, scope="module")
def interpreter():
    make_interpreter_right(Case("softmax"))


@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")
@pytest.mark.parametrize("kernel", RUN, ids=lambda kernel: kernel.__name__)
def test_a_feature_gives_what_it_should(kernel):
    out = torch.full((16,), torch.nan)
    with np.errstate(all="ignore"):
        kernel[(1,)](X, Y, out, 16, D=16)
    torch.testing.assert_close(out, EXPECTED[kernel](X, Y).float(), rtol=1e-5, atol=1e-5)


def test_the_compiler_takes_every_one_of_them():
    calls = [called(kernel, (X, Y, X, 16), {"D": 16}) for kernel in IN_THIS_RELEASE]
    errors = ParallelWork(lambda: compile_errors(calls)).answer(60)
    assert errors is not None
    assert [error.sentence for error in errors if error is not None] == []
