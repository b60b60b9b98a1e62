"""Every mix-up of two tensors' strides that lazy and flash can hold is found by strides, and none by `contiguous`."""

import pytest
import torch

from gradprobe.processes import run_each
from tests.planted.stride_mixups import mixups, source_of

# Tensors that no kernel reads or writes both of: the backward of lazy needs no O.
APART = {
    "lazy": {"o do", "o dq", "o dk", "o dv", "dq dk", "dq dv"},
    "flash": {"o dq", "o dk", "o dv", "dq dk", "dq dv"},
}
EXPRESSIBLE = {"lazy": 176, "flash": 184}

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the interpreter adds in one order, atomics do not"
)


@pytest.fixture(params=EXPRESSIBLE)
def file(request):
    return request.param


def test_of_224_each_is_another_program_or_of_tensors_that_no_kernel_has_both_of(file):
    found, pairs = mixups(file), [pair.split() for pair in APART[file]]
    both_ways = [*pairs, *(reversed(pair) for pair in pairs)]
    words = f"no kernel of {file} has both {{}} and {{}}"
    obstacles = {mixup.obstacle for mixup in found if mixup.obstacle}
    assert obstacles == {words.format(*pair) for pair in both_ways}
    planted = {mixup.plant(source_of(file)) for mixup in found if not mixup.obstacle}
    assert (len(found), len(planted)) == (224, EXPRESSIBLE[file])


# Some on every push, and all of them at night: they take minutes.
@pytest.mark.parametrize(
    ("first", "step"),
    [(0, 120), *(pytest.param(sixth, 6, marks=pytest.mark.nightly) for sixth in range(6))],
)
def test_strides_finds_every_one_and_contiguous_alone_finds_none(file, first, step):
    planted = [mixup for mixup in mixups(file) if not mixup.obstacle][first::step]
    trying = "tests.planted.stride_mixups:Mixups"
    right, *ends = run_each(trying, file, [None, *planted], timeout=120)
    assert right.result == ("match", "match")
    found = {ended.item.name: ended.result or ended.crash or ended.raised for ended in ends}
    assert found == dict.fromkeys(found, ("match", "mismatch"))
