"""A: delta is not subtracted, or added."""

import pytest

from .plain import KERNELS, reading, seen_both_ways


@pytest.mark.parametrize("family", ["softmax", "lazy"])
@pytest.mark.parametrize("kernels", [("dkdv",), KERNELS], ids=["dkdv", "all"])
@pytest.mark.parametrize(("fault", "factor"), [("delta/dropped", 0.0), ("delta/sign", -1.0)])
def test_a_delta_that_is_dropped_or_added_is_named(fault, factor, kernels, family):
    found = seen_both_ways(lambda: reading("delta", lambda t: t * factor, kernels), family)
    assert found == (fault, fault)
