"""N1: rows that see no key."""

import pytest

from tests.faults.plain import Planted, both_ways, making, named, told

DEAD = {"batch": 1, "mask": "dead-rows"}


@pytest.mark.nightly
@both_ways
def test_rows_without_a_key_that_are_nan_are_named(exposed):
    def unguarded(kernel, name, tensor):
        return (
            tensor.masked_fill(tensor.isneginf(), float("nan"))
            if (kernel, name) == ("forward", "LSE")
            else tensor
        )

    assert named(told(Planted(make=unguarded), exposed=exposed, **DEAD)) == "dead/nan"


@both_ways
def test_rows_without_a_key_that_weigh_all_alike_are_named(exposed):
    def uniform(weights):
        return weights.where(weights.sum(-1, keepdim=True) > 0, weights.new_full((), 1 / 40))

    assert named(told(making("P", uniform), exposed=exposed, **DEAD)) == "dead/uniform"
