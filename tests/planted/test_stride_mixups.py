"""Every mix-up of two tensors' strides that lazy and flash can hold is found by strides, and none by `contiguous`."""

import pytest
import torch

from gradprobe.processes import run_each
from tests.planted.stride_mixups import mixups

EXPRESSIBLE = {"lazy": 176, "flash": 184}

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the interpreter adds in one order, atomics do not"
)


@pytest.fixture(params=EXPRESSIBLE)
def file(request):
    return request.param


# Some on every push, and all of them at night: they take minutes.
@pytest.mark.parametrize(
    ("first", "step"),
    [(0, 240), *(pytest.param(sixth, 6, marks=pytest.mark.nightly) for sixth in range(6))],
)
def test_strides_finds_every_one_and_contiguous_alone_finds_none(file, first, step):
    assert len(mixups(file)) == EXPRESSIBLE[file]
    planted = mixups(file)[first::step]
    trying = "tests.planted.stride_mixups:Mixups"
    right, *ends = run_each(trying, file, [None, *planted], timeout=120)
    assert right.result == ("match", "match")
    found = {ended.item.name: ended.result or ended.crash or ended.raised for ended in ends}
    assert found == dict.fromkeys(found, ("match", "mismatch"))
