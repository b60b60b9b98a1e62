"""Cases that are drawn: the same for a seed, none twice, all allowed, and all that a target takes among them."""

from itertools import islice

import pytest

from gradprobe.commands.suite.drawing import beyond, case_of, drawn, title_of
from gradprobe.commands.suite.takes import TargetSignature
from gradprobe.model.failures import UsageFailure

_PLAIN = frozenset({"q", "k", "v", "do", "scale"})
PLAIN = TargetSignature("softmax", _PLAIN, frozenset({"q", "k", "v"}))
_REST = "causal window softcap bias alibi mask sinks keep seqlens cu_seqlens align"
ALL = TargetSignature("softmax", _PLAIN | {*_REST.split()}, frozenset({"q", "k", "v"}))
LAZY = TargetSignature("lazy", _PLAIN | {"tau", "bias", "causal"}, frozenset())


def cases(takes, count, **given):
    return [case_of(options, takes) for options in islice(drawn(takes, given, 0), count)]


@pytest.mark.parametrize("takes", [PLAIN, ALL, LAZY])
def test_a_seed_gives_one_sweep_in_which_each_case_is_allowed_and_none_stands_twice(takes):
    found = list(islice(drawn(takes, {}, 7), 200))
    assert (
        found == list(islice(drawn(takes, {}, 7), 200)) != list(islice(drawn(takes, {}, 8), 200))
    )
    assert all(case_of(options, takes) is not None for options in found)
    assert len({str({**options, "seed": 0}) for options in found}) == 200
    assert len({title_of(options, ()) for options in found}) == 200


def test_every_value_of_every_axis_that_the_target_takes_is_drawn_and_nothing_that_it_does_not():
    found = cases(ALL, 400)
    for name, values in {
        "dtype": {"float32", "float16", "bfloat16"}, "causal": {True, False},
        "mask": {None, "random", "dead-rows", "padding"},
        "pattern": {"normal", "small", "large", "wide", "negative", "offset", "lowrank"}, "head_dim": {16, 32, 64},
        "align": {"bottom-right", "top-left"}, "sinks": {True, False}, "alibi": {True, False}, "bias": {True, False},
    }.items():  # fmt: skip
        assert {getattr(case, name) for case in found} == values
    layouts = {layout for case in found for _, layout in case.layouts}
    words = "contiguous blhd packed expanded distinct distinct-unit offset"
    assert layouts == {*words.split()}
    for trait in (
        lambda case: case.seqlen_q < case.seqlen_k, lambda case: case.seqlen_q > case.seqlen_k,
        lambda case: case.kv_heads < case.heads, lambda case: case.kv_heads == 1 < case.heads,
        lambda case: case.seqlens, lambda case: case.cu_seqlens_q, lambda case: case.window, lambda case: case.softcap,
        lambda case: case.dropout, lambda case: case.seqlen_q < 16, lambda case: case.seqlen_q % 64 == 1,
        lambda case: case.seqlen_q % 32 == 0, lambda case: case.seqlen_q % 32 == 31,
    ):  # fmt: skip
        assert 0 < sum(bool(trait(case)) for case in found) < 400
    plain = cases(PLAIN, 100)
    assert not any(case.causal or case.bias or case.mask or case.window for case in plain)
    assert all(case.seqlen_q == case.seqlen_k for case in cases(LAZY, 100))


def test_what_is_required_is_in_every_case_and_what_is_given_decides_what_it_decides():
    needs = {"cu_seqlens", "bias"}
    packed = TargetSignature("softmax", _PLAIN | needs, frozenset({"q", "k", "v", *needs}))
    assert all(case.cu_seqlens_q and case.bias for case in cases(packed, 50))
    found = cases(ALL, 50, seqlen=[20, 30], dtype=["float16"], runs=[["contiguous"]])
    assert {(case.seqlen_q, case.seqlen_k) for case in found} == {(20, 20), (30, 30)}
    assert {(case.dtype, case.layouts, case.runs) for case in found} == {("float16", (), ((),))}
    # A softcap lies near the logits.
    assert {case.softcap for case in cases(ALL, 50, pattern=["positive"])} == {None, 150.0}


def test_where_no_case_is_allowed_that_is_said_and_where_there_are_few_each_is_drawn():
    with pytest.raises(UsageFailure, match="this target takes no case with these options"):
        next(drawn(PLAIN, {"batch": [0]}, 0))
    one = {
        "batch": [1],
        "heads": [1],
        "head_dim": [8],
        "scale": [0.5],
        "layout": [["contiguous"]],
    }
    several = {"dtype": ["float32"], "seqlen": [9, 10], "pattern": ["normal", "small"]}
    few = list(drawn(PLAIN, one | several, 0))
    assert sorted((case["seqlen"], case["pattern"]) for case in few) == [
        (9, "normal"), (9, "small"), (10, "normal"), (10, "small"),
    ]  # fmt: skip


def test_what_no_signature_tells_is_told():
    assert beyond({"heads": 6, "kv_heads": 2}, PLAIN) == "fewer key heads than heads"
    assert beyond({"heads": 2, "kv_heads": 2, "seqlen": 5}, PLAIN) == ""
    assert beyond({"seqlen_q": 5, "seqlen_k": 6}, ALL) == ""
    differ = "lengths of queries and keys that differ"
    assert beyond({"seqlen_q": 5, "seqlen_k": 6}, PLAIN) == differ
