"""M1: kernels that see other keys, or leave out an input of the scores."""

import pytest

from tests.faults.plain import (
    BACKWARD,
    EVERYTHING,
    GRADIENTS,
    KERNELS,
    Planted,
    both_ways,
    keys_of,
    making,
    named,
    reading,
    rows_of,
    told,
)

CAUSAL, WINDOW = {"causal": True}, {"window": (7, 3)}
PLANTED = {
    "the diagonal is masked": ("mask/diagonal", lambda t: t & (keys_of(t) < rows_of(t)), CAUSAL),
    "a key beyond the diagonal": ("mask/beyond-diagonal", lambda t: t | (keys_of(t) == rows_of(t) + 1), CAUSAL),
    "no causal mask": ("mask/causal", lambda t: t | True, CAUSAL),
    "a causal mask unasked": ("mask/causal", lambda t: t & (keys_of(t) <= rows_of(t)), {}),
    "a key fewer to the left": ("mask/window-left", lambda t: t & (keys_of(t) > rows_of(t) - 7), WINDOW),
    "a key more to the right": ("mask/window-right", lambda t: t | (keys_of(t) == rows_of(t) + 4), WINDOW),
    "the other corner": (
        "mask/align", lambda t: (keys_of(t) <= rows_of(t)).expand_as(t), CAUSAL | {"seqlen_q": 24, "seqlen_k": 40},
    ),
    "no mask": ("mask/mask", lambda t: t | True, {"mask": "random"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kernels", "exposed"),
    [
        pytest.param(("dq",), GRADIENTS, id="dq of a black box", marks=pytest.mark.nightly),
        pytest.param(BACKWARD, EVERYTHING, id="backward"),
    ],
)
@pytest.mark.parametrize("name", PLANTED)
def test_a_comparison_of_the_mask_is_named_in_whichever_kernels_it_is_wrong(
    name, kernels, exposed
):
    fault, change, options = PLANTED[name]
    assert named(told(making("valid", change, kernels), exposed=exposed, **options)) == fault


@both_ways
def test_padding_that_is_not_masked_is_named(exposed):
    planted = making("valid", lambda t: (keys_of(t) <= rows_of(t)).expand_as(t))
    assert named(told(planted, exposed=exposed, causal=True, seqlens=(40, 21))) == "mask/length"


@both_ways
@pytest.mark.parametrize(
    ("fault", "name", "options"),
    [
        ("mask/alibi", "alibi", {"batch": 1, "alibi": True}),
        pytest.param("mask/sinks", "sinks", {"sinks": True}, marks=pytest.mark.nightly),
    ],
)
def test_an_input_of_the_scores_that_is_left_out_is_named(fault, name, options, exposed):
    without = (lambda t: t - float("inf")) if name == "sinks" else lambda t: t * 0
    kernels = ("forward",) if name == "sinks" else KERNELS
    assert named(told(reading(name, without, kernels), exposed=exposed, **options)) == fault


@both_ways
def test_a_tau_that_is_left_out_is_named(exposed):
    assert named(told(reading("tau", lambda t: t * 0), "lazy", exposed, batch=1)) == "mask/tau"


@pytest.mark.nightly
@both_ways
def test_a_softcap_that_is_left_out_is_named(exposed):
    def without(kernel, name, tensor):  # noqa: ARG001
        if name == "slope":
            return tensor * 0 + 1
        return (tensor / 8.0).double().atanh().mul(8.0).float() if name == "S" else tensor

    assert named(told(Planted(make=without), exposed=exposed, softcap=8.0)) == "mask/softcap"
