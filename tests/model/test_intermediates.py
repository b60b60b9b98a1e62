import pytest

from gradprobe.model.intermediates import (
    GRADIENT_OF,
    PRODUCTS,
    SUBEXPRESSIONS,
    TABLE,
    entered_by,
    in_kernels,
    lookup,
    made_of,
    names,
    reached,
    steps,
)
from gradprobe.numerics.totals import TOTALS
from gradprobe.reference.attention import BY_HEAD, BY_KEY, BY_ROW, MATRICES


@pytest.mark.parametrize("family", ["softmax", "lazy"])
def test_what_is_made_of_an_intermediate_comes_after_it(family):
    seen = set()
    for row, step in steps(family):
        assert {name for name in step.parents if lookup(name)} <= seen, row.name
        seen.add(row.name)


def test_every_subexpression_is_on_the_way_from_and_to_intermediates():
    for one in SUBEXPRESSIONS:
        assert {*one.into, *one.parents} <= {*names()}
        ways = {family: {*reached(one.parents, family)} for family in ("softmax", "lazy")}
        families = [family for family, way in ways.items() if {*one.into} <= way]
        assert families or not one.parents, one.name
        assert entered_by(one.name) == one.into
    assert entered_by("tanh^2") == ()


def test_no_word_of_kernels_means_two_things():
    words = [word for row in (*TABLE, *SUBEXPRESSIONS) for word in in_kernels(row.name)]
    assert len(words) == len({*words})


def test_products_are_made_of_what_their_formulas_read_and_summed_over_rows_where_transposed():
    for name, product in PRODUCTS.items():
        step = lookup(name).softmax
        assert {product.matrix, product.other} <= {*step.parents}
        assert product.formula in step.formula
        assert product.is_scaled == step.formula.startswith("scale * ")
        assert ("n" if product.is_transposed else "m") in step.axes
        assert made_of((product.other, product.matrix)) == name


def test_each_intermediate_has_its_place_in_the_reference_and_a_budget():
    summed = {"dBias", *BY_KEY, *BY_HEAD}
    assert {*BY_ROW, *summed} == {*names()}
    assert {*TOTALS} == {"dBias", *BY_HEAD}
    assert {*MATRICES} == {
        row.name for row in TABLE if row.softmax and row.softmax.axes == "bhmn"
    }
    assert all(lookup(name).needs == needed for name, needed in BY_HEAD.items())
    # No forward is differentiated for its slopes.
    assert {*GRADIENT_OF.values()} == {"dQ", *summed} - {"dAlibi"}
    for name in {"dBias", *BY_HEAD} - {"dAlibi"}:
        assert lookup(name).gradient_of == lookup(name).needs
