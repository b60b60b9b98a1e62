import pytest
import torch

from gradprobe.reference import manual_attention_backward
from tests.reference.independent import OFF, ROUNDING, assert_same, by_autograd, lazy_inputs


def check(inputs, **options) -> dict[str, torch.Tensor]:
    actual = manual_attention_backward(**inputs, **options)
    assert_same(actual, by_autograd(**inputs, **options))
    return actual


@pytest.mark.parametrize("window", [None, 3, 12])
def test_a_bias_over_w_distances_of_7_rows_whether_w_is_shorter_equal_or_longer(window):
    actual = check(lazy_inputs(7, window=window))
    assert (actual["dBias"][:, 7:] == 0).all() if window else "dBias" not in actual


@pytest.mark.parametrize("tau", [1.5, -0.3, -1.0])
def test_a_tau_of_either_sign_or_0(tau):
    actual = check(lazy_inputs(9, window=4, tau=(tau, -tau)))
    # Row 0 has one key, whose P is 1: a tau of -1 leaves it without output.
    assert tau != -1 or (actual["O"][:, 0, 0] == 0).all()
    assert tau != -1 or (actual["dP"][:, 0, 0] == 0).all()


@pytest.mark.parametrize("lengths", [(4, 7), (1, 0)])
def test_rows_and_keys_at_or_past_the_live_length_of_their_batch_are_dead(lengths):
    actual = check(lazy_inputs(7), seqlens=torch.tensor(lengths))
    for b, length in enumerate(lengths):
        assert (actual["LSE"][b, :, length:] == -torch.inf).all()
        for name in ("P", "dP", "dS", "O", "delta", "dQ", "dK", "dV"):
            assert (actual[name][b, :, length:] == 0).all(), name


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
    off = (actual["delta"] - (inputs["do"] * actual["O"]).sum(-1)).abs().amax((0, 2))
    assert_same({"delta": actual["delta"]}, {"delta": (actual["P"] * actual["dP"]).sum(-1)})
    assert (off[:2] > OFF).all()
    assert off[2] <= ROUNDING
