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


def cases(entries, family, takes):
    """Each entry's title with its resolved case."""
    packs = "cu_seqlens_q" in takes and "seqlens" not in takes
    return {
        f"{entry.number} {entry.title}": resolve(
            parse(entry.options) | {"device": "cpu"}, family, takes_bias="bias" in takes, packs=packs
        )
        for entry in entries if not entry.why_not
    }  # fmt: skip


@pytest.mark.parametrize(
    ("family", "takes"), [("softmax", FULL), ("lazy", LAZY), ("softmax", LEAST)]
)
def test_every_entry_is_a_case_that_the_target_takes(family, takes):
    entries = battery(family, takes)
    found = cases(entries, family, takes)
    assert len(found) == sum(not entry.why_not for entry in entries) >= 10
    for case in found.values():
        bind(taking(takes, family), case, draw(case))
    kinds = {option.name: option.kind for option in OPTIONS}
    for entry in entries:
        assert all(isinstance(word, kinds[name]) for name, word in entry.options.items())


def taking(takes, family, required=("q", "k", "v")):
    def target(**_):
        return {}

    made, names = target_of(target, family), {name: name for name in takes}
    return type(made)("target", target, names, frozenset(required), family, made.source)


def test_who_takes_everything_is_given_every_item_the_simplest_first_and_no_two_of_one_name():
    for entries in (battery("softmax", FULL), battery("lazy", LAZY)):
        numbers = [entry.number for entry in entries]
        assert numbers == sorted(numbers)
        assert len({entry.title for entry in entries}) == len(entries)
        assert entries[0].options["layout"] == ["all=contiguous"]
    entries = battery("softmax", FULL)
    assert {entry.number for entry in entries} >= {*range(1, 18)} - {12}
    assert [entry.title for entry in entries if entry.why_not] == []
    why = {entry.title: entry.why_not for entry in battery("softmax", LEAST | {"causal"})}
    assert why["window 45, causal"] == "takes no window"
    assert why["tiles 16 x 32"] == "takes no block_m and no block_n"
    assert why["an empty sequence, packed"] == "takes no cu_seqlens"
    assert why["dropout 0.3"] == "takes no mask of what dropout keeps"
    assert why["M > N, causal"] == ""


def test_what_the_lazy_family_has_not_is_told_by_its_reasons():
    by_reason = {}
    for entry in battery("lazy", LAZY):
        by_reason.setdefault(entry.why_not, []).append(entry.title)
    by_reason.pop("")
    assert by_reason == {
        "the lazy family has as many key heads as heads": ["heads 6/2", "heads 6/2, a bias each"],
        "lazy attention has as many keys as rows": ["M < N", "M < N, causal", "M > N, causal"],
        "the lazy family has no mask": ["rows that see no key"],
        "the lazy family packs no sequences": ["an empty sequence, packed"],
        "the lazy family is always causal": ["not causal", "every logit near -120, causal", "L = 200, causal"],
        "the lazy family has no window": ["window 45,21", "window 45, causal"],
        "the lazy family has one head dim for q, k and v": ["Dv > D", "Dv < D"],
        "the lazy family has no softcap": ["softcap 1.5"],
        "the lazy family has no dropout": ["dropout 0.3"],
    }  # fmt: skip


def test_the_cases_have_what_their_items_are_for():
    found = cases(battery("softmax", FULL), "softmax", FULL)
    lazy = cases(battery("lazy", LAZY), "lazy", LAZY)
    one = found["2 distinct strides"]
    assert one.layouts == (("all", "distinct"),)
    assert (one.batch, one.heads, one.seqlen_q, one.head_dim) == (2, 3, 37, 16)
    packed = {tensor for tensor, layout in found["5 packed qkv"].layouts if layout == "packed"}
    assert packed == {"q", "k", "v"}
    grouped = found["6 heads 6/2, a bias each"]
    assert (grouped.heads, grouped.kv_heads, grouped.bias_axes) == (6, 2, "hmn")
    few, many = found["7 M < N"], found["8 M > N, causal"]
    assert (few.seqlen_q, few.seqlen_k, many.seqlen_q, many.seqlen_k) == (37, 50, 50, 37)
    assert (many.causal, found["9 not causal"].causal) == (True, False)
    assert 0 in found["8 an empty sequence, padded"].seqlens
    ends = found["8 an empty sequence, packed"].cu_seqlens_q
    assert any(first == last for first, last in itertools.pairwise(ends))
    # Windows and lengths end inside tiles, which lie both ways round.
    for case in (found["9 window 45,21"], found["9 window 45, causal"]):
        assert all(left > 32 and left % 16 and left % 32 for left in case.window[:1])
    assert (lazy["9 bias window 45"].bias_window, lazy["9 bias window 45"].seqlen_q > 64) == (
        45,
        True,
    )
    long = found["13 L = 200"]
    assert long.seqlen_q // long.block_m >= 3
    assert long.seqlen_q % long.block_m
    assert found["14 D = 72"].head_dim == 72
    assert found["15 Dv > D"].head_dim_v > 24
    assert found["15 Dv < D"].head_dim_v < 40
    assert {case.block_m > case.block_n for case in found.values()} == {True, False}
    assert found["17 scale 0.4"].scale != found["17 scale 0.4"].head_dim ** -0.5


def test_every_score_of_item_10_lies_below_what_exp_can_hold_and_in_a_partial_tile():
    for family, takes in (("softmax", FULL), ("lazy", LAZY)):
        case = cases(battery(family, takes), family, takes)["10 every logit near -120"]
        values = draw(case)
        assert float((values["q"] @ values["k"].mT * case.scale).max()) + 4 < -88.7
        assert case.seqlen_k % case.block_n


@pytest.mark.parametrize("packed", ["cu_seqlens", "cu_seqlens_q cu_seqlens_k"])
def test_a_target_that_only_packs_is_given_packed_sequences(packed):
    takes, required = LEAST | set(packed.split()), LEAST | set(packed.split())
    entries = battery("softmax", takes, required)
    for case in cases(entries, "softmax", takes).values():
        assert case.cu_seqlens_q is not None
        bind(taking(takes, "softmax", required), case, draw(case))
    (why,) = {entry.why_not for entry in entries if entry.title == "M < N"}
    assert why == ("takes one cu_seqlens for rows and keys" if packed == "cu_seqlens" else "")


@pytest.mark.parametrize(
    "parameter", ["bias", "window", "alibi", "mask", "keep", "seqlens", "causal"]
)
def test_a_parameter_without_a_default_is_given_in_every_case(parameter):
    takes = LEAST | {parameter}
    found = cases(battery("softmax", takes, takes), "softmax", takes)
    assert len(found) >= 10
    for case in found.values():
        bind(taking(takes, "softmax", takes), case, draw(case))


def test_an_option_that_an_item_sets_says_which_and_one_that_none_sets_is_free():
    assert set_by("heads") == set_by("layout") == set_by("inputs") == "every item"
    assert set_by("kv_heads") == "item 6 (heads 6/2)"
    assert set_by("causal") == "item 7 (M < N, causal)"
    assert set_by("window") == "item 9 (window 45,21)"
    free = {option.name for option in OPTIONS if not set_by(option.name)}
    words = (
        "dtype align alibi sinks seed device dots recover ranks shards strict shapes inplace as_cuda arch untested "
        "window_as mask_as lse_as bias_rank mask_axes mask_rank implied"
    )
    assert free == {*words.split()}
