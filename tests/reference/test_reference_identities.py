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
DEAD_ROW = (torch.arange(9) != 3)[:, None]
PLAIN = {
    "causal 4 rows of 9 keys": softmax_inputs(4, 9, heads=4, kv_heads=1) | {"causal": True},
    "causal 9 rows of 4 keys": softmax_inputs(9, 4, heads=4, kv_heads=2) | {"causal": True},
    "window 2 left, bias": GROUPED | {"window": (2, 1), "bias": draw(4, 9, 9, seed=9)},
    "lengths 6 and 0": GROUPED | {"seqlens": torch.tensor([6, 0])},
    "alibi": GROUPED | {"alibi": draw(4, seed=8).abs()},
    "row 3 masked": GROUPED | {"mask": DEAD_ROW},
}
KEEP = draw(2, 4, 9, 9, seed=8) > -0.2
DROPPED = {"dropout 0.4": GROUPED | {"dropout": 0.4, "keep": KEEP, "mask": DEAD_ROW}}
SUNK = {"sinks": GROUPED | {"sinks": 2 * draw(4, seed=8), "mask": DEAD_ROW}}
CAPPED = {
    "softcap 0.5": GROUPED | {"softcap": 0.5, "scale": 2.0, "bias": draw(2, 4, 9, 9, seed=9)}
}
LAZY = {
    "lazy W 9": lazy_inputs(9, window=9),
    "lazy W 12, lengths 6 and 9": lazy_inputs(9, window=12) | {"seqlens": torch.tensor([6, 9])},
}
ALL = PLAIN | DROPPED | SUNK | CAPPED | LAZY


def by_key_head(x: Tensor, k: Tensor) -> Tensor:
    """[B, H, ...] summed over the query heads of each key head."""
    grouped: Tensor = x.unflatten(1, (k.shape[1], -1))
    return grouped.sum(2)


def zero(x: Tensor) -> bool:
    return bool((x.abs() <= SLACK).all())


def off(x: Tensor) -> bool:
    return bool((x.abs() > OFF).any())


@pytest.mark.parametrize("name", ALL)
def test_what_sums_to_0_does_so_and_is_off_where_the_page_says_so(name):
    problem = ALL[name]
    actual = manual_attention_backward(**problem)
    # Of a row none of whose keys is seen LSE is what a sink leaves it.
    live = (actual["P"] > 0).any(-1)
    live_do = (problem["do"] * live[..., None]).sum(2)
    i1 = actual["dV"].sum(2) - by_key_head(live_do, problem["k"])
    i7 = actual["P"].sum(-1) - live.double()
    for residual, is_off in (
        (i1, name in DROPPED | SUNK | LAZY),
        (actual["dK"].sum(2), name in CAPPED | SUNK),  # I2
        (actual["dS"].sum(-1), name in CAPPED | SUNK),  # I5
        (i7, name in SUNK),
    ):
        assert off(residual) if is_off else zero(residual)
    for one, other, of in (("q", "k", ("dQ", "dK")), ("do", "v", ("O", "dV"))):  # I3 and I4
        q_side = by_key_head((problem[one] * actual[of[0]]).sum((2, 3)), problem["k"])
        assert zero(q_side - (problem[other] * actual[of[1]]).sum((2, 3)))
        assert off(q_side)


def test_i5_holds_for_dt_under_softcap_for_sinks_with_dsink_and_for_a_lazy_dbias_over_all_distances():
    assert zero(manual_attention_backward(**CAPPED["softcap 0.5"])["dBias"].sum(-1))
    of_sinks = manual_attention_backward(**SUNK["sinks"])
    assert zero(of_sinks["dS"].sum((0, 2, 3)) + of_sinks["dSink"])
    sums = [
        manual_attention_backward(**lazy_inputs(9, window=w))["dBias"].sum(-1) for w in (3, 9)
    ]
    assert off(sums[0])
    assert zero(sums[1])


@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_i8_twice_and_minus_do_gives_twice_and_minus_every_gradient_to_the_bit(problem: Inputs):
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
