"""Matrices of cases: every combination once, a dozen that suit a target, and names that tell them apart."""

import pytest

from gradprobe.commands.suite.sweeps import combinations, suiting, titles
from gradprobe.commands.suite.takes import TargetSignature
from gradprobe.model.failures import UsageFailure

_NAMES = frozenset({"q", "k", "v", "do", "scale", "causal"})
SOFTMAX = TargetSignature("softmax", _NAMES, frozenset({"q", "k", "v"}))
LAZY = TargetSignature("lazy", frozenset({"q", "k", "v", "do", "tau", "causal"}), frozenset())


def test_combinations_are_all_of_them_and_the_last_option_varies_fastest():
    assert combinations({"heads": [1, 3], "dtype": ["float32", "float16"]}) == [
        {"heads": 1, "dtype": "float32"}, {"heads": 1, "dtype": "float16"},
        {"heads": 3, "dtype": "float32"}, {"heads": 3, "dtype": "float16"},
    ]  # fmt: skip
    assert combinations({}) == [{}]
    assert len(combinations({"heads": range(100), "seed": range(100)})) == 10_000
    with pytest.raises(UsageFailure, match="10,100 cases are more than 10,000"):
        combinations({"heads": range(100), "seed": range(101)})


def test_a_softmax_target_has_14_cases_with_both_masks_three_lengths_two_head_dims_and_grouped_heads():
    cases = suiting(SOFTMAX, {})
    assert len(cases) == 14
    for name, values in {
        "dtype": {"float32", "float16"}, "causal": {True, False}, "seqlen": {1, 37, 72}, "head_dim": {16, 72},
    }.items():  # fmt: skip
        assert {case[name] for case in cases if name in case} == values
    assert {"seqlen": 72, "heads": 4, "kv_heads": 2} in cases


def test_a_target_is_not_asked_for_what_it_does_not_take():
    plain = TargetSignature("softmax", frozenset({"q", "k", "v"}), frozenset())
    assert not any("causal" in case for case in suiting(plain, {}))
    assert not any("causal" in case or "kv_heads" in case for case in suiting(LAZY, {}))
    assert len(suiting(LAZY, {})) == 7


@pytest.mark.parametrize(
    ("given", "absent"),
    [
        ({"dtype": "float32"}, {"dtype"}),
        ({"cu_seqlens": "0,5"}, {"seqlen"}),
        ({"inputs": "a.pt"}, {"seqlen", "dtype", "head_dim", "heads", "kv_heads"}),
    ],
)
def test_an_option_that_is_given_does_not_vary(given, absent):
    cases = suiting(SOFTMAX, given)
    assert cases
    assert not any(absent & case.keys() for case in cases)


def test_titles_hold_what_differs_and_nothing_else():
    several = {"heads": [1, 3], "causal": [True, False], "bias_axes": ["hmn", "mn"], "seed": [7]}
    cases = combinations(several)
    found = titles(cases)
    assert found[0] == "H=1 causal bias-axes=hmn"
    assert found[-1] == "H=3 no-causal bias-axes=mn"
    assert len(set(found)) == len(cases) == 8
    assert len(set(titles(suiting(SOFTMAX, {})))) == 14
    assert titles([{"heads": 3}]) == [""]
