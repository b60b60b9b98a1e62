"""Targets that do something to their process, and results that say of themselves what is not so."""

import os
import time
from pathlib import Path

import pytest

from tests.cli.command import run_process
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
    for _ in range(50):
        if not _lives(left):
            return
        time.sleep(0.1)
    os.kill(left, 9)
    raise AssertionError("it lives")


def _lives(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
