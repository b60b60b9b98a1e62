"""A: one constant factor; H1: a gradient that is 0."""

import math
from itertools import product

import pytest

from tests.cases import softmax_case
from tests.emulated import target_of
from tests.faults.plain import BACKWARD, GRADIENTS, KERNELS, both_ways, making, named, told
from tests.probe import probe
from tests.sampling import sampled

STEPS = ["P", "dP", "delta", "dS", "dQ", "dK", "dV"]


@sampled(
    "step, family",
    product(STEPS, ["softmax", "lazy"]),
    push=[
        ("P", "softmax"),
        ("dP", "lazy"),
        ("delta", "softmax"),
        ("dS", "lazy"),
        ("dQ", "softmax"),
        ("dK", "lazy"),
    ],
)
def test_the_first_step_that_is_doubled_is_named_where_everything_is_exposed(step, family):
    report = told(making(step, lambda t: t * 2), family)
    assert named(report) == f"factor/{step}"
    assert report.diagnoses[0].summary == f"{step} is off by the factor 2 throughout"


@sampled("step, factor", [("dQ", 8**0.5), ("dK", -1.0), ("dV", 1.2345), ("dP", 0.5)], push=1)
def test_a_factor_of_a_black_box_is_named_by_the_step_that_it_multiplies(step, factor):
    assert named(told(making(step, lambda t: t * factor), exposed=GRADIENTS)) == f"factor/{step}"


def test_a_scale_that_is_missing_in_dq_is_said_so():
    report = told(making("dQ", lambda t: t * 8**0.5))
    assert report.diagnoses[0].summary == "dQ is off by the factor 1/scale throughout"
    assert report.diagnoses[0].fix == "multiply dQ by scale"


@sampled(
    "factor, fix",
    [
        (math.log(2), "multiply dV by log2e"), (1 / math.log(2), "multiply dV by ln2"), (2.0, "multiply dV by 1/2"),
        (0.5, "multiply dV by 2"), (-1.0, "multiply dV by -1"), (1.2345, ""),
    ],
    push=2,
)  # fmt: skip
def test_the_edit_undoes_the_factor_that_came(factor, fix):
    assert told(making("dV", lambda t: t * factor)).diagnoses[0].fix == fix


@pytest.mark.parametrize(
    ("factor", "kernels"),
    [(math.log(2), KERNELS), pytest.param(1 / math.log(2), BACKWARD, marks=pytest.mark.nightly)],
)
@both_ways
def test_scores_in_units_of_log_2_are_named(factor, kernels, exposed):
    assert named(told(making("S", lambda t: t * factor, kernels), exposed=exposed)) == "factor/S"


@pytest.mark.parametrize(
    ("factor", "kernels"),
    [(math.log(2), KERNELS), pytest.param(1 / math.log(2), BACKWARD, marks=pytest.mark.nightly)],
)
def test_they_are_named_beside_a_bias_with_the_edit(factor, kernels):
    with_bias = told(making("S", lambda t: t * factor, kernels), "lazy")
    assert named(with_bias) == "factor/S"
    assert with_bias.diagnoses[0].summary.startswith("the scores and bias are off by the factor ")
    assert with_bias.diagnoses[0].fix.startswith(
        "take exp of scores in natural units, or exp2 of scores times log2 e"
    )


@sampled(
    "step, family, options",
    [
        ("dQ", "softmax", {}),
        ("dV", "lazy", {}),
        ("dBias", "softmax", {"bias": True}),
        ("dTau", "lazy", {}),
    ],
    push=1,
)
def test_a_gradient_of_zeros_is_named(step, family, options):
    assert (
        named(told(making(step, lambda t: t * 0), family, GRADIENTS, **options)) == f"zero/{step}"
    )


def test_gradients_of_zeros_are_named_together_though_a_small_factor_lies_within_their_budget():
    def zeros(q, k, v, do, *, scale):
        q, k, v, do = (tensor.float() for tensor in (q, k, v, do))
        p, dp = (scale * q @ k.mT).softmax(-1), do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        return {"dQ": (scale * ds @ k).bfloat16(), "dK": k.bfloat16() * 0, "dV": v.bfloat16() * 0}

    case = softmax_case(
        batch=1, heads=1, seqlen=64, head_dim=64, dtype="bfloat16", runs=((),), recover=False
    )
    cause = probe(case, target_of(zeros)).diagnoses[0]
    assert (cause.fault, cause.is_named) == ("zero/dK", True)
    assert cause.summary.startswith("dK and dV are 0 throughout")
