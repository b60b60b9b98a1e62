"""What simpler means: the key, and that every step goes down by it."""

from hypothesis import given
from hypothesis import strategies as st

from gradprobe.commands.shrink.ordering import AXES, key, options_on
from gradprobe.commands.shrink.simpler_cases import ladder, simpler
from tests.commands.shrink.cases import ALL, facts_of, settled_case
from tests.numerics.test_recover import drawn_lazy
from tests.pipeline.test_softmax_no_false_alarm import drawn
from tests.sampling import DRAWS, tries


def words_of(case):
    return [step.change for axis in AXES for step in simpler(case, axis, facts_of(case).tensors)]


def test_the_axes_stand_in_the_order_that_is_written():
    listed = [
        "batch",
        "heads",
        "groups",
        "lengths",
        "dims",
        "options",
        "layouts",
        "values",
        "dtype",
    ]
    assert list(AXES) == listed
    assert len(key(ALL[0])) == 9


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


def test_fewer_heads_are_simpler_than_a_shorter_sequence():
    assert key(settled_case("softmax", heads=1, seqlen=500)) < key(
        settled_case("softmax", heads=2, seqlen=1)
    )


def test_a_square_is_simpler_than_a_matrix_that_is_shorter_on_one_side():
    square, oblong = (
        settled_case("softmax", seqlen=20),
        settled_case("softmax", seqlen_q=20, seqlen_k=3),
    )
    assert key(square) < key(oblong)


def test_one_tensor_in_a_strange_layout_is_simpler_than_two_and_two_than_all():
    layouts = ((("do", "huge"),), (("do", "blhd"), ("q", "blhd")), (("all", "blhd"),))
    keys = [key(settled_case("softmax", layouts=layout)) for layout in layouts]
    assert keys == sorted(keys)


def test_the_options_of_a_plain_case_are_none():
    assert options_on(settled_case("softmax")) == []
    assert options_on(settled_case("softmax", causal=True, window=(3, 0))) == ["causal", "window"]
    assert options_on(settled_case("lazy")) == ["bias", "tau"]


def test_nothing_is_simpler_than_the_simplest_case():
    plain = settled_case("softmax", batch=1, heads=1, seqlen=1, head_dim=1, runs=((),))
    assert words_of(plain) == []
    lazy = settled_case(
        "lazy", batch=1, heads=1, seqlen=1, head_dim=1, runs=((),), bias=False, tau=(0.0,)
    )
    assert words_of(lazy) == []


def test_the_ladder_of_sizes_holds_the_edges_of_blocks_and_one_less():
    assert ladder(72, (32, 16)) == [1, 2, 3, 4, 8, 15, 16, 17, 31, 32, 33, 36, 54, 63, 64, 65, 71]
    assert ladder(1) == []


def test_a_case_of_groups_keeps_them_with_fewer_heads_where_they_divide():
    grouped = settled_case("softmax", heads=4, kv_heads=2)
    fewer = [(step.case.heads, step.case.kv_heads) for step in simpler(grouped, "heads", ())]
    assert fewer == [(1, 1), (2, 2), (2, 1), (3, 3)]


def test_a_shorter_case_keeps_its_padding_inside():
    padded = settled_case("lazy", seqlens=(72, 45))
    assert {
        step.case.seqlens for step in simpler(padded, "lengths", ()) if step.case.seqlen_q == 54
    } == {(54, 45)}
    assert [step.case.seqlens for step in simpler(padded, "batch", ())] == [(45,), (72,)]
