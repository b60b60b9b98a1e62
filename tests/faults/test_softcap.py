"""A: the softcap's derivative."""

import pytest

from tests.faults.plain import KERNELS, both_ways, making, named, told


@both_ways
@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(("dq",), id="dq"),
        pytest.param(KERNELS, id="all", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("change", [lambda t: t * 0 + 1, lambda t: t**2], ids=["missing", "twice"])
def test_a_softcap_s_derivative_that_is_missing_or_taken_twice_is_named(change, kernels, exposed):
    assert named(told(making("slope", change, kernels), exposed=exposed, softcap=1.0)) == "softcap/derivative"
