"""P, dP and dS judged in one pass, beside what the plain way gives of the same elements."""

import pytest
import torch
from hypothesis import assume, given

from gradprobe.numerics import fused, least
from gradprobe.reference import evaluate
from gradprobe.reference.attention import MATRICES
from tests.numerics.test_least import problem_of
from tests.sampling import DRAWS, tries

# Of each product and sum in float32 its rounding, of a fused one none.
CLOSE = {"rtol": 8 * 2.0**-24, "atol": 2.0**-140, "equal_nan": True}
NAN, INF = float("nan"), float("inf")


def parts_of(random, name, device="cpu"):
    """What came of a matrix on a drawn tile, its terms, and its bounds by the plain way; None where it is not asked."""
    _, x, tile, precision = problem_of(random)
    assume(x.tau is None and not x.dropout)
    values = evaluate(x, tile)
    assume(values[name].numel())
    dtype = random.choice([torch.float, torch.half])  # bfloat16 is tried on a GPU: an interpreter loses small ones
    rounding = torch.finfo(dtype).eps / 2
    bound = least.Least(x, tile, values, precision).of_matrix(name, values[name], rounding)
    terms = least.Least(x, tile, values, precision).terms(name, rounding)
    generator = torch.Generator().manual_seed(random.randrange(1 << 20))
    came = values[name] + 2 * bound * torch.randn(bound.shape, generator=generator)
    return came.to(dtype), terms, bound


def plain_rows(came, expected, bound):
    error = (came.double() - expected).abs()
    ratio = error / bound.double().clamp(min=2.0**-149)
    sums = (of.sum(-1, dtype=torch.double) for of in (ratio.square(), bound, expected, came))
    squares, bounds, of_expected, of_came = sums
    return fused.RowStatistics(ratio.amax(-1), squares, error.amax(-1), bounds, of_expected, of_came)


def hold_alike(found, came, expected, bound):
    wanted = plain_rows(came, expected, bound)
    for name in ("ratio", "squares", "largest", "bound"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), **CLOSE)
    for name, of in (("expected", expected), ("came", came)):  # of which the sum may be small
        off = (getattr(found, name) - getattr(wanted, name)).abs()
        assert (off <= 2.0**-45 * of.double().abs().sum(-1)).all(), name


@pytest.mark.parametrize("name", MATRICES)
@tries(push=2, night=300)
@given(random=DRAWS)
def test_each_element_is_judged_as_by_the_plain_way(name, random):
    came, terms, bound = parts_of(random, name)
    at = torch.randint(bound.numel(), (1, 12), generator=torch.Generator().manual_seed(random.randrange(1 << 20)))
    elements = [of.expand(bound.shape).reshape(-1)[at][..., None] for of in (came, terms.expected, bound)]
    p, valid, dot = (of.expand(bound.shape).reshape(-1)[at][..., None] for of in (terms.p, terms.valid, terms.dot))
    of_row = terms.of_row[..., None].expand(bound.shape).reshape(-1)[at]
    of_elements = least.Terms(elements[1], p, valid, dot, of_row, terms.weight, terms.relative, terms.floor)
    hold_alike(fused.rows_of(name, elements[0], of_elements), *elements)


@pytest.mark.parametrize("name", MATRICES)
@tries(push=2, night=300)
@given(random=DRAWS)
def test_rows_of_several_blocks_are_judged_as_by_the_plain_way(name, random):
    came, terms, bound = parts_of(random, name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fused, "BLOCK", 16)
        hold_alike(fused.rows_of(name, came, terms), came, terms.expected, bound)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_leaves_no_squares_that_pass(value):
    one = torch.ones((1, 1, 3), dtype=torch.double)
    came = one.float().index_fill_(2, torch.tensor(1), value)
    terms = least.Terms(one, one, one.bool(), one.float(), one[..., 0].float(), 1.0, 1.0, 1.0)
    found = fused.rows_of("dS", came, terms)
    assert not (found.ratio <= 1.0).all() or found.squares.isnan().all()
