"""A factor is followed back through the sums of every product, to the matrix that it came with."""

from types import SimpleNamespace

import pytest

from gradprobe.diagnosis.factors import STORED, _carriers
from gradprobe.diagnosis.stores import _RESULTS
from gradprobe.model.intermediates import PRODUCTS, unscaled
from gradprobe.runtime.interpreter.dataflow import Role


def node(name, *operands):
    return SimpleNamespace(role=Role(name), operands=operands)


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
    assert _RESULTS == {"dS K": "dQ", "dS^T Q": "dK", "dV": "dV", "O": "O"}
