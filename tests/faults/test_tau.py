"""A: the lazy family's ReLU, and what tau is divided by."""

import pytest
import torch

from tests.faults.plain import (
    GRADIENTS,
    both_ways,
    keys_of,
    making,
    named,
    remembering,
    rows_of,
    told,
)

TAU = torch.tensor([-0.5, 0.5])[:, None, None]


@both_ways
@pytest.mark.parametrize(
    "position",
    [
        pytest.param(lambda i, j: i + 2.0, id="i + 2"),
        pytest.param(lambda i, j: j + 1.0, id="j + 1", marks=pytest.mark.nightly),
    ],
)
def test_a_tau_that_is_divided_by_another_position_is_named(position, exposed):
    def other(z):
        i, j = rows_of(z), keys_of(z)
        return z - TAU / (i + 1) + TAU / position(i, j)

    assert named(told(making("Z", other), "lazy", exposed, batch=1)) == "tau/position"


@pytest.mark.nightly
@both_ways
def test_a_relu_mask_that_is_missing_in_dp_is_named(exposed):
    unmasked = lambda of, t: of("do") @ of("v").mT * of("valid")  # noqa: E731
    assert named(told(remembering("dP", unmasked), "lazy", exposed)) == "relu/mask"


def test_a_dtau_off_by_a_factor_is_named():
    assert named(told(making("dTau", lambda t: t * 2), "lazy", batch=1)) == "factor/dTau"


def test_a_dtau_of_what_is_masked_is_named_and_not_called_a_mask_of_minus_60():
    unmasked = lambda of, t: (of("do") @ of("v").mT / (rows_of(of("dP")) + 1)).sum((0, 2, 3))  # noqa: E731, ARG005
    cause = told(remembering("dTau", unmasked), "lazy", GRADIENTS, batch=1).diagnoses[0]
    assert (cause.fault, cause.summary) == ("tau/gradient", "dTau sums dP before it is masked")


@pytest.mark.nightly
def test_two_numbers_near_0_are_no_proof_of_any_of_the_many_faults_that_would_leave_0_there():
    """A row of dS sums to 0, and so does a dTau that is made of dS."""
    of_ds = lambda of, t: (of("dS") / (rows_of(of("dS")) + 1)).sum((0, 2, 3))  # noqa: E731, ARG005
    report = told(remembering("dTau", of_ds), "lazy", GRADIENTS)
    assert report.verdict == "mismatch"
    assert report.diagnoses == ()
