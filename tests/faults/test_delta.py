"""A: delta is not subtracted, or added."""

import pytest

from tests.faults.plain import KERNELS, named, reading, seen_both_ways, told
from tests.sampling import sampled


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(("dkdv",), id="dkdv"),
        pytest.param(KERNELS, id="all", marks=pytest.mark.nightly),
    ],
)
@sampled("fault, factor", [("delta/dropped", 0.0), ("delta/sign", -1.0)], push=1)
def test_a_delta_that_is_dropped_or_added_is_named(fault, factor, kernels):
    found = seen_both_ways(lambda: reading("delta", lambda t: t * factor, kernels))
    assert found == (fault, fault)
    assert named(told(reading("delta", lambda t: t * factor, kernels), "lazy")) == fault
