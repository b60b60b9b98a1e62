"""What is written behind --tap."""

import pytest

from gradprobe.model.failures import UsageFailure
from gradprobe.runtime.taps import parse_tap


def test_a_tap_names_an_intermediate_a_variable_and_an_index_for_every_axis():
    tap = parse_tap("dS=ds[b,h,offs_m,offs_n]")
    assert (tap.intermediate, tap.function, tap.variable, tap.value) == ("dS", "", "ds", "ds")
    assert tap.indices == ("b", "h", "offs_m", "offs_n")
    assert not tap.is_transposed
    assert tap.names == ("b", "h", "offs_m", "offs_n")


def test_a_kernel_may_stand_before_the_variable_and_the_intermediate_in_any_case():
    tap = parse_tap(" ds = _attn_bwd_dkdv : dsT[pid//H, pid%H, offs_m, start_n + tl.arange(0, BLOCK_N)].T ")
    assert (tap.intermediate, tap.function, tap.variable) == ("dS", "_attn_bwd_dkdv", "dsT")
    assert tap.indices == ("pid // H", "pid % H", "offs_m", "start_n + tl.arange(0, BLOCK_N)")
    assert tap.is_transposed
    assert tap.names == ("pid", "H", "offs_m", "start_n", "tl", "BLOCK_N")


@pytest.mark.parametrize("word", ["dS=dsT.T[b,h,m,n]", "dS=dsT[b,h,m,n].T"])
def test_t_may_stand_behind_the_variable_or_its_index(word):
    assert parse_tap(word).is_transposed
    assert not parse_tap("dS=dsT.T[b,h,m,n].T").is_transposed


def test_the_value_may_be_an_expression_of_the_variable():
    tap = parse_tap("dS=(ds[b,h,m,n].T / softmax_scale).to(tl.float32)")
    assert (tap.value, tap.variable, tap.is_transposed) == ("(ds / softmax_scale).to(tl.float32)", "ds", True)
    assert tap.names == ("b", "h", "m", "n", "softmax_scale", "tl")
    assert tap.index_names == {"b", "h", "m", "n"}


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("ds[b,h,m,n]", "does not say which intermediate"),
        ("dX=ds[b,h,m,n]", "there is no intermediate 'dX'"),
        ("dS=ds", "must index one variable once, got none"),
        ("dS=", "is not an expression"),
        ("dS=ds[b,h,,n]", "is not an expression"),
        ("dS=ds[b,h,m,n]; import os", "is not an expression"),
        ("dS=ds[b,h,:,n]", "':' is neither a position nor a block"),
        ("dS=ds[b,h,*m]", "'*m' is neither a position nor a block"),
        ("dS=ds[b,h,m,None]", "'None' is neither a position nor a block"),
        ("dS=ds[b,h,m,1.5]", "'1.5' is neither a position nor a block"),
        ("dS=ds[b,h,m,n] + dp[b,h,m,n]", "must index one variable once, got 2"),
        ("dS=kernel.ds[b,h,m,n]", "must index one variable once, got none"),
    ],
)
def test_a_word_of_another_form_is_refused_with_an_example(word, sentence):
    with pytest.raises(UsageFailure, match="tap ") as caught:
        parse_tap(word)
    assert sentence in str(caught.value)
    assert "dS=ds[b,h,offs_m,offs_n]" in caught.value.way_out or "dS" in caught.value.way_out
