"""Every test of the command runs in a folder of its own, with soft.py and lazily.py in it."""

import pytest

from tests.cli.written_targets import write_targets


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    write_targets(tmp_path)
    return tmp_path
