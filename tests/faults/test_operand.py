"""A: another operand in a product, or one that is not transposed; H1: gradients that changed places."""

import pytest

from tests.faults.plain import Planted, both_ways, making, named, remembering, told
from tests.sampling import sampled

SCALE = 8**-0.5
PLANTED = {
    "operand/dQ": ("dQ", lambda of, t: of("dS") @ of("v") * SCALE),
    "operand/dK": ("dK", lambda of, t: of("dS").mT @ of("do") * SCALE),
    "operand/dV": ("dV", lambda of, t: of("dS").mT @ of("do")),
    "transposed/dV": ("dV", lambda of, t: of("P") @ of("do")),
}


@both_ways
@sampled("fault", PLANTED, push=1)
def test_another_operand_is_named_by_the_product_that_it_stands_in(fault, exposed):
    name, change = PLANTED[fault]
    assert named(told(remembering(name, change), exposed=exposed)) == fault


@both_ways
def test_a_ds_that_is_not_transposed_is_named_by_the_dk_that_it_makes(exposed):
    assert named(told(making("dS", lambda t: t.mT, ("dkdv",)), exposed=exposed)) == "transposed/dK"


@both_ways
def test_gradients_that_changed_places_are_named(exposed):
    swapped = Planted(call=lambda found: found | {"dQ": found["dK"], "dK": found["dQ"]})
    assert named(told(swapped, exposed=exposed)) == "swap/dQ-dK"


@pytest.mark.nightly
@both_ways
def test_a_gradient_that_stands_in_two_places_is_named_by_the_wrong_one(exposed):
    """No swap: the other came right."""
    twice = Planted(call=lambda found: found | {"dK": found["dV"].clone()})
    assert named(told(twice, exposed=exposed)) == "twice/dV"
