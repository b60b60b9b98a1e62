"""The lazy family held against an independent forward and float64 autograd."""

import pytest
import torch

from gradprobe.reference import manual_attention_backward
from tests.reference.independent import (
    OFF,
    ROUNDING,
    Inputs,
    assert_same,
    by_autograd,
    forward,
    lazy_inputs,
)


def check(inputs: Inputs, **options) -> dict[str, torch.Tensor]:
    actual = manual_attention_backward(**inputs, **options)
    assert_same(actual, by_autograd(**inputs, **options))
    return actual


@pytest.mark.parametrize("window", [None, 1, 3, 6, 7, 8, 12])
def test_a_bias_over_w_distances_of_7_rows_whether_w_is_shorter_equal_or_longer(window):
    check(lazy_inputs(7, window=window))


def test_a_key_beyond_a_bias_of_2_distances_is_attended_without_bias():
    inputs = lazy_inputs(7, window=2)
    padded = inputs | {"bias": torch.nn.functional.pad(inputs["bias"], (0, 5))}
    actual, expected = manual_attention_backward(**inputs), manual_attention_backward(**padded)
    assert (actual["P"][:, :, 6] > 0).all()
    expected["dBias"] = expected["dBias"][:, :2]
    assert_same(actual, expected)


def test_distances_7_to_11_never_occur_among_7_rows_so_their_dbias_is_0():
    assert (manual_attention_backward(**lazy_inputs(7, window=12))["dBias"][:, 7:] == 0).all()


def test_without_a_bias_there_is_no_dbias():
    assert "dBias" not in manual_attention_backward(**lazy_inputs(7, window=None))


@pytest.mark.parametrize("tau", [1.5, 0.3, 0.0, -0.3, -0.9, -2.0])
def test_a_tau_of_either_sign_or_0(tau):
    check(lazy_inputs(9, window=4, tau=(tau, -tau)))


def test_tau_minus_1_leaves_row_0_without_output():
    actual = check(lazy_inputs(7, tau=(-1.0, -1.0)))
    assert (actual["O"][:, :, 0] == 0).all()
    assert (actual["dP"][:, :, 0] == 0).all()


def test_tau_minus_2_silences_every_row_that_does_not_peak_above_2_over_i_plus_1():
    inputs = lazy_inputs(7, tau=(-2.0,))
    p = by_autograd(**inputs)["P"]
    heard = (p - 2 / torch.arange(1, 8)[:, None] > 0) & (p > 0)
    actual = manual_attention_backward(**inputs)
    assert 0 < heard.sum() < 28
    assert torch.equal(actual["dP"] != 0, heard)


def test_relu_closes_some_of_the_visible_entries_of_head_1_and_none_of_head_0():
    inputs = lazy_inputs(9, tau=(0.7, -0.8))
    assert forward(**{n: t for n, t in inputs.items() if n != "do"})["Z"].abs().min() > ROUNDING
    actual = manual_attention_backward(**inputs)
    open_entries = (actual["dP"] != 0).sum((-2, -1))
    assert (open_entries[:, 0] == 45).all()
    assert ((open_entries[:, 1] > 0) & (open_entries[:, 1] < 45)).all()


def test_tau_0_is_causal_softmax_with_the_bias_laid_out_by_distance():
    inputs = lazy_inputs(6, window=3, tau=(0.0, 0.0))
    bias = torch.zeros(2, 6, 6, dtype=torch.float64)
    for i in range(6):
        for j in range(max(0, i - 2), i + 1):
            bias[:, i, j] = inputs["bias"][:, i - j]
    tensors = {name: inputs[name] for name in ("q", "k", "v", "do")}
    expected = manual_attention_backward(**tensors, bias=bias, causal=True)
    actual = manual_attention_backward(**inputs)
    for name in ("O", "LSE", "P", "dP", "delta", "dS", "dQ", "dK", "dV"):
        assert_same({name: actual[name]}, {name: expected[name]})


@pytest.mark.parametrize("lengths", [(7, 7), (4, 7), (0, 5), (1, 0), (0, 0)])
def test_rows_and_keys_at_or_past_the_live_length_of_their_batch_are_dead(lengths):
    actual = check(lazy_inputs(7), seqlens=torch.tensor(lengths))
    for b, length in enumerate(lengths):
        assert (actual["LSE"][b, :, length:] == -torch.inf).all()
        for name in ("P", "dP", "dS", "O", "delta", "dQ", "dK", "dV"):
            assert (actual[name][b, :, length:] == 0).all(), name


def test_full_lengths_are_the_same_as_none():
    inputs = lazy_inputs(7)
    assert_same(
        manual_attention_backward(**inputs, seqlens=torch.tensor([7, 7])),
        manual_attention_backward(**inputs),
    )


@pytest.mark.parametrize(
    ("n_ctx", "d", "window"), [(7, 1, 3), (1, 3, 1), (1, 1, 4), (1, 1, None), (13, 5, 5)]
)
def test_1_row_and_1_dimension(n_ctx, d, window):
    check(lazy_inputs(n_ctx, d=d, window=window))


@pytest.mark.parametrize("scale", [2.0, 0.25, -0.5, 0.0])
def test_a_given_scale_replaces_1_over_root_d(scale):
    check(lazy_inputs(7), scale=scale)


def test_tau_0_6_with_equal_scores_and_ones_gives_o_1_6_and_a_dtau_of_3_for_each_of_12_live_rows():
    inputs = lazy_inputs(7, window=None, tau=(0.6,)) | {"q": torch.zeros(2, 1, 7, 3)}
    ones = {"v": torch.ones(2, 1, 7, 3), "do": torch.ones(2, 1, 7, 3)}
    actual = manual_attention_backward(**inputs | ones, seqlens=torch.tensor([5, 7]))
    # O = 1 + tau for equal scores, since each of the i + 1 keys has P + tau / (i + 1) = 1.6 / (i + 1); dTau
    # adds up i + 1 keys of dP = 3, over i + 1, for 5 + 7 live rows.
    assert_same({"O": actual["O"][1]}, {"O": torch.full((1, 7, 3), 1.6, dtype=torch.float64)})
    assert_same({"dTau": actual["dTau"]}, {"dTau": torch.tensor([36.0], dtype=torch.float64)})


def test_delta_is_the_row_sum_of_p_times_dp_and_not_of_do_times_o():
    inputs = lazy_inputs(7, tau=(0.7, -0.8, 0.0))
    actual = manual_attention_backward(**inputs)
    do_o = (inputs["do"] * actual["O"]).sum(-1)
    assert_same({"delta": actual["delta"]}, {"delta": (actual["P"] * actual["dP"]).sum(-1)})
    off = (actual["delta"] - do_o).abs().amax((0, 2))
    assert (off[:2] > OFF).all()
    assert off[2] <= ROUNDING


def test_dtau_is_what_do_times_o_has_over_delta_divided_by_tau():
    inputs = lazy_inputs(9, tau=(0.7, -0.8))
    actual = manual_attention_backward(**inputs, seqlens=torch.tensor([6, 9]))
    # 9 + 6 rows of at most 10, divided by 0.7 or 0.8, are inside the 1040 that ROUNDING allows for.
    excess = ((inputs["do"] * actual["O"]).sum(-1) - actual["delta"]).sum((0, 2))
    assert_same({"dTau": actual["dTau"]}, {"dTau": excess / inputs["tau"]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_inputs_are_widened_before_the_first_operation(dtype):
    inputs = lazy_inputs(7)
    narrow: Inputs = {name: t.to(dtype) if torch.is_tensor(t) else t for name, t in inputs.items()}
    wide: Inputs = {name: t.double() if torch.is_tensor(t) else t for name, t in narrow.items()}
    assert_same(manual_attention_backward(**narrow), by_autograd(**wide))


def test_causal_is_on_whatever_was_asked():
    inputs = lazy_inputs(7)
    actual = manual_attention_backward(**inputs, causal=False)
    assert (actual["P"].triu(1) == 0).all()
    assert_same(actual, manual_attention_backward(**inputs, causal=True))
