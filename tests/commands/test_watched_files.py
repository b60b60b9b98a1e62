"""Which files `watch` waits for."""

import sys
from pathlib import Path

from msgspec import structs

from gradprobe.commands.suite.checking import sources_of
from gradprobe.commands.suite.outcome import CheckOutcome
from gradprobe.commands.suite.plan import PlannedCheck
from gradprobe.commands.watched_files import (
    Sources,
    at_first,
    imported,
    listed_files,
)
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.documents import report_from
from tests.render.test_comparison import wrong_in
from tests.render.written import document


def planned(**options):
    return PlannedCheck("", CheckRequest("own.py:f", None, None, options))


def test_files_count_by_what_stands_in_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("1")
    Path("notes.txt").write_text("1")
    sources = Sources.of(at_first(planned()))
    assert sorted(sources.digests) == [str(tmp_path), str(tmp_path / "own.py")]
    Path("own.py").write_text("1")
    Path("notes.txt").write_text("2")
    assert sources.changed == []
    Path("own.py").write_text("2")
    Path("new.cu").write_text("2")
    assert [listed_files([one]) for one in sources.changed] == ["a file in .", "own.py"]


def test_of_a_cuda_source_what_lies_beside_it_may_be_included(tmp_path):
    for name in ("own.py", "other.py", "own.cu", "tile.cuh"):
        (tmp_path / name).write_text("")
    target = {"name": "own.py:f", "file": str(tmp_path / "own.py"), "sha256": ""}
    target["kernels"] = [{"name": "k", "file": str(tmp_path / "own.cu"), "line": 1, "sha256": ""}]
    report = report_from(document(wrong_in(), target=target))
    report = structs.replace(report, sources=sources_of(report, planned().request, sys.modules))
    files = imported(planned(), CheckOutcome(planned().request, report))
    assert {Path(file).name for file in files} == {"own.py", "own.cu", "tile.cuh"}
