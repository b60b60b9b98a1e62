"""No hypothesis explains what no hypothesis made."""

import torch

from tests.faults.plain import both_ways, making, named, told
from tests.sampling import sampled


def noise(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def some(shape, share):
    return torch.rand(shape, generator=torch.Generator().manual_seed(6)) < share


NOISES = {
    "a tenth of the elements moved": lambda t: t + some(t.shape, 0.1) * noise(t.shape),
    "a third of the signs turned": lambda t: torch.where(some(t.shape, 0.3), -t, t),
    "a third of the elements 0": lambda t: torch.where(some(t.shape, 0.3), t * 0, t),
    "numbers of another seed": lambda t: noise(t.shape),
    "NaN in a third of the rows": lambda t: (
        t + torch.where(some(t.shape[:3], 0.3), torch.nan, 0.0).unflatten(2, (-1, 1))
    ),
    "five elements of another size": lambda t: (
        t + 3 * noise(t.shape) * (torch.arange(t.numel()) % 700 == 99).view(t.shape)
    ),
}


@both_ways
@sampled("name", NOISES, push=1)
def test_noise_in_ds_is_no_fault_of_any_kind_and_is_described(name, exposed):
    report = told(making("dS", NOISES[name]), exposed=exposed, causal=True)
    assert named(report) == ""
    assert report.known


def test_three_wrong_elements_of_lse_are_not_explained_by_the_thousands_that_follow_from_them():
    def three(lse):
        return lse + 3 * noise(lse.shape) * (torch.arange(lse.numel()) % 50 == 7).view(lse.shape)

    report = told(making("LSE", three))
    assert report.runs[0].measured.comparison.findings["LSE"].mismatched == 4
    assert report.runs[0].measured.comparison.findings["dK"].mismatched == 1280
    assert named(report) == ""


def test_a_gradient_of_nan_throughout_says_nothing_of_where_it_came_from():
    planted = making(
        "dP", lambda t: t + torch.where(some(t.shape, 0.02), torch.nan, 0.0), ("dkdv",)
    )
    assert named(told(planted, exposed=("dK",), causal=True, mask="dead-rows")) == ""
