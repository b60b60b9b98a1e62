"""A factor is followed back through the sums of every product, to the matrix that it came with."""

import pytest

from gradprobe.diagnosis.explainers.factors import _carriers
from gradprobe.diagnosis.follow import RESULTS, STORED
from gradprobe.model.intermediates import PRODUCTS, unscaled
from gradprobe.runtime.interpreter.dataflow import Node, Role, Site


def node(name, *operands):
    return Node(Site("kernel", (), "dot", 0), operands, Role(name))


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_sum_has_its_factor_from_its_matrix_and_not_from_its_input(name):
    other, matrix = node(PRODUCTS[name].other), node(PRODUCTS[name].matrix)
    total = node(unscaled(name), other, matrix)
    assert [*_carriers(total)] == [total, matrix]
    assert [*_carriers(matrix)] == [matrix]


def test_a_result_is_stored_with_its_scale_and_known_by_what_it_is_without():
    assert STORED == {
        "dQ": "scale * dS K", "dK": "scale * dS^T Q", "dV": "dV", "O": "O", "LSE": "LSE", "delta": "delta",
    }  # fmt: skip
    assert RESULTS == {"dS K": "dQ", "dS^T Q": "dK", "dV": "dV", "O": "O"}
