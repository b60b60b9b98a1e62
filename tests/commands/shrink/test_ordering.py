"""What simpler means: the key, steps that go down by it, and words of the command line for each."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradprobe.commands.shrink.simpler_cases import AXES, key, ladder, options_on, simpler
from gradprobe.model.failures import UsageFailure
from tests.commands.shrink.cases import ALL, TENSORS, facts_of, settled_case
from tests.numerics.test_recover import drawn_lazy
from tests.pipeline.test_softmax_no_false_alarm import drawn
from tests.sampling import DRAWS, tries

SIMPLER_FIRST = [
    [{"heads": 1, "seqlen": 500}, {"heads": 2, "seqlen": 1}],
    [{"seqlen": 20}, {"seqlen_q": 20, "seqlen_k": 3}],  # a square, then one that is shorter on one side
    [{"layouts": (("do", "huge"),)}, {"layouts": (("do", "blhd"), ("q", "blhd"))}, {"layouts": (("all", "blhd"),)}],
]  # fmt: skip


def test_the_axes_stand_in_the_order_that_is_written():
    words = "batch heads groups lengths dims options layouts values dtype"
    assert list(AXES) == words.split()
    for cases in SIMPLER_FIRST:
        keys = [key(settled_case("softmax", **options)) for options in cases]
        assert keys == sorted(keys)
    assert options_on(settled_case("softmax", causal=True, window=(3, 0))) == ["causal", "window"]
    assert options_on(settled_case("lazy")) == ["bias", "tau"]


@tries(30, night=1000)
@given(
    st.one_of(
        DRAWS.map(lambda draws: settled_case("softmax", **drawn(draws)[2])),
        DRAWS.map(lambda draws: settled_case("lazy", **drawn_lazy(draws)[1])),
        st.sampled_from(ALL),
    )
)
def test_every_step_is_strictly_simpler_and_the_simplest_of_its_axis_comes_first(case):
    for number, axis in enumerate(AXES):
        keys = [key(step.case) for step in simpler(case, axis, TENSORS)]
        assert all(smaller < key(case) for smaller in keys)
        assert keys == sorted(keys)
        assert all(smaller[:number] <= key(case)[:number] for smaller in keys), axis


@pytest.mark.parametrize(
    ("family", "more"), [("softmax", {}), ("lazy", {"bias": False, "tau": (0.0,)})]
)
def test_nothing_is_simpler_than_the_simplest_case(family, more):
    least = dict.fromkeys(("batch", "heads", "seqlen", "head_dim"), 1)
    plain = settled_case(family, runs=((),), **least, **more)
    assert not [step for axis in AXES for step in simpler(plain, axis, TENSORS)]


def test_sizes_hold_the_edges_of_blocks_and_one_less_groups_stay_and_padding_stays_inside():
    assert ladder(72, (32, 16)) == [1, 2, 3, 4, 8, 15, 16, 17, 31, 32, 33, 36, 54, 63, 64, 65, 71]
    grouped = settled_case("softmax", heads=4, kv_heads=2)
    fewer = [(step.case.heads, step.case.kv_heads) for step in simpler(grouped, "heads", ())]
    assert fewer == [(1, 1), (2, 2), (2, 1), (3, 3)]
    padded = settled_case("lazy", seqlens=(72, 45))
    cases = [step.case for step in simpler(padded, "lengths", ())]
    assert {case.seqlens for case in cases if case.seqlen_q == 54} == {(54, 45)}
    assert [step.case.seqlens for step in simpler(padded, "batch", ())] == [(45,), (72,)]


@pytest.mark.parametrize("case", ALL)
def test_a_case_and_every_step_from_it_have_words_that_mean_them_and_none_could_be_left_out(case):
    facts = facts_of(case)
    for one in [case, *(step.case for axis in AXES for step in simpler(case, axis, TENSORS))]:
        words = facts.fewest_words(one)
        assert words is not None
        assert facts.resolved(words) == one
    words = facts.fewest_words(case)
    for name in words:
        with contextlib.suppress(UsageFailure):
            fewer = {other: word for other, word in words.items() if other != name}
            assert facts.resolved(fewer) != case


def test_words_that_mean_the_default_are_left_out_and_those_that_are_kept_stand_in_any_case():
    case = settled_case("softmax", heads=2, seqlen=9, causal=True, layouts=(("do", "distinct"),))
    words = {"heads": 2, "seqlen": 9, "causal": True, "layout": ["do=distinct"]}
    assert facts_of(case).fewest_words(case) == words
    assert facts_of(case, device="cpu").fewest_words(case) == words | {"device": "cpu"}
    case = settled_case("softmax", runs=((),))
    assert facts_of(case).fewest_words(case) == {"runs": ["contiguous"]}
