"""The softmax family held against an independent forward and float64 autograd."""

import pytest
import torch

from gradprobe.reference import manual_attention_backward
from tests.reference.independent import Inputs, assert_same, by_autograd, draw, softmax_inputs


def check(inputs: Inputs, **options) -> dict[str, torch.Tensor]:
    actual = manual_attention_backward(**inputs, **options)
    assert_same(actual, by_autograd(**inputs, **options))
    return actual


def test_7_rows_see_all_7_keys():
    check(softmax_inputs(7, 7))


def test_7_causal_rows_see_1_to_7_keys():
    check(softmax_inputs(7, 7), causal=True)


def test_4_rows_of_9_keys_without_a_mask():
    check(softmax_inputs(4, 9))


def test_9_rows_of_4_keys_without_a_mask():
    check(softmax_inputs(9, 4))


def test_4_causal_rows_of_9_keys_are_aligned_to_the_bottom_right():
    check(softmax_inputs(4, 9), causal=True)


def test_9_causal_rows_of_4_keys_leave_rows_0_to_4_dead():
    actual = check(softmax_inputs(9, 4), causal=True)
    assert (actual["LSE"][:, :, :5] == -torch.inf).all()
    assert actual["LSE"][:, :, 5:].isfinite().all()
    for name in ("P", "dP", "dS", "O", "delta", "dQ"):
        assert (actual[name][:, :, :5] == 0).all(), name


def test_a_dead_row_gives_nothing_to_dk_and_dv():
    inputs = softmax_inputs(9, 4)
    louder = {name: t.clone() for name, t in inputs.items()}
    louder["q"][:, :, :5] *= 100
    louder["do"][:, :, :5] *= 100
    actual, expected = (manual_attention_backward(**each, causal=True) for each in (louder, inputs))
    assert torch.equal(actual["dK"], expected["dK"])
    assert torch.equal(actual["dV"], expected["dV"])


def test_row_0_of_a_square_causal_problem_has_p_1_and_ds_0_and_dq_0():
    actual = check(softmax_inputs(7, 7), causal=True)
    assert (actual["P"][:, :, 0, 0] == 1).all()
    # P = 1 leaves dP - delta = do.v - do.(1 * v): two sums of the same 3 products of numbers below 1, which
    # may be taken in another order; each errs by at most 3 roundings of 3, so dS is below 2 * 9 * 2**-53, and
    # dQ below dS.
    assert (actual["dS"][:, :, 0].abs() <= 18 * 2.0**-53).all()
    assert (actual["dQ"][:, :, 0].abs() <= 18 * 2.0**-53).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_4_query_heads_share_4_or_2_or_1_key_heads(kv_heads, causal):
    check(softmax_inputs(5, 6, heads=4, kv_heads=kv_heads), causal=causal)


def test_6_query_heads_in_groups_of_3_read_heads_0_0_0_1_1_1():
    check(softmax_inputs(5, 5, heads=6, kv_heads=2), causal=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "window", [(-1, -1), (2, 0), (2, -1), (-1, 1), (1, 2), (0, 0), (0, -1), (20, 20)]
)
@pytest.mark.parametrize(("m", "n"), [(6, 6), (4, 7), (7, 4)])
def test_a_window_includes_both_its_ends_and_minus_1_is_no_limit(m, n, window, causal):
    check(softmax_inputs(m, n), window=window, causal=causal)


@pytest.mark.parametrize("softcap", [0.5, 3.0])
def test_scores_are_capped_at_0_5_or_3(softcap):
    check(softmax_inputs(6, 6), softcap=softcap, scale=2.0, causal=True)


BIAS_SHAPES = [
    (), (1,), (8,), (5, 1), (5, 8), (4, 1, 1), (1, 5, 8), (4, 5, 8), (4, 1, 8), (4, 5, 1),
    (1, 1, 1, 1), (2, 1, 1, 1), (1, 4, 1, 1), (1, 1, 5, 1), (1, 1, 1, 8),
    (2, 4, 1, 1), (2, 1, 5, 1), (2, 1, 1, 8), (1, 4, 5, 1), (1, 4, 1, 8), (1, 1, 5, 8),
    (1, 4, 5, 8), (2, 1, 5, 8), (2, 4, 1, 8), (2, 4, 5, 1), (2, 4, 5, 8),
]  # fmt: skip


@pytest.mark.parametrize("shape", BIAS_SHAPES, ids=str)
def test_a_bias_broadcasts_to_2_4_5_8_and_its_gradient_is_summed_back(shape):
    check(softmax_inputs(5, 8, heads=4, kv_heads=2), bias=draw(*shape, seed=9), causal=True)


@pytest.mark.parametrize("shape", [(2, 4, 5, 8), (4, 1, 1), (5, 8)], ids=str)
def test_the_gradient_of_a_bias_skips_the_derivative_of_softcap_0_5(shape):
    check(softmax_inputs(5, 8, heads=4), bias=draw(*shape, seed=9), softcap=0.5, scale=2.0)


def test_a_bias_with_minus_infinity_masks_its_keys_and_row_2_altogether():
    bias = draw(5, 8, seed=9)
    bias[:, 3] = bias[2] = -torch.inf
    actual = manual_attention_backward(**softmax_inputs(5, 8), bias=bias)
    assert (actual["P"][..., 3] == 0).all()
    assert (actual["LSE"][:, :, 2] == -torch.inf).all()
    for name in ("P", "dS", "O", "dQ"):
        assert (actual[name][:, :, 2] == 0).all(), name
    assert all(value.isfinite().all() for name, value in actual.items() if name != "LSE")


@pytest.mark.parametrize("scale", [2.0, 0.25, -0.5, 0.0])
def test_a_given_scale_replaces_1_over_root_d_and_0_is_a_scale(scale):
    check(softmax_inputs(5, 6), scale=scale)


def test_the_scale_is_1_over_root_of_the_head_dim_of_q_when_v_has_another():
    inputs = softmax_inputs(5, 6, d=4, dv=2)
    assert_same(manual_attention_backward(**inputs), manual_attention_backward(**inputs, scale=0.5))


@pytest.mark.parametrize(("d", "dv"), [(3, 5), (5, 3), (1, 4), (4, 1)])
def test_v_has_a_head_dim_of_its_own(d, dv):
    check(softmax_inputs(5, 6, d=d, dv=dv), causal=True)


@pytest.mark.parametrize("lengths", [(5, 0), (7, 3), (1, 7)])
@pytest.mark.parametrize("causal", [False, True])
def test_rows_and_keys_at_or_past_the_live_length_of_their_batch_are_dead(lengths, causal):
    actual = check(softmax_inputs(7, 7, heads=4), seqlens=torch.tensor(lengths), causal=causal)
    for b, length in enumerate(lengths):
        for name in ("P", "dP", "dS", "O", "delta", "dQ", "dK", "dV"):
            assert (actual[name][b, :, length:] == 0).all(), name


def test_1_row_of_1_key_and_1_row_of_13_keys():
    check(softmax_inputs(1, 1), causal=True)
    check(softmax_inputs(1, 13), causal=True)


def test_everything_at_once():
    inputs = softmax_inputs(9, 9, d=4, dv=2, heads=4, kv_heads=2)
    bias, seqlens = draw(1, 4, 9, 1, seed=9), torch.tensor([6, 9])
    check(inputs, causal=True, scale=1.5, bias=bias, window=(3, -1), softcap=1.5, seqlens=seqlens)


def test_delta_is_also_the_row_sum_of_do_times_o():
    inputs = softmax_inputs(9, 4, heads=4)
    actual = manual_attention_backward(**inputs, causal=True, softcap=0.5)
    assert_same({"delta": actual["delta"]}, {"delta": (inputs["do"] * actual["O"]).sum(-1)})


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
