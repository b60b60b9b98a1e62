"""Some query rows of a case, as a problem of their own, are what they are in the whole."""

from __future__ import annotations

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.numerics.compare import attention_of
from gradprobe.numerics.rows import Rows
from gradprobe.numerics.tally import Judgement, Tally
from gradprobe.reference import Tile, evaluate, tiles
from gradprobe.reference.attention import BY_ROW
from tests.emulated import case_of

AT = (0, 3, 4, 20, 49)
CASES = {
    "causal, fewer rows than keys": ("softmax", {"causal": True, "seqlen_q": 50, "seqlen_k": 72}),
    "aligned to the top left": ("softmax", {"causal": True, "seqlen_q": 50, "seqlen_k": 72, "align": "top-left"}),
    "window, softcap, groups": ("softmax", {"window": (9, 3), "softcap": 2.0, "heads": 4, "kv_heads": 2}),
    "bias by row, alibi, sinks": ("softmax", {"bias": True, "alibi": True, "sinks": True, "causal": True}),
    "bias by batch": ("softmax", {"bias": True, "bias_axes": "bn"}),
    "mask": ("softmax", {"mask": "random"}),
    "padding": ("softmax", {"seqlens": (50, 4)}),
    "packed": ("softmax", {"cu_seqlens": (0, 4, 4, 50), "causal": True}),
    "dropout": ("softmax", {"dropout": 0.3}),
    "lazy": ("lazy", {"bias": True, "tau": (0.5, -0.5, 1.0)}),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_alone_are_what_they_are_in_the_whole(name):
    family, options = CASES[name]
    case = case_of(family, **({"seqlen": 50} if not {"seqlen_q", "cu_seqlens"} & options.keys() else {}), **options)
    values, rows = draw(case), Rows(AT, case.seqlen_q)
    some, whole = rows.problem(case, values), attention_of(case, values)
    for one, other in zip(tiles(some), tiles(whole), strict=True):
        alone, among = evaluate(some, one), evaluate(whole, other)
        assert torch.equal(alone["valid"], among["valid"][:, list(AT)])
        for result in BY_ROW:
            # Dots of other shapes add up in another order.
            torch.testing.assert_close(alone[result], among[result][:, list(AT)], rtol=1e-12, atol=1e-12)


def test_what_was_found_of_rows_is_told_by_their_numbers_in_the_whole():
    case = case_of("softmax", batch=1, heads=1, seqlen=50)
    rows = Rows(AT, 50)
    tally, expected = Tally(rows.case(case), "P", (1, 1, 5, 50)), torch.zeros(1, 5, 50, dtype=torch.double)
    actual = expected.clone()
    actual[0, 3:, 7] = 1.0
    tally.add(Tile(0, slice(0, 1), slice(0, 5)), Judgement(actual, expected, expected + 0.1, (actual == 0)), None)
    found = rows.finding(case, tally.finding())
    assert found.row_ranges(0, 0) == [(20, 20), (49, 49)]
    assert (found.first.row, found.first.col, found.first.tile) == (20, 7, (20 // case.block_m, 7 // case.block_n))
    assert (found.total, found.mismatched, found.shown) == (250, 2, AT)
    lines = [bytes(line).decode() for line in found.signs[0, 0].tolist()]
    assert (found.cell, lines) == ((1, case.block_n), ["----"] * 3 + ["G---"] * 2)
