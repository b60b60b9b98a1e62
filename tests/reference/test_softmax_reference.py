"""The softmax family held against an independent forward and float64 autograd."""

import pytest
import torch

from gradprobe.reference import manual_attention_backward
from tests.reference.independent import Inputs, assert_same, by_autograd, draw, softmax_inputs


def check(inputs: Inputs, **options) -> dict[str, torch.Tensor]:
    actual = manual_attention_backward(**inputs, **options)
    assert_same(actual, by_autograd(**inputs, **options))
    return actual


def test_9_causal_rows_of_4_keys_leave_rows_0_to_4_dead_which_give_nothing_to_dk_and_dv():
    inputs = softmax_inputs(9, 4)
    actual = check(inputs, causal=True)
    assert (actual["LSE"][:, :, :5] == -torch.inf).all()
    assert actual["LSE"][:, :, 5:].isfinite().all()
    for name in ("P", "dP", "dS", "O", "delta", "dQ"):
        assert (actual[name][:, :, :5] == 0).all(), name
    louder = {name: t.clone() for name, t in inputs.items()}
    for name in ("q", "do"):
        louder[name][:, :, :5] *= 100
    loud = manual_attention_backward(**louder, causal=True)
    assert all(torch.equal(loud[name], actual[name]) for name in ("dK", "dV"))


def test_a_bias_with_minus_infinity_masks_its_keys_and_row_2_altogether():
    bias = draw(5, 8, seed=9)
    bias[:, 3] = bias[2] = -torch.inf
    actual = manual_attention_backward(**softmax_inputs(5, 8), bias=bias)
    assert (actual["P"][..., 3] == 0).all()
    assert (actual["LSE"][:, :, 2] == -torch.inf).all()
    for name in ("P", "dS", "O", "dQ"):
        assert (actual[name][:, :, 2] == 0).all(), name
    assert all(value.isfinite().all() for name, value in actual.items() if name != "LSE")


@pytest.mark.parametrize("scale", [0.25, -0.5, 0.0])
def test_a_given_scale_replaces_1_over_root_of_the_head_dim_of_q_and_0_is_a_scale(scale):
    check(softmax_inputs(5, 6, d=4, dv=2))
    check(softmax_inputs(5, 6, d=4, dv=2), scale=scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_inputs_are_widened_before_the_first_operation(dtype):
    narrow = {name: value.to(dtype) for name, value in softmax_inputs(5, 6).items()}
    bias = draw(5, 6, seed=9).to(dtype)
    actual = manual_attention_backward(**narrow, bias=bias)
    wide = {name: value.double() for name, value in narrow.items()}
    assert {value.dtype for value in actual.values()} == {torch.float64}
    assert_same(actual, by_autograd(**wide, bias=bias.double()))


def test_scores_of_2000_do_not_overflow_and_tied_keys_share_the_row():
    ones = torch.ones(1, 1, 2, 1, dtype=torch.float64)
    actual = manual_attention_backward(ones, ones, ones, ones, scale=2000.0)
    # LSE = 2000 + log 2 is rounded to a number between 1024 and 2048, which are 2**-42 apart;
    # P = exp(S - LSE) = 0.5 then errs by half of as much, and by one rounding of its own, 2**-54.
    assert ((actual["LSE"] - 2000.6931471805599).abs() <= 2.0**-42).all()
    assert ((actual["P"] - 0.5).abs() <= 2.0**-43 + 2.0**-54).all()
