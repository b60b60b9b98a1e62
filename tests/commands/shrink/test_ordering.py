"""What simpler means: the key, and that every step goes down by it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradprobe.commands.shrink.simpler_cases import AXES, key, ladder, options_on, simpler
from tests.commands.shrink.cases import ALL, facts_of, settled_case
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
        assert len(keys[0]) == 9
    assert options_on(settled_case("softmax")) == []
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
        steps = simpler(case, axis, facts_of(case).tensors)
        keys = [key(step.case) for step in steps]
        assert all(smaller < key(case) for smaller in keys)
        assert keys == sorted(keys)
        assert all(smaller[:number] <= key(case)[:number] for smaller in keys), axis


@pytest.mark.parametrize(
    ("family", "more"), [("softmax", {}), ("lazy", {"bias": False, "tau": (0.0,)})]
)
def test_nothing_is_simpler_than_the_simplest_case(family, more):
    least = dict.fromkeys(("batch", "heads", "seqlen", "head_dim"), 1)
    plain = settled_case(family, runs=((),), **least, **more)
    assert not [step for axis in AXES for step in simpler(plain, axis, facts_of(plain).tensors)]


def test_the_ladder_of_sizes_holds_the_edges_of_blocks_and_one_less():
    assert ladder(72, (32, 16)) == [1, 2, 3, 4, 8, 15, 16, 17, 31, 32, 33, 36, 54, 63, 64, 65, 71]
    assert ladder(1) == []


def test_a_case_of_groups_keeps_them_where_they_divide_and_a_shorter_one_its_padding_inside():
    grouped = settled_case("softmax", heads=4, kv_heads=2)
    fewer = [(step.case.heads, step.case.kv_heads) for step in simpler(grouped, "heads", ())]
    assert fewer == [(1, 1), (2, 2), (2, 1), (3, 3)]
    padded = settled_case("lazy", seqlens=(72, 45))
    cases = [step.case for step in simpler(padded, "lengths", ())]
    assert {case.seqlens for case in cases if case.seqlen_q == 54} == {(54, 45)}
    assert [step.case.seqlens for step in simpler(padded, "batch", ())] == [(45,), (72,)]
