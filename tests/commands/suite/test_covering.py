"""Covering arrays, against a count of everything."""

import itertools
import random

import pytest

from gradprobe.commands.suite.covering import Space, covering, simplest

CAUSAL_NEEDS_EQUAL = frozenset([(0, 1), (1, 2)])


def whole_rows(space):
    """Every row that the constraints allow."""
    rows = itertools.product(*map(range, space.counts))
    return [row for row in rows if not any(one <= set(enumerate(row)) for one in space.forbidden)]


def held(rows):
    """Every pair that a row holds."""
    return {one for row in rows for one in itertools.combinations(enumerate(row), 2)}


def drawn_space(seed):
    rng = random.Random(seed)
    counts = tuple(rng.randint(1, 4) for _ in range(rng.randint(3, 6)))
    factors = [
        sorted(rng.sample(range(len(counts)), rng.randint(1, 2)))
        for _ in range(rng.randint(0, 6))
    ]
    forbidden = [frozenset((at, rng.randrange(counts[at])) for at in one) for one in factors]
    return Space(counts, frozenset(forbidden))


@pytest.mark.parametrize("seed", range(8))
def test_every_pair_that_a_row_can_hold_stands_in_one_and_every_row_is_allowed(seed):
    space = drawn_space(seed)
    rows = covering(space)
    assert set(rows) <= set(whole_rows(space))
    assert held(rows) == held(whole_rows(space))


def test_a_combination_that_only_constraints_together_exclude_is_left_out():
    """0 of the first factor needs 0 of the second, which the third never has with its own 0."""
    space = Space((2, 2, 2), frozenset(map(frozenset, ([(0, 0), (1, 1)], [(1, 0), (2, 0)]))))
    assert ((0, 0), (2, 0)) not in held(covering(space))
    assert simplest(space, frozenset([(0, 0), (2, 0)])) is None


def test_what_is_given_is_not_covered_again():
    space = Space((3, 3, 3, 2), frozenset([CAUSAL_NEEDS_EQUAL]))
    rows = covering(space)
    assert covering(space, rows) == []
    more = covering(space, rows[:3])
    assert held(more + rows[:3]) == held(whole_rows(space))
    assert len(more) < len(rows)


def test_rows_are_few_and_the_same_for_a_seed():
    space = Space((3, 8, 6, 5, 5, 5, 5, 3, 6, 8))
    rows = covering(space)
    assert 64 <= len(rows) <= 80, "64 pairs of the two longest factors need a row each"
    assert covering(space) == rows != covering(space, seed=1)


def test_the_simplest_row_of_a_combination_leaves_all_else_at_its_first_level():
    space = Space((2, 3, 3), frozenset([CAUSAL_NEEDS_EQUAL]))
    assert simplest(space, frozenset([(2, 2)])) == (0, 0, 2)
    assert simplest(space, frozenset([(1, 2), (2, 1)])) == (0, 2, 1)
    assert simplest(space, frozenset([(0, 1), (1, 2)])) is None
