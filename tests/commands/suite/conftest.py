"""Every test of a suite runs in a folder of its own, with soft.py, lazily.py and fatal.py in it."""

import pytest

from tests.cli.written_targets import write_targets

FATAL = """
import ctypes

def segfault(q, k, v, do, *, scale):
    ctypes.string_at(0)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    write_targets(tmp_path)
    (tmp_path / "fatal.py").write_text(FATAL)
    return tmp_path
