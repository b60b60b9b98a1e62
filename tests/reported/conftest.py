"""Small inputs of which the tool once said something false, or nothing: each is checked in a folder of its own.

The inputs stand in inputs/, one file a kind. `check` runs `gradprobe check` of one of them and gives its report.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command import run

INPUTS = Path(__file__).parent / "inputs"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in INPUTS.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    return tmp_path


@pytest.fixture
def check():
    """What `check` did with words like `row_factor.py:gate --bias`, and its report as JSON, {} without one."""

    def checked(words):
        ran = run(f"check {words} --json report.json")
        written = Path("report.json")
        return ran, json.loads(written.read_text()) if written.exists() else {}

    return checked
