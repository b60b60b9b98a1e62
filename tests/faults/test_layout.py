"""S2: a tensor is addressed as if it lay contiguous."""

import pytest
import torch

from tests.faults.plain import BACKWARD, both_ways, named, reading, told

# Some of each kind are tried on every push by the score.
pytestmark = pytest.mark.nightly


def as_if_contiguous(tensor):
    return tensor.as_strided(
        tensor.shape, torch.empty(tensor.shape).stride(), tensor.storage_offset()
    )


@both_ways
@pytest.mark.parametrize(("tensor", "layout"), [("do", "blhd"), ("v", "distinct"), ("q", "blhd")])
def test_a_tensor_that_is_taken_for_contiguous_is_named(tensor, layout, exposed):
    report = told(
        reading(tensor, as_if_contiguous, BACKWARD), exposed=exposed, runs=((("all", layout),),)
    )
    assert named(report) == f"layout/{tensor}"
