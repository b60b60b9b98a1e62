import math

import pytest
import torch

from gradprobe.numerics.finding import Finding, Judgement
from gradprobe.reference import Tile
from tests.emulated import case_of


def finding_of(errors, bounds, *, parts=1):
    """dQ of one head whose expected values are 1, added in tiles of rows."""
    error, bound = (torch.tensor(one, dtype=torch.float64) for one in (errors, bounds))
    case = case_of("softmax", batch=1, heads=1, seqlen=len(errors), head_dim=len(errors[0]))
    finding = Finding.empty(case, "dQ", (1, 1, *error.shape))
    step = len(errors) // parts
    for first in range(0, len(errors), step):
        rows = slice(first, first + step)
        actual, allowed = 1 + error[None, rows], bound[None, rows]
        tile = Tile(0, slice(0, 1), rows)
        right = (actual - 1).abs() <= allowed
        finding.add(tile, Judgement(actual, torch.ones_like(actual), allowed, right), None)
    return finding


@pytest.mark.parametrize(
    ("errors", "bounds", "rms"),
    [
        # Elements that are allowed nothing and err by nothing do not thin it out.
        ([[1.0, 0.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]], 0.5),
        ([[1.0, math.nan], [1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]], math.inf),
        ([[1.0, 1e-3], [1.0, 1.0]], [[2.0, 0.0], [2.0, 2.0]], math.inf),
    ],
)
def test_the_rms_is_over_what_may_err_and_infinite_where_one_is_no_number(errors, bounds, rms):
    assert finding_of(errors, bounds, parts=2).rms_ratio == rms
