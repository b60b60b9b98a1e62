"""The workflow installs the gradprobe that wrote it, before any release is on an index."""

import subprocess

import pytest

from gradprobe import __version__
from gradprobe.commands import init as origin

_COMMIT = {"commit_id": "0123abc", "vcs": "git"}


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({}, f"gradprobe=={__version__}"),
        (
            {"url": "https://host.org/o/gradprobe.git", "vcs_info": _COMMIT},
            "gradprobe @ git+https://host.org/o/gradprobe.git@0123abc",
        ),
        (
            {"url": "https://me:secret@host.org/o/gradprobe", "vcs_info": _COMMIT},
            "gradprobe @ git+https://host.org/o/gradprobe@0123abc",
        ),
        (
            {"url": "https://me@host.org/gradprobe-0.1.0.whl", "archive_info": {}},
            "gradprobe @ https://host.org/gradprobe-0.1.0.whl",
        ),
        ({"url": "file:///nowhere/at/all", "dir_info": {}}, f"gradprobe=={__version__}"),
        ({"url": "file:///tmp/gradprobe-0.1.0.whl", "archive_info": {}}, f"gradprobe=={__version__}"),
    ],
)
def test_what_pip_recorded_is_what_is_installed(monkeypatch, recorded, expected):
    monkeypatch.setattr(origin, "_recorded", lambda: recorded)
    assert origin.requirement() == expected


@pytest.mark.parametrize(
    ("remote", "web"),
    [
        ("https://host.org/o/gradprobe.git", "https://host.org/o/gradprobe.git"),
        ("git@host.org:o/gradprobe.git", "https://host.org/o/gradprobe.git"),
        ("ssh://git@host.org/o/gradprobe", "https://host.org/o/gradprobe"),
        ("../elsewhere", None),
    ],
)
def test_a_folder_is_installed_from_its_remote(monkeypatch, tmp_path, remote, web):
    for words in (
        ["init", "-q"],
        ["remote", "add", "origin", remote],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(origin, "_recorded", lambda: {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    head = subprocess.check_output(["git", "-C", str(tmp_path), "rev-parse", "HEAD"], text=True).strip()
    assert origin.requirement() == (f"gradprobe @ git+{web}@{head}" if web else f"gradprobe=={__version__}")
