"""The identities I1 to I9 of the mathematics page: that they hold, and are off where the page says so."""

import pytest
import torch
from torch import Tensor

from gradprobe.reference import manual_attention_backward
from tests.reference.independent import OFF, ROUNDING, Inputs, draw, lazy_inputs, softmax_inputs

# An identity adds up at most 81 values, each times an input of at most 1: I3 has 2 * 9 * 3 of dQ and 9 * 3 of
# dK. Each errs by at most half of ROUNDING, which is there for two answers.
SLACK = 81 * ROUNDING / 2  # 1.5e-8

GROUPED = softmax_inputs(9, 9, heads=4, kv_heads=2)
PLAIN = {
    "full": GROUPED,
    "causal": GROUPED | {"causal": True},
    "causal 4 rows of 9 keys": softmax_inputs(4, 9, heads=4, kv_heads=1) | {"causal": True},
    "causal 9 rows of 4 keys": softmax_inputs(9, 4, heads=4, kv_heads=2) | {"causal": True},
    "window 2 left, bias": GROUPED | {"window": (2, 1), "bias": draw(4, 9, 9, seed=9)},
    "lengths 6 and 0": GROUPED | {"seqlens": torch.tensor([6, 0])},
}
DEAD_ROW = (torch.arange(9) != 3)[:, None]
PLAIN |= {
    "alibi, top-left, 4 rows of 9 keys": softmax_inputs(4, 9, heads=4, kv_heads=1)
    | {"alibi": draw(4, seed=8).abs(), "align": "top-left", "causal": True},
    "row 3 masked": GROUPED | {"mask": DEAD_ROW},
    "packed 4, 0 and 5": {name: t[:1] for name, t in GROUPED.items()}
    | {"cu_seqlens_q": torch.tensor([0, 4, 4, 9])},
}
DROPPED = {
    "dropout 0.4": GROUPED
    | {"dropout": 0.4, "keep": draw(2, 4, 9, 9, seed=8) > -0.2, "mask": DEAD_ROW}
}
SUNK = {"sinks": GROUPED | {"sinks": 2 * draw(4, seed=8), "mask": DEAD_ROW}}
CAPPED = {"softcap 0.5": GROUPED | {"softcap": 0.5, "scale": 2.0, "bias": draw(2, 4, 9, 9, seed=9)}}
LAZY = {
    "lazy W 3": lazy_inputs(9, window=3),
    "lazy W 9": lazy_inputs(9, window=9),
    "lazy W 12, lengths 6 and 9": lazy_inputs(9, window=12) | {"seqlens": torch.tensor([6, 9])},
}
ALL = PLAIN | DROPPED | SUNK | CAPPED | LAZY


def holding(problems: dict[str, Inputs]):
    return pytest.mark.parametrize("problem", problems.values(), ids=problems.keys())


def by_key_head(x: Tensor, k: Tensor) -> Tensor:
    """[B, H, ...] summed over the query heads of each key head."""
    grouped: Tensor = x.unflatten(1, (k.shape[1], -1))
    return grouped.sum(2)


def zero(x: Tensor) -> bool:
    return bool((x.abs() <= SLACK).all())


def off(x: Tensor) -> bool:
    return bool((x.abs() > OFF).any())


def sum_of_dv_less_do(problem: Inputs) -> Tensor:
    actual = manual_attention_backward(**problem)
    live_do = problem["do"] * (actual["P"] > 0).any(-1)[..., None]
    return actual["dV"].sum(2) - by_key_head(live_do.sum(2), problem["k"])


@holding(PLAIN | CAPPED)
def test_i1_dv_sums_to_do_of_live_rows(problem):
    assert zero(sum_of_dv_less_do(problem))


def test_i1_is_off_for_lazy_where_p_plus_tau_is_not_normalised():
    assert off(sum_of_dv_less_do(LAZY["lazy W 9"]))


@holding(DROPPED | SUNK)
def test_i1_is_off_under_dropout_and_sinks(problem):
    assert off(sum_of_dv_less_do(problem))


@holding(PLAIN | DROPPED | LAZY)
def test_i2_dk_sums_to_0(problem):
    assert zero(manual_attention_backward(**problem)["dK"].sum(2))


@holding(CAPPED | SUNK)
def test_i2_is_off_under_softcap_and_sinks(problem):
    assert off(manual_attention_backward(**problem)["dK"].sum(2))


@holding(ALL)
def test_i3_q_times_dq_is_k_times_dk(problem):
    actual = manual_attention_backward(**problem)
    q_side = by_key_head((problem["q"] * actual["dQ"]).sum((2, 3)), problem["k"])
    k_side = (problem["k"] * actual["dK"]).sum((2, 3))
    assert zero(q_side - k_side)
    assert off(q_side)


@holding(ALL)
def test_i4_v_times_dv_is_o_times_do(problem):
    actual = manual_attention_backward(**problem)
    o_side = by_key_head((actual["O"] * problem["do"]).sum((2, 3)), problem["k"])
    v_side = (problem["v"] * actual["dV"]).sum((2, 3))
    assert zero(v_side - o_side)
    assert off(o_side)


@holding(PLAIN | DROPPED | LAZY)
def test_i5_every_row_of_ds_sums_to_0(problem):
    assert zero(manual_attention_backward(**problem)["dS"].sum(-1))


@holding(CAPPED)
def test_i5_is_off_for_ds_under_softcap_but_holds_for_dt_which_a_full_bias_shows(problem):
    actual = manual_attention_backward(**problem)
    assert off(actual["dS"].sum(-1))
    assert zero(actual["dBias"].sum(-1))


@holding(SUNK)
def test_i5_is_off_under_sinks_by_what_dsink_takes(problem):
    actual = manual_attention_backward(**problem)
    assert off(actual["dS"].sum(-1))
    assert zero(actual["dS"].sum((0, 2, 3)) + actual["dSink"])


def test_i5_dbias_sums_to_0_over_9_or_12_distances_of_9_rows_and_not_over_3():
    sums = {
        name: manual_attention_backward(**problem)["dBias"].sum(-1)
        for name, problem in LAZY.items()
    }
    assert off(sums["lazy W 3"])
    assert zero(sums["lazy W 9"])
    assert zero(sums["lazy W 12, lengths 6 and 9"])


def masked(problem: Inputs) -> Tensor:
    """[B, 1, M, N] bool: what causal, the window, the lengths, the mask and the packing of the problem hide."""
    (batch, _, m, _), n = problem["q"].shape, problem["k"].shape[2]
    shift = 0 if problem.get("align") == "top-left" else n - m
    behind = (torch.arange(m) + shift)[:, None] - torch.arange(n)
    hidden = torch.zeros(batch, 1, m, n, dtype=torch.bool)
    hidden |= ~problem["mask"] if "mask" in problem else False
    if "cu_seqlens_q" in problem:
        sequence = torch.tensor([0] * 4 + [2] * 5)
        hidden |= sequence[:, None] != sequence
    if problem.get("causal") or problem.get("family") == "lazy":
        hidden |= behind < 0
    if "window" in problem:
        hidden |= (behind > problem["window"][0]) | (-behind > problem["window"][1])
    for b, length in enumerate(problem.get("seqlens", ())):
        hidden[b, :, length:] = hidden[b, :, :, length:] = True
    return hidden


@holding(ALL)
def test_i6_masked_entries_of_p_dp_ds_are_exactly_0(problem):
    actual = manual_attention_backward(**problem)
    hidden = masked(problem).expand_as(actual["P"])
    for name in ("P", "dP", "dS"):
        assert (actual[name][hidden] == 0).all(), name
    assert (actual["P"][~hidden] > 0).all()


@holding(PLAIN | DROPPED | CAPPED | LAZY)
def test_i7_p_sums_to_1_on_live_rows_and_to_0_on_dead_ones(problem):
    actual = manual_attention_backward(**problem)
    live = ~masked(problem).all(-1).expand_as(actual["LSE"])
    assert torch.equal(live, actual["LSE"] > -torch.inf)
    assert zero(actual["P"].sum(-1) - live.double())


@holding(SUNK)
def test_i7_is_off_under_sinks(problem):
    assert off(manual_attention_backward(**problem)["P"].sum(-1)[:, :, 4] - 1)


def test_i7_is_off_for_the_weights_of_lazy_of_which_a_v_of_ones_shows_the_row_sum():
    problem = LAZY["lazy W 9"]
    weights = manual_attention_backward(**problem | {"v": torch.ones(2, 3, 9, 3)})["O"][..., 0]
    assert off(weights[:, 0] - 1)
    assert zero(weights[:, 2] - 1)  # tau = 0


@holding(ALL)
def test_i8_twice_and_minus_do_gives_twice_and_minus_every_gradient_to_the_bit(problem):
    actual = manual_attention_backward(**problem | {"do": -2 * problem["do"]})
    for name, value in manual_attention_backward(**problem).items():
        forward = name in ("P", "O", "LSE")
        assert torch.equal(actual[name], value if forward else -2 * value), name


def test_i9_reversed_batches_and_heads_give_reversed_results():
    problem = lazy_inputs(9)
    tensors = {name: problem[name].flip(0, 1) for name in ("q", "k", "v", "do")}
    heads = {name: problem[name].flip(0) for name in ("bias", "tau")}
    actual = manual_attention_backward(**problem | tensors | heads)
    for name, value in manual_attention_backward(**problem).items():
        turned = value.flip(0) if name in ("dBias", "dTau") else value.flip(0, 1)
        assert zero((actual[name] - turned).nan_to_num(nan=torch.inf)), name
