"""N1: rows that see no key."""

import pytest

from tests.faults.plain import Planted, making, seen_both_ways

DEAD = {"batch": 1, "mask": "dead-rows"}


@pytest.mark.nightly
def test_rows_without_a_key_that_are_nan_are_named():
    def unguarded(kernel, name, tensor):
        return tensor.masked_fill(tensor.isneginf(), float("nan")) if (kernel, name) == ("forward", "LSE") else tensor

    assert seen_both_ways(lambda: Planted(make=unguarded), **DEAD) == ("dead/nan", "dead/nan")


def test_rows_without_a_key_that_weigh_all_alike_are_named():
    def uniform(weights):
        return weights.where(weights.sum(-1, keepdim=True) > 0, weights.new_full((), 1 / 40))

    assert seen_both_ways(lambda: making("P", uniform), **DEAD) == ("dead/uniform", "dead/uniform")
