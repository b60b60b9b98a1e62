"""A tally: the map of a head, whichever way its rows and keys were walked, and its root mean square."""

import math

import pytest
import torch

from gradprobe.model.layout_run import HIDDEN, LEVELS
from gradprobe.numerics.finding import MOST_CELLS, Finding, Grid, Judgement
from gradprobe.reference import Tile
from tests.emulated import case_of

CASE = case_of("softmax", batch=1, heads=2, seqlen=70, head_dim=20)


def letter(ratio, flows, seen):
    """By the definition: a up to a quarter, and each further one twice as much."""
    if not seen and ratio == 0:
        return HIDDEN
    steps = zip(LEVELS, (2.0**at for at in range(-2, 23)), strict=False)
    sign = next((sign for sign, most in steps if ratio <= most), "z")
    return sign if flows else sign.upper()


def by_hand(grid, ratio, expected, valid):
    """The maps, element by element."""
    rows, cols = grid.cell

    def cell(h, m, n):
        r, e, v = (of[h, m : m + rows, n : n + cols] for of in (ratio, expected, valid))
        return letter(float(r.max()), bool((e != 0).any()), bool(v.any()))

    heads, height, width = ratio.shape
    return [
        ["".join(cell(h, m, n) for n in range(0, width, cols)) for m in range(0, height, rows)]
        for h in range(heads)
    ]


def told(grid):
    return [[bytes(line).decode() for line in head] for head in grid.signs()[0].tolist()]


@pytest.mark.parametrize("step", [70, 17])
def test_a_causal_map_is_what_its_elements_say_in_steps_of_any_size(step):
    draw = torch.Generator().manual_seed(step)
    valid = torch.ones(2, 70, 70).tril().bool()
    ratio = (torch.randn(2, 70, 70, generator=draw, dtype=torch.double) * 6).exp2()
    ratio = ratio.masked_fill(~valid, 0.0)
    ratio[:, 64:, :16] = 0.0  # seen, and right to the bit
    expected = torch.ones(2, 70, 70).masked_fill(~valid, 0.0)
    expected[:, :32, :16] = 0.0
    ratio[0, 0, 60], ratio[1, 69, 69], ratio[1, 40, 3] = math.inf, 1.0, 1.0 + 2**-50
    grid, worst = Grid(CASE, "dS", (1, 2, 70, 70)), torch.zeros(2, dtype=torch.double)
    for first in range(0, 70, step):
        rows, keys = slice(first, min(first + step, 70)), slice(first % 5, None)
        left_out = ratio[:, rows, : first % 5], expected[:, rows, : first % 5]
        for part in left_out:
            part.zero_()
        of = (part[:, rows, keys] for part in (ratio, expected, valid))
        worst = worst.maximum(grid.add(Tile(0, slice(0, 2), rows, keys), keys.start, *of))
    assert told(grid) == by_hand(grid, ratio, expected, valid & torch.ones(2, 70, 70).bool())
    assert worst.tolist() == ratio.amax((1, 2)).tolist()


def test_of_a_long_head_neighbours_stand_together_and_no_row_is_lost():
    case = case_of("softmax", batch=1, heads=1, seqlen=4096, head_dim=64)
    grid = Grid(case, "P", (1, 1, 4096, 4096))
    ratio = torch.zeros(1, 1, 4096, dtype=torch.double)
    ratio[0, 0, 4095] = 3.0
    seen = torch.ones(1, 1, 4096, dtype=torch.bool)
    grid.add(Tile(0, slice(0, 1), slice(4095, 4096)), 0, ratio, ratio, seen)
    (head,) = told(grid)
    assert len(head) * len(head[0]) == MOST_CELLS
    assert head[-1][-1] == "e"
    assert {*head[0]} == {HIDDEN}


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
