"""Rows that hold every pair, against a count of all; and rounds of batteries, whose targets are predicates."""

import itertools
import random

import pytest

from gradprobe.commands.suite.battery import Space
from gradprobe.model.case import Case
from tests.commands.suite.plans import ended


def whole_rows(space):
    return [
        row for row in itertools.product(*space.levels) if not held_by([row]) & space.excluded
    ]


def held_by(rows):
    return {frozenset(pair) for row in rows for pair in itertools.combinations(row, 2)}


def space_of(*counts, excluded=()):
    """Levels a0, a1, b0, ...; so many of each property."""
    pairs = zip("abcdefghij", counts, strict=False)
    levels = [[f"{name}{at}" for at in range(count)] for name, count in pairs]
    return Space(levels, frozenset(frozenset(pair.split()) for pair in excluded))


def drawn_space(seed):
    rng = random.Random(seed)
    space = space_of(*(rng.randint(1, 4) for _ in range(rng.randint(3, 6))))
    pairs = (map(rng.choice, rng.sample(space.levels, 2)) for _ in range(rng.randint(0, 6)))
    return Space(space.levels, frozenset(map(frozenset, pairs)))


@pytest.mark.parametrize("seed", range(6))
def test_every_pair_that_a_row_can_hold_stands_in_one_and_every_row_is_allowed(seed):
    space = drawn_space(seed)
    rows = space.covering()
    assert set(rows) <= set(whole_rows(space))
    assert held_by(rows) == held_by(whole_rows(space))
    assert space.covering(held_by(rows)) == []
    more = space.covering(held_by(rows[:3]))
    assert held_by(more + rows[:3]) == held_by(whole_rows(space))


def test_a_combination_that_only_constraints_together_exclude_is_left_out():
    """a0 needs b0, which c never has with c0."""
    space = space_of(2, 2, 2, excluded=("a0 b1", "b0 c0"))
    assert {"a0", "c0"} not in held_by(space.covering())
    assert space.simplest({"a0", "c0"}) is None


def test_rows_are_few():
    rows = space_of(3, 8, 6, 5, 5, 5, 5, 3, 6, 8).covering()
    assert 64 <= len(rows) <= 80, "64 pairs of the two longest properties need a row each"


def test_of_a_right_target_each_level_stands_alone_first_and_then_every_pair():
    found = ended()
    plain, alone, array = found.rounds
    assert plain == ["as it is"]
    words = "simplest,bfloat16,causal,L=129,M=96 N=131,negative,do=blhd,grouped,D=72"
    # And what no combination shows.
    further = {"four calls, memory full of NaN or 7.0", "strides beyond 2^31"}
    assert {*words.split(",")} | further <= {*alone}
    assert 20 <= len(array) <= 60
    told = found.coverage
    assert (told.strength, told.missing) == (2, 0)
    assert told.held == len(list(found.battery.space.pairs()))
    quick = ended(is_quick=True)
    beside = {"causal M=96 N=131", "window L=129", "logits to 100"}
    assert {*quick.rounds[1]} - {*alone} >= beside
    assert (len(quick.rounds), quick.coverage) == (2, None)


@pytest.mark.parametrize("word", ["refused", "warning"])
def test_a_level_that_is_refused_stands_in_no_later_case_and_in_no_count(word):
    found = ended(lambda options: word if options.get("dtype") == "bfloat16" else "match")
    assert len(found.rounds) == 3
    assert not [title for title in found.rounds[2] if "bfloat16" in title]
    assert found.coverage.missing == 0
    assert found.coverage.held < ended().coverage.held


def test_a_level_that_is_wrong_alone_hides_nothing_in_later_cases_and_alone_a_wrong_plain_case_is():
    found = ended(lambda options: "mismatch" if options.get("head_dim") == 72 else "match")
    assert not [title for title in found.rounds[2] if "D=72" in title]
    found = ended(lambda options: "mismatch")
    assert found.rounds == [["as it is"]]
    assert (found.coverage.properties, found.coverage.held) == (0, 0)


@pytest.mark.parametrize("word", ["refused", "mismatch"])
def test_pairs_that_fail_are_found_in_their_simplest_cases_and_hide_no_other(word):
    def verdict(options):
        is_first = options.get("pattern") == "negative" and options.get("head_dim") == 72
        is_second = options.get("dtype") == "float16" and "do=blhd" in options["layout"]
        return word if is_first or is_second else "match"

    found = ended(verdict)
    assert {"float16 do=blhd", "negative D=72"} <= {*found.rounds[3]}
    left_out = 2 if word == "refused" else 0
    lost = ended().coverage.held - found.coverage.held
    assert (found.coverage.missing, lost) == (left_out, left_out)
    right = [one for one in found.options.values() if verdict(one) == "match"]
    held = {(one.get("dtype"), one.get("head_dim")) for one in right}
    assert held >= {*itertools.product(("float32", "float16", "bfloat16"), (16, 64, 128, 72))}


def test_what_was_found_by_trying_goes_with_every_case_of_its_level():
    own = {"dtype": "float16", "head_dim": 64}
    found = ended(case=Case("softmax", seqlen_q=128, seqlen_k=128, as_cuda=True, **own))
    assert found.options["simplest"].items() >= (own | {"seqlen": 128}).items()
    assert all(one["as_cuda"] for title, one in found.options.items() if title != "as it is")
