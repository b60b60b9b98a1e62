"""The workflow installs the gradprobe that wrote it, before any release is on an index."""

import shlex

import pytest

from gradprobe import __version__
from gradprobe.commands import starter_files as origin
from tests.cli.command import ROOT

WHEEL = f"vendor/gradprobe-{__version__}-py3-none-any.whl"
_COMMIT = {"commit_id": "0123abc", "vcs": "git"}


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({}, WHEEL),
        ({"url": "https://me:secret@host.org/o/gradprobe.git", "vcs_info": _COMMIT},
         "gradprobe @ git+https://host.org/o/gradprobe.git@0123abc"),
        ({"url": "https://me@host.org/gradprobe-0.1.0.whl", "archive_info": {}},
         "gradprobe @ https://host.org/gradprobe-0.1.0.whl"),
        ({"url": "file:///nowhere/at/all", "dir_info": {}}, WHEEL),
        ({"url": "file:///tmp/gradprobe-0.2.0-py3-none-any.whl", "archive_info": {}}, WHEEL.replace("0.1.0", "0.2.0")),
    ],
)  # fmt: skip
def test_what_pip_recorded_is_what_is_installed(monkeypatch, recorded, expected):
    monkeypatch.setattr(origin, "_recorded", lambda: recorded)
    assert origin.requirement() == expected


def test_the_command_that_is_printed_makes_the_wheel_that_the_workflow_installs(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(origin, "_recorded", lambda: {})
    command = origin.wheel_command()
    assert (
        command == f"python3 -m pip wheel --no-deps --wheel-dir vendor {shlex.quote(str(ROOT))}"
    )
    (tmp_path / "vendor").mkdir()
    (tmp_path / WHEEL).touch()
    assert origin.wheel_command() == ""


def test_a_wheel_that_pip_installed_from_is_taken(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "my wheels" / "gradprobe-0.2.0-py3-none-any.whl"
    kept.parent.mkdir()
    kept.write_text("a wheel")
    monkeypatch.setattr(origin, "_recorded", lambda: {"url": kept.as_uri(), "archive_info": {}})
    command = f"python3 -m pip wheel --no-deps --wheel-dir vendor {shlex.quote(str(kept))}"
    assert origin.wheel_command() == command
    assert origin.requirement() == "vendor/gradprobe-0.2.0-py3-none-any.whl"
