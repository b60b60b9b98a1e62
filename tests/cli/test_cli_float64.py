"""GRADPROBE_FLOAT64 says how float64 matrices are multiplied, and the report that they were split."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import SMALL, run

FORCED = {"GRADPROBE_FLOAT64": "split"}


@pytest.mark.usefixtures("without_causes")
@pytest.mark.parametrize("function", ["backward", "doubled_dq"])
def test_a_check_says_that_products_were_split_and_comes_to_the_same(function):
    words = f"check soft.py:{function} --causal {SMALL} --runs contiguous --json -"
    plain, split = (json.loads(run(words, **of).out) for of in ({}, FORCED))
    assert plain["products"] is None
    assert split["products"]["split"] > 20
    assert (split["products"]["forced"], split["products"]["ratio"]) == (True, None)
    assert split["verdict"] == plain["verdict"] == ("match" if function == "backward" else "mismatch")
    first = [one["first_mismatch"] and one["first_mismatch"]["intermediate"] for one in (plain, split)]
    assert first[0] == first[1]


def test_the_console_says_it_below_what_ran():
    out = run(f"check soft.py:backward {SMALL} --runs contiguous", **FORCED).out
    assert "float64 products made of exact float32 ones (GRADPROBE_FLOAT64=split)" in out
    assert "float64 product" not in run(f"check soft.py:backward {SMALL} --runs contiguous").out


def test_another_word_is_refused():
    ran = run(f"check soft.py:backward {SMALL}", GRADPROBE_FLOAT64="fast")
    assert ran.code == 2
    assert "GRADPROBE_FLOAT64 must be native or split, got 'fast'" in ran.err
