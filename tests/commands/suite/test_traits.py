"""What sets failing cases apart: facts about every case alone, and silence where chance would do as well."""

import itertools

import pytest

from gradprobe.commands.suite.fold import set_apart, traits_of
from gradprobe.model.case import Case


def square(seqlen=72, **options):
    return Case("softmax", seqlen_q=seqlen, seqlen_k=seqlen, **options)


def told(cases, wrong):
    """The sentences about cases, each in the layout that is given with it, of which some are wrong."""
    all_square = all(case.seqlen_q == case.seqlen_k for case, _ in cases)
    failing, matching = [], []
    for at, case in enumerate(cases):
        those = failing if wrong(*case) else matching
        those.append((at, traits_of(*case, square=all_square)))
    return set_apart(failing, matching)


LAYOUTS = ("contiguous", "do=expanded", "distinct")
GRID = [
    (Case("softmax", seqlen_q=rows, seqlen_k=keys, dtype=dtype, causal=causal), layout)
    for rows, keys, dtype, causal, layout in itertools.product(
        (37, 64), (50, 64), ("float32", "float16"), (False, True), LAYOUTS
    )
]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda case, _: case.seqlen_q != case.seqlen_k, "all 36 failures have Lq != Lk, no match has"),
        (lambda case, _: case.dtype == "float16", "all 24 failures have --dtype float16, no match has"),
        (lambda _, layout: layout != "contiguous", "all 32 failures have dO not contiguous, no match has"),
        (lambda _, layout: layout == "distinct", "all 16 failures have layout distinct, no match has"),
        (lambda case, _: case.seqlen_q > case.seqlen_k and case.causal,
         "all 6 failures have Lq > Lk and --causal, no match has both"),
        (lambda case, layout: (case.seqlen_k, case.dtype, layout) == (50, "float16", "do=expanded"),
         "all 4 failures have Lk = 50, --dtype float16 and dO expanded, no match has all"),
    ],
)  # fmt: skip
def test_one_two_or_three_traits_are_told_where_they_set_failures_apart(wrong, sentence):
    assert told(GRID, wrong) == (sentence,)


def test_a_value_is_told_of_several_failures_and_a_class_of_one():
    cases = [(square(head_dim=dim, head_dim_v=dim), "contiguous") for dim in (16, 32, 64, 72)]
    wrong = lambda case, _: case.head_dim == 72  # noqa: E731
    assert told(cases, wrong) == ("the failure has D no multiple of 16, no match has",)
    assert told([*cases, cases[-1]], wrong) == ("all 2 failures have D = 72, no match has",)


def test_nothing_is_told_where_nothing_is_common_or_nothing_matches_or_chance_would_do():
    pairs = {("float16", "distinct"), ("float32", "contiguous")}
    for wrong in (
        lambda *_: True,
        lambda case, layout: (case.dtype, layout) in pairs,
        lambda case, layout: case.causal and layout == "distinct" and case == GRID[5][0],
    ):
        assert told(GRID, wrong) == ()
