"""The battery: every item and what goes over them, as far as a signature takes them, and else the reason."""

import itertools

import pytest

from gradprobe.commands.suite.battery import battery, set_by
from gradprobe.inputs.draw import draw
from gradprobe.inputs.options import OPTIONS, parse
from gradprobe.model.resolution import resolve
from gradprobe.targets.bind import bind
from tests.emulated import target_of

LAZY = {"q", "k", "v", "do", "tau", "bias", "scale", "seqlens", "dots", "block_m", "block_n"}
FULL = {
    "q", "k", "v", "do", "causal", "scale", "align", "window", "softcap", "bias", "alibi", "mask", "sinks", "dropout",
    "keep", "seqlens", "cu_seqlens_q", "cu_seqlens_k", "block_m", "block_n", "dots",
}  # fmt: skip
LEAST = {"q", "k", "v"}


def numbers(entries):
    return {entry.number for entry in entries if not entry.why_not}


def cases(entries, family, takes):
    """Each entry's title with its resolved case."""
    packs = "cu_seqlens_q" in takes and "seqlens" not in takes
    return {
        f"{entry.number} {entry.title}": resolve(
            parse(entry.options) | {"device": "cpu"}, family, takes_bias="bias" in takes, packs=packs
        )
        for entry in entries if not entry.why_not
    }  # fmt: skip


def test_a_target_that_takes_everything_is_given_every_item():
    assert numbers(battery("softmax", FULL)) >= {
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        13,
        14,
        15,
        16,
        17,
    }
    assert [entry.title for entry in battery("softmax", FULL) if entry.why_not] == []


def test_every_option_of_every_entry_is_one_of_the_command_line_and_of_its_type():
    kinds = {option.name: option.kind for option in OPTIONS}
    for entry in (*battery("softmax", FULL), *battery("lazy", LAZY)):
        for name, word in entry.options.items():
            assert isinstance(word, kinds[name]), (entry.title, name)


@pytest.mark.parametrize(
    ("family", "takes"),
    [("softmax", FULL), ("lazy", LAZY), ("softmax", LEAST), ("lazy", LEAST | {"tau"})],
)
def test_every_entry_is_a_case_that_the_target_takes(family, takes):
    entries = battery(family, takes)
    found = cases(entries, family, takes)
    assert len(found) == sum(not entry.why_not for entry in entries) >= 10
    for case in found.values():
        bind(taking(takes, family), case, draw(case))


def taking(takes, family, required=("q", "k", "v")):
    def target(**_):
        return {}

    made = target_of(target, family)
    return type(made)(
        "target", target, {name: name for name in takes}, frozenset(required), family, made.source
    )


def test_the_simplest_comes_first_and_no_two_are_of_one_name():
    for entries in (battery("softmax", FULL), battery("lazy", LAZY)):
        assert [entry.number for entry in entries] == sorted(entry.number for entry in entries)
        assert len({entry.title for entry in entries}) == len(entries)
        assert entries[0].options["layout"] == ["all=contiguous"]


def test_what_the_lazy_family_has_not_is_told_by_its_reasons():
    why = {entry.title: entry.why_not for entry in battery("lazy", LAZY) if entry.why_not}
    assert why == {
        "heads 6/2": "the lazy family has as many key heads as heads",
        "heads 6/2, a bias each": "the lazy family has as many key heads as heads",
        "M < N": "lazy attention has as many keys as rows",
        "M < N, causal": "lazy attention has as many keys as rows",
        "M > N, causal": "lazy attention has as many keys as rows",
        "rows that see no key": "the lazy family has no mask",
        "an empty sequence, packed": "the lazy family packs no sequences",
        "not causal": "the lazy family is always causal",
        "window 45,21": "the lazy family has no window",
        "window 45, causal": "the lazy family has no window",
        "L = 200, causal": "the lazy family is always causal",
        "Dv > D": "the lazy family has one head dim for q, k and v",
        "Dv < D": "the lazy family has one head dim for q, k and v",
        "every logit near -120, causal": "the lazy family is always causal",
        "softcap 1.5": "the lazy family has no softcap",
        "dropout 0.3": "the lazy family has no dropout",
    }


def test_what_a_signature_lacks_is_told_by_the_parameter():
    why = {
        entry.title: entry.why_not
        for entry in battery("softmax", LEAST | {"causal"})
        if entry.why_not
    }
    assert why["window 45,21"] == "takes no window"
    assert why["window 45, causal"] == "takes no window"
    assert why["tiles 16 x 32"] == "takes no block_m and no block_n"
    assert why["an empty sequence, packed"] == "takes no cu_seqlens"
    assert why["dropout 0.3"] == "takes no mask of what dropout keeps"
    assert "M > N, causal" not in why
    assert {entry.number for entry in battery("lazy", {"q", "k", "v", "tau"})} >= {6, 9}


def test_the_cases_have_what_their_items_are_for():
    found = cases(battery("softmax", FULL), "softmax", FULL)
    assert found["2 distinct strides"].layouts == (("all", "distinct"),)
    one = found["2 distinct strides"]
    assert (one.batch, one.heads, one.seqlen_q, one.head_dim) == (2, 3, 37, 16)
    assert {tensor for tensor, layout in found["5 packed qkv"].layouts if layout == "packed"} == {
        "q",
        "k",
        "v",
    }
    grouped = found["6 heads 6/2, a bias each"]
    assert (grouped.heads, grouped.kv_heads, grouped.bias_axes, grouped.layouts) == (
        6,
        2,
        "hmn",
        (),
    )
    assert [(found[at].seqlen_q, found[at].seqlen_k) for at in ("7 M < N", "8 M > N, causal")] == [
        (37, 50),
        (50, 37),
    ]
    assert found["8 M > N, causal"].causal
    assert 0 in found["8 an empty sequence, padded"].seqlens
    ends = found["8 an empty sequence, packed"].cu_seqlens_q
    assert any(first == last for first, last in itertools.pairwise(ends))
    assert not found["9 not causal"].causal


def test_windows_and_lengths_end_inside_tiles_and_tiles_lie_both_ways_round():
    found = cases(battery("softmax", FULL), "softmax", FULL) | cases(
        battery("lazy", LAZY), "lazy", LAZY
    )
    for case in (found["9 window 45,21"], found["9 window 45, causal"]):
        assert all(left > 32 and left % 16 and left % 32 for left in case.window[:1])
    assert found["9 bias window 45"].bias_window == 45
    assert found["9 bias window 45"].seqlen_q > 64
    long = found["13 L = 200"]
    assert long.seqlen_q // long.block_m >= 3
    assert long.seqlen_q % long.block_m
    assert found["14 D = 72"].head_dim == 72
    assert {found["15 Dv > D"].head_dim_v > 24, found["15 Dv < D"].head_dim_v < 40} == {True}
    sides = {case.block_m > case.block_n for case in found.values()}
    assert sides == {True, False}
    assert found["17 scale 0.4"].scale != found["17 scale 0.4"].head_dim ** -0.5


def test_every_score_of_item_10_lies_below_what_exp_can_hold_and_in_a_partial_tile():
    import torch

    for family, takes in (("softmax", FULL), ("lazy", LAZY)):
        case = cases(battery(family, takes), family, takes)["10 every logit near -120"]
        values = draw(case)
        assert float((values["q"] @ values["k"].mT * case.scale).max()) + 4 < -88.7
        assert case.seqlen_k % case.block_n
    assert torch.exp(torch.tensor(-104.0)) == 0


@pytest.mark.parametrize("packed", ["cu_seqlens", "cu_seqlens_q cu_seqlens_k"])
def test_a_target_that_only_packs_is_given_packed_sequences(packed):
    takes, required = LEAST | set(packed.split()), LEAST | set(packed.split())
    entries = battery("softmax", takes, required)
    for case in cases(entries, "softmax", takes).values():
        assert case.cu_seqlens_q is not None
        bind(taking(takes, "softmax", required), case, draw(case))
    why = {
        entry.title: entry.why_not
        for entry in entries
        if entry.number == 7 and entry.title == "M < N"
    }
    apart = packed != "cu_seqlens"
    assert why == {"M < N": "" if apart else "takes one cu_seqlens for rows and keys"}


@pytest.mark.parametrize(
    "parameter",
    ["bias", "window", "softcap", "alibi", "mask", "sinks", "keep", "seqlens", "scale", "causal"],
)
def test_a_parameter_without_a_default_is_given_in_every_case(parameter):
    takes = LEAST | {parameter}
    found = cases(battery("softmax", takes, takes), "softmax", takes)
    assert len(found) >= 10
    for case in found.values():
        bind(taking(takes, "softmax", takes), case, draw(case))


def test_the_seqlens_of_a_lazy_target_that_needs_them_fit_every_length():
    found = cases(battery("lazy", LAZY, {"seqlens", "tau"}), "lazy", LAZY)
    assert all(case.seqlens is not None for case in found.values())


def test_an_option_that_an_item_sets_says_which_and_one_that_none_sets_is_free():
    assert set_by("heads") == set_by("layout") == set_by("inputs") == "every item"
    assert set_by("kv_heads") == "item 6 (heads 6/2)"
    assert set_by("causal") == "item 7 (M < N, causal)"
    assert set_by("window") == "item 9 (window 45,21)"
    free = {option.name for option in OPTIONS if not set_by(option.name)}
    assert free == {
        "dtype",
        "align",
        "alibi",
        "sinks",
        "seed",
        "device",
        "dots",
        "recover",
        "ranks",
        "shards",
        "strict",
        "shapes",
        "inplace",
        "as_cuda",
        "arch",
        "untested",
        "window_as",
        "mask_as",
        "lse_as",
        "bias_rank",
        "mask_axes",
        "mask_rank",
        "implied",
    }
