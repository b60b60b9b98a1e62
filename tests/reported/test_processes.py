"""Targets that do something to their process, and results that say of themselves what is not so."""

import os
from pathlib import Path

import pytest

from tests.cli.command import run_process
from tests.processes.test_run_each import gone
from tests.reported.records import SMALL


def test_a_result_is_what_lies_in_its_memory_whatever_its_class_says(check):
    _, report = check(f"children.py:flattering {SMALL} --fix-budget 0")
    assert report["first_mismatch"]["intermediate"] == "dQ"
    ran, report = check(f"children.py:wrapping {SMALL}")
    assert ran.code == 3
    assert "Wrapping, a subclass of Tensor without values" in report["error"]["message"]


@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_process_that_is_left_behind_ends_with_the_check(dies):
    if dies:
        Path("dies").touch()
    assert run_process(f"check children.py:leaving {SMALL}").code == (3 if dies else 0)
    left = int(Path("left").read_text())
    if not gone(left):
        os.kill(left, 9)
        raise AssertionError("it lives")
