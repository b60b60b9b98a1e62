"""A: the softcap's derivative."""

import pytest

from tests.faults.plain import KERNELS, making, seen_both_ways


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(("dq",), id="dq"),
        pytest.param(KERNELS, id="all", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("change", [lambda t: t * 0 + 1, lambda t: t**2], ids=["missing", "twice"])
def test_a_softcap_s_derivative_that_is_missing_or_taken_twice_is_named(change, kernels):
    found = seen_both_ways(lambda: making("slope", change, kernels), softcap=1.0)
    assert found == ("softcap/derivative", "softcap/derivative")
