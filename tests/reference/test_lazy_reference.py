"""The lazy family held against an independent forward, float64 autograd and its gradcheck."""

import pytest
import torch

from gradprobe.reference import manual_attention_backward
from tests.reference.independent import (
    OFF,
    ROUNDING,
    assert_same,
    by_autograd,
    forward,
    lazy_inputs,
)


def check(inputs, **options) -> dict[str, torch.Tensor]:
    actual = manual_attention_backward(**inputs, **options)
    assert_same(actual, by_autograd(**inputs, **options))
    return actual


@pytest.mark.parametrize("window", [None, 1, 3, 7, 12])
def test_a_bias_over_w_distances_of_7_rows_whether_w_is_shorter_equal_or_longer(window):
    actual = check(lazy_inputs(7, window=window))
    assert (actual["dBias"][:, 7:] == 0).all() if window else "dBias" not in actual


def test_a_key_beyond_a_bias_of_2_distances_is_attended_without_bias():
    inputs = lazy_inputs(7, window=2)
    padded = inputs | {"bias": torch.nn.functional.pad(inputs["bias"], (0, 5))}
    actual, expected = manual_attention_backward(**inputs), manual_attention_backward(**padded)
    assert (actual["P"][:, :, 6] > 0).all()
    expected["dBias"] = expected["dBias"][:, :2]
    assert_same(actual, expected)


@pytest.mark.parametrize("tau", [1.5, 0.0, -0.3, -1.0, -2.0])
def test_a_tau_of_either_sign_or_0(tau):
    actual = check(lazy_inputs(9, window=4, tau=(tau, -tau)))
    # Row 0 has one key, whose P is 1: a tau of -1 leaves it without output.
    assert tau != -1 or (actual["O"][:, 0, 0] == 0).all()
    assert tau != -1 or (actual["dP"][:, 0, 0] == 0).all()


def test_relu_closes_some_of_the_visible_entries_of_head_1_and_none_of_head_0():
    inputs = lazy_inputs(9, tau=(0.7, -0.8))
    assert forward(**{n: t for n, t in inputs.items() if n != "do"})["Z"].abs().min() > ROUNDING
    actual = manual_attention_backward(**inputs)
    open_entries = (actual["dP"] != 0).sum((-2, -1))
    assert (open_entries[:, 0] == 45).all()
    assert ((open_entries[:, 1] > 0) & (open_entries[:, 1] < 45)).all()


@pytest.mark.parametrize("lengths", [(4, 7), (1, 0)])
def test_rows_and_keys_at_or_past_the_live_length_of_their_batch_are_dead(lengths):
    actual = check(lazy_inputs(7), seqlens=torch.tensor(lengths))
    for b, length in enumerate(lengths):
        assert (actual["LSE"][b, :, length:] == -torch.inf).all()
        for name in ("P", "dP", "dS", "O", "delta", "dQ", "dK", "dV"):
            assert (actual[name][b, :, length:] == 0).all(), name


@pytest.mark.parametrize(("n_ctx", "d", "window"), [(1, 1, 4), (1, 1, None), (13, 5, 5)])
def test_1_row_and_1_dimension(n_ctx, d, window):
    check(lazy_inputs(n_ctx, d=d, window=window))


@pytest.mark.parametrize("scale", [0.25, -0.5, 0.0])
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
    off = (actual["delta"] - (inputs["do"] * actual["O"]).sum(-1)).abs().amax((0, 2))
    assert_same({"delta": actual["delta"]}, {"delta": (actual["P"] * actual["dP"]).sum(-1)})
    assert (off[:2] > OFF).all()
    assert off[2] <= ROUNDING


def test_narrow_inputs_are_widened_before_the_first_operation():
    inputs = lazy_inputs(7).items()
    narrow = {name: t.bfloat16() if torch.is_tensor(t) else t for name, t in inputs}
    wide = {name: t.double() if torch.is_tensor(t) else t for name, t in narrow.items()}
    assert_same(manual_attention_backward(**narrow), by_autograd(**wide))


def test_causal_is_on_whatever_was_asked():
    assert (manual_attention_backward(**lazy_inputs(7), causal=False)["P"].triu(1) == 0).all()


def test_gradcheck_passes_of_one_head_that_relu_cuts_and_one_it_does_not():
    inputs, names = lazy_inputs(6, tau=(0.6, -0.8)), ("q", "k", "v", "bias", "tau")

    class Lazy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *given):
            ctx.save_for_backward(*given)
            return forward(**dict(zip(names, given, strict=True)), family="lazy")["O"]

        @staticmethod
        def backward(ctx, do):
            given = inputs | dict(zip(names, ctx.saved_tensors, strict=True)) | {"do": do}
            found = manual_attention_backward(**given, matrices=False)
            return tuple(found[name] for name in ("dQ", "dK", "dV", "dBias", "dTau"))

    leaves = [inputs[name].clone().requires_grad_() for name in names]
    # Third derivatives below 1000 make e**2 / 6 of them 2e-10, and 250 roundings of 3 over e 8e-8.
    assert torch.autograd.gradcheck(Lazy.apply, leaves, eps=1e-6, atol=1e-7, rtol=0)
