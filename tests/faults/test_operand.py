"""A: another operand in a product, or one that is not transposed; H1: gradients that changed places."""

import pytest
import torch

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


def own_row(matrix, rows, size):
    """[..., N, D]: each sum of a tile of the first rows of a matrix [..., M, N] times one row of the tile alone."""
    found = torch.zeros(*matrix.shape[:-2], matrix.shape[-1], rows.shape[-1], dtype=rows.dtype)
    for first in range(0, matrix.shape[-2], size):
        for n in range(matrix.shape[-1]):
            if first + n % size < rows.shape[-2]:
                weight = matrix[..., first : first + size, n].sum(-1, keepdim=True)
                found[..., n, :] += weight * rows[..., first + n % size, :]
    return found


OWN_ROWS = {
    "dQ": lambda of, t: own_row(of("dS").mT, of("k"), 16) * SCALE,
    "dK": lambda of, t: own_row(of("dS"), of("q"), 8) * SCALE,
    "dV": lambda of, t: own_row(of("P"), of("do"), 32),
}


@both_ways
@sampled("name", OWN_ROWS, push=1)
def test_the_row_of_a_thread_in_place_of_that_of_the_loop_is_named(name, exposed):
    diagnosed = told(remembering(name, OWN_ROWS[name]), exposed=exposed)
    assert named(diagnosed) == f"operand/{name}-row"


@both_ways
def test_a_ds_that_is_not_transposed_is_named_by_the_dk_that_it_makes(exposed):
    assert (
        named(told(making("dS", lambda t: t.mT, ("dkdv",)), exposed=exposed)) == "transposed/dK"
    )


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
