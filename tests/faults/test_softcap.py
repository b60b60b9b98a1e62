"""A: the softcap's derivative."""

import pytest

from tests.faults.plain import GRADIENTS, KERNELS, both_ways, making, named, told


@both_ways
@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(("dq",), id="dq"),
        pytest.param(KERNELS, id="all", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    "change", [lambda t: t * 0 + 1, lambda t: t**2], ids=["missing", "twice"]
)
def test_a_softcap_s_derivative_that_is_missing_or_taken_twice_is_named(change, kernels, exposed):
    assert (
        named(told(making("slope", change, kernels), exposed=exposed, softcap=1.0))
        == "softcap/derivative"
    )


def test_a_derivative_of_scores_that_were_not_divided_is_named():
    # 1 - tanh(2x)^2 from 1 - tanh(x)^2
    planted = making("slope", lambda t: 1 - 4 * (1 - t) / (2 - t) ** 2, ("dq",))
    cause = told(planted, exposed=GRADIENTS, softcap=2.0).diagnoses[0]
    assert (
        cause.summary
        == "the softcap's derivative is 1 - tanh(S)^2, of S not divided by the softcap"
    )
