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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (6, 2)])
def test_query_heads_share_key_heads(heads, kv_heads, causal):
    check(softmax_inputs(5, 6, heads=heads, kv_heads=kv_heads), causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(2, -1), (-1, 1), (1, 2), (0, 0), (20, 20)])
@pytest.mark.parametrize(("m", "n"), [(4, 7), (7, 4)])
def test_a_window_includes_both_its_ends_and_minus_1_is_no_limit(m, n, window, causal):
    check(softmax_inputs(m, n), window=window, causal=causal)


# Every number of axes, and each axis alone and together with every other.
BIAS_SHAPES = [
    (), (8,), (5, 1), (4, 1, 1), (4, 5, 8), (2, 1, 1, 1), (2, 4, 1, 1), (2, 1, 5, 1), (2, 1, 1, 8), (1, 4, 5, 1),
    (1, 4, 1, 8), (1, 1, 5, 8), (2, 4, 5, 8),
]  # fmt: skip


@pytest.mark.parametrize("shape", BIAS_SHAPES, ids=str)
def test_the_gradient_of_a_bias_is_summed_back_and_skips_the_derivative_of_a_softcap(shape):
    inputs, bias = softmax_inputs(5, 8, heads=4, kv_heads=2), draw(*shape, seed=9)
    check(inputs, bias=bias, causal=True)
    check(inputs, bias=bias, softcap=0.5, scale=2.0)


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


@pytest.mark.parametrize("causal", [False, True])
def test_rows_and_keys_at_or_past_the_live_length_of_their_batch_are_dead(causal):
    actual = check(softmax_inputs(7, 7, heads=4), seqlens=torch.tensor((5, 0)), causal=causal)
    for b, length in enumerate((5, 0)):
        for name in ("P", "dP", "dS", "O", "delta", "dQ", "dK", "dV"):
            assert (actual[name][b, :, length:] == 0).all(), name


def test_everything_at_once():
    inputs = softmax_inputs(9, 9, d=4, dv=2, heads=4, kv_heads=2)
    bias, seqlens = draw(1, 4, 9, 1, seed=9), torch.tensor([6, 9])
    check(inputs, causal=True, scale=1.5, bias=bias, window=(3, -1), softcap=1.5, seqlens=seqlens)


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
