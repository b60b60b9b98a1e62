"""Test runs of their own in a scratch project, which finds the plugin by its entry point as if it were installed."""

import sys

import pytest

from tests.cli.command import ROOT
from tests.cli.written_targets import write_targets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def project(pytester, monkeypatch, tmp_path_factory):
    """A folder with soft.py and lazily.py in it; `project.runpytest_subprocess(...)` runs its tests."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        plugins = tomllib.load(file)["project"]["entry-points"]["pytest11"]
    installed = tmp_path_factory.mktemp("installed") / "gradprobe-0.dist-info"
    installed.mkdir()
    lines = [f"{name} = {module}\n" for name, module in plugins.items()]
    (installed / "entry_points.txt").write_text("[pytest11]\n" + "".join(lines))
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: gradprobe\nVersion: 0\n")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{installed.parent}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # With the last two pytest repeats every message, whole, in its summary.
    for name in ("TRITON_INTERPRET", "COLUMNS", "CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    write_targets(pytester.path)
    return pytester
