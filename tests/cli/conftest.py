"""Every test of the command runs in a folder of its own, with soft.py and lazily.py in it."""

from dataclasses import replace

import pytest

from gradprobe.commands.suite.checking import Checker
from gradprobe.model.documents import document_of, load, text_of
from tests.cli.written_targets import LAZY, softmax_targets, write_targets

# What the checks of `made_once` came to, with this in place of the folder; by the check.
_FOLDER = "/the/folder/of/a/test"
_made = {}
_WRITTEN = {"soft.py": softmax_targets(), "lazily.py": LAZY}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    write_targets(tmp_path)
    return tmp_path


@pytest.fixture
def made_once(folder, monkeypatch):
    """A check in this process of soft.py or lazily.py, as they were written, is the first test's that makes it.

    For tests of what is said and kept of a check, which is a value: they would make the same ones dozens of times.
    """
    make = Checker.__call__

    def made(checker, planned):
        file = planned.request.target.partition(":")[0]
        if file not in _WRITTEN or (folder / file).read_text() != _WRITTEN[file]:
            return make(checker, planned)
        if repr(planned) not in _made:
            checked = make(checker, planned)
            _made[repr(planned)] = (
                checked,
                text_of(document_of(checked.report)).replace(str(folder), _FOLDER),
            )
            return checked
        checked, report = _made[repr(planned)]
        return replace(checked, report=load(report.replace(_FOLDER, str(folder))))

    monkeypatch.setattr(Checker, "__call__", made)
