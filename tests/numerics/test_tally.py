"""A tally's figures: the worst ratio and the root mean square, over what may err, and never blind to a NaN."""

import math

import pytest
import torch

from gradprobe.numerics.tally import Judgement, Tally
from gradprobe.reference import Tile
from tests.emulated import case_of


def finding_of(errors, bounds, *, parts=1):
    """dQ of one head whose expected values are 1, added in tiles of rows."""
    error, bound = (
        torch.tensor(errors, dtype=torch.float64),
        torch.tensor(bounds, dtype=torch.float64),
    )
    case = case_of("softmax", batch=1, heads=1, seqlen=len(errors), head_dim=len(errors[0]))
    tally = Tally(case, "dQ", (1, 1, *error.shape))
    step = len(errors) // parts
    for first in range(0, len(errors), step):
        rows = slice(first, first + step)
        actual, allowed = 1 + error[None, rows], bound[None, rows]
        tile = Tile(0, slice(0, 1), rows)
        right = (actual - 1).abs() <= allowed
        tally.add(tile, Judgement(actual, torch.ones_like(actual), allowed, right), None)
    return tally.finding()


@pytest.mark.parametrize("parts", [1, 2])
def test_the_rms_of_errors_1_2_2_4_over_budgets_of_8_is_5_16ths_however_they_are_tiled(parts):
    assert (
        finding_of([[1.0, 2.0], [2.0, 4.0]], [[8.0, 8.0], [8.0, 8.0]], parts=parts).rms_ratio
        == 5 / 16
    )


def test_elements_that_are_allowed_nothing_and_err_by_nothing_do_not_thin_it_out():
    assert finding_of([[1.0, 0.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]]).rms_ratio == 0.5


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_one_element_that_is_not_finite_makes_it_infinite(wrong):
    assert finding_of([[1.0, wrong], [1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]).rms_ratio == math.inf


def test_an_error_where_nothing_is_allowed_makes_it_infinite():
    assert finding_of([[1.0, 1e-3], [1.0, 1.0]], [[2.0, 0.0], [2.0, 2.0]]).rms_ratio == math.inf


def test_nothing_that_may_err_is_0():
    assert finding_of([[0.0, 0.0]], [[0.0, 0.0]]).rms_ratio == 0.0
