"""A: delta is not subtracted, or added."""

import pytest

from .plain import KERNELS, named, reading, seen_both_ways, told


@pytest.mark.parametrize("kernels", [("dkdv",), KERNELS], ids=["dkdv", "all"])
@pytest.mark.parametrize(("fault", "factor"), [("delta/dropped", 0.0), ("delta/sign", -1.0)])
def test_a_delta_that_is_dropped_or_added_is_named(fault, factor, kernels):
    found = seen_both_ways(lambda: reading("delta", lambda t: t * factor, kernels))
    assert found == (fault, fault)
    assert named(told(reading("delta", lambda t: t * factor, kernels), "lazy")) == fault
