import random
import re
import sys
import time
from pathlib import Path

import pytest
from msgspec import structs

from gradprobe.cli.watch_command import imported
from gradprobe.commands.suite.checking import sources_of
from gradprobe.commands.suite.outcome import CheckOutcome
from gradprobe.commands.suite.plan import PlannedCheck
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.documents import report_from
from tests.cli.command import SMALL
from tests.cli.test_cli_killed import left_of
from tests.cli.watching import KERNEL, Watching, put
from tests.render.test_comparison import wrong_in
from tests.render.written import document

# Each as long as the other.
RIGHT, WRONG = "scale * ds @ k", "scale + ds @ k"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(KERNEL)
    return tmp_path


def test_each_save_is_answered_with_what_it_changed(folder):
    own, helper = folder / "own.py", folder / "helper.py"
    helper.write_text("def scaled(ds):\n    return ds * 1\n")
    importing = "from helper import scaled\n" + KERNEL.replace(
        "scale * ds @ k", "scale * scaled(ds) @ k"
    )
    own.write_text(importing)
    with Watching(f"own.py:backward {SMALL} --json out.json") as watch:
        assert "now: match" in watch.until()
        (folder / "other.py").write_text("1")  # nobody imports it
        helper.write_text("def scaled(ds):\n    return ds * 2\n")
        said = watch.until()
        assert "helper.py saved" in said
        assert re.search(r"dQ in contiguous.*: right -> wrong in heads 0-1", said)
        assert "now: mismatch, was match" in said
        assert '"verdict": "mismatch"' in (folder / "out.json").read_text()
        put("own.py", importing + "(((")
        assert "fails to import: SyntaxError" in watch.until()
        put("own.py", importing.replace("    p =", "    __import__('time').sleep(60)\n    p ="))
        watch.until("saved")
        time.sleep(0.3)
        for text in (
            importing + "(((",
            "",
            importing.replace("scaled(ds)", "(ds).abs()"),
            KERNEL,
        ):
            own.write_text(text)
        assert "now: match, was mismatch" in watch.until(seconds=30)
    assert watch.code == 130


@pytest.mark.nightly
@pytest.mark.usefixtures("real_processes")
@pytest.mark.parametrize("how", ["ctrl-c", "killed"])
def test_some_saves_leave_no_process(folder, how):
    mark = f"{random.random()}"
    watch = Watching(GRADPROBE_TEST_MARK=mark)
    watch.until()
    for number in range(3):
        put("own.py", KERNEL + "\n" * (number + 1))
        watch.until()
    if how == "ctrl-c":
        watch.__exit__()
    else:
        put("own.py", KERNEL.replace("    p =", "    __import__('time').sleep(60)\n    p ="))
        watch.until("saved")
        time.sleep(1)
        watch.process.kill()
        watch.process.wait()
    assert left_of(f"GRADPROBE_TEST_MARK={mark}".encode()) == []


def planned(**options):
    return PlannedCheck("", CheckRequest("own.py:f", None, None, options))


def test_of_a_cuda_source_what_lies_beside_it_may_be_included(tmp_path):
    for name in ("own.py", "other.py", "own.cu", "tile.cuh"):
        (tmp_path / name).write_text("")
    target = {"name": "own.py:f", "file": str(tmp_path / "own.py"), "sha256": ""}
    target["kernels"] = [
        {"name": "k", "file": str(tmp_path / "own.cu"), "line": 1, "sha256": ""}
    ]
    report = report_from(document(wrong_in(), target=target))
    report = structs.replace(report, sources=sources_of(report, planned().request, sys.modules))
    files = imported(planned(), CheckOutcome(planned().request, report))
    assert {Path(file).name for file in files} == {"own.py", "own.cu", "tile.cuh"}
