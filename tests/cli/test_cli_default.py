"""Nobody named a target: what is checked instead is said first, and a misspelt table is not passed over."""

import json
from pathlib import Path

import pytest

from tests.cli.command import SMALL, run

BUILT_IN = "the built-in lazy kernel, since no target was given"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_first_line_says_that_the_built_in_was_checked():
    ran = run(f"check {SMALL} --runs contiguous --json report.json")
    assert ran.code == 0
    assert ran.out.splitlines()[0].startswith(f"MATCH  {BUILT_IN}: ")
    assert json.loads(Path("report.json").read_text())["chosen"] == BUILT_IN
    assert BUILT_IN not in run(f"check lazy {SMALL} --runs contiguous").out


def test_a_table_that_is_nearly_this_tools_is_named():
    Path("pyproject.toml").write_text('[tool.grad-probe]\ntargets = ["lazy"]\n')
    ran = run(f"check {SMALL}")
    assert (ran.code, ran.out) == (2, "")
    assert "is no table of gradprobe's" in ran.err
    assert "did you mean [tool.gradprobe]?" in ran.err
