"""A: delta is not subtracted, or added."""

import pytest

from tests.faults.plain import KERNELS, both_ways, named, reading, told
from tests.sampling import sampled

KERNELS_OF_IT = pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(("dkdv",), id="dkdv"),
        pytest.param(KERNELS, id="all", marks=pytest.mark.nightly),
    ],
)
FAULTS = sampled("fault, factor", [("delta/dropped", 0.0), ("delta/sign", -1.0)], push=1)


@both_ways
@KERNELS_OF_IT
@FAULTS
def test_a_delta_that_is_dropped_or_added_is_named(fault, factor, kernels, exposed):
    assert named(told(reading("delta", lambda t: t * factor, kernels), exposed=exposed)) == fault


@KERNELS_OF_IT
@FAULTS
def test_it_is_named_in_the_lazy_family_too(fault, factor, kernels):
    assert named(told(reading("delta", lambda t: t * factor, kernels), "lazy")) == fault
