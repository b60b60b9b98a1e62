"""A command that is killed leaves no file that reads as right, and no process; interrupted, its exit code says so."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradprobe.cli import root
from gradprobe.render.files import FILES, begin
from gradprobe.render.files import FORMS as ALL
from tests.cli.command import ROOT, SMALL, run, start
from tests.render.written import assert_is_sarif, read_junit

pytestmark = pytest.mark.usefixtures("real_processes")
NAMES = {
    "--json": "out.json", "--junit": "out.xml", "--sarif": "out.sarif", "--markdown": "out.md",
    "--html": "out.html",
}  # fmt: skip
FORMS = " ".join(f"{flag} {file}" for flag, file in NAMES.items())
COMMANDS = {
    "check": f"check soft.py:backward {SMALL} {FORMS}",
    "strides": f"strides soft.py:backward --fast --batch 1 --heads 2 --seqlen 20 --head-dim 8 {FORMS}",
    "sweep": f"sweep soft.py:backward --seqlen 9 --seqlen 20 --heads 1 --heads 2 --batch 1 {FORMS}",
}


def read_as_right(folder):
    """The files that a program would take for a match."""
    texts = {file: (folder / file).read_text() for file in NAMES.values()}
    junit, sarif = read_junit(texts["out.xml"]), json.loads(texts["out.sarif"])
    assert_is_sarif(sarif)
    (log,) = sarif["runs"]
    heading = texts["out.md"].splitlines()[0]
    fine = {
        "out.json": json.loads(texts["out.json"])["verdict"] == "match",
        "out.xml": junit.find(".//error") is None and junit.find(".//failure") is None,
        "out.sarif": log["invocations"][0]["executionSuccessful"] and not log["results"],
        "out.html": "<title>match" in texts["out.html"],
        "out.md": " right" in heading and "not " not in heading,
    }
    return {name for name, right in fine.items() if right}


def is_marked(process, mark):
    try:
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2][:3]
        return mark in Path(f"/proc/{process}/environ").read_bytes() and b"Z" not in state
    except OSError:
        return False


def left_of(mark, within=10.0):
    """The processes that carry a mark in their environment and live on."""
    deadline = time.monotonic() + within
    while left := [
        name for name in os.listdir("/proc") if name.isdigit() and is_marked(name, mark)
    ]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return left


def killed(folder, words, after):
    """Kills a command so many seconds after it replaced the files of an earlier match; how it ended."""
    stamp = os.stat(folder / "out.json").st_ino
    mark = f"{after}-{random.random()}"
    with start(words, GRADPROBE_TEST_MARK=mark) as process:
        while os.stat(folder / "out.json").st_ino == stamp and process.poll() is None:
            time.sleep(0.002)
        try:
            process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    assert left_of(f"GRADPROBE_TEST_MARK={mark}".encode()) == []
    return process.returncode


@pytest.mark.parametrize(
    ("name", "count"),
    [("check", 1), *(pytest.param(name, 34, marks=pytest.mark.nightly) for name in COMMANDS)],
)
def test_what_is_killed_reads_as_right_in_no_file_and_leaves_no_process(name, count, folder):
    assert run(COMMANDS["check"]).code == 0
    assert read_as_right(folder) == set(NAMES.values())
    earlier = {file: (folder / file).read_text() for file in NAMES.values()}
    draw = random.Random(name)
    for after in [draw.uniform(0.0, 4.0) for _ in range(count)]:
        for file, text in earlier.items():
            (folder / file).write_text(text)
        if killed(folder, COMMANDS[name], after) != 0:
            assert read_as_right(folder) == set(), f"{name} killed after {after:.2f} s"


def test_an_interruption_is_neither_a_match_nor_a_mismatch(folder):
    (folder / "sleeping.py").write_text(
        "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
    )
    with start("check sleeping.py:f --json out.json") as process:
        while b"here" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, b"Traceback" in err) == (130, b"", False)
    assert err.endswith(b"gradprobe: interrupted\n  nothing was done yet\n")
    assert json.loads((folder / "out.json").read_text())["verdict"] == "incomplete"


def test_every_command_that_writes_a_report_is_known_to_begin_with_its_files():
    for name in {*root.COMMANDS} - {"init", "show"}:  # which end at once
        options = {option for row in root.imported(name).params for option in row.opts}
        assert [flag for flag in ALL if flag in options] == list(FILES.get(name, ())), name


def test_files_are_replaced_before_anything_is_imported_that_takes_long(folder):
    script = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}]
sys.argv = ["gradprobe", *{COMMANDS["check"].split()!r}]
sys.modules["gradprobe.cli.root"] = sys.modules["gradprobe.processes"] = None
from gradprobe.cli import main
try:
    main()
except ImportError:
    print(*sorted({{"typer", "torch", "typing", "dataclasses", "pathlib", "tempfile"}} & set(sys.modules)))
"""
    ran = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "\n", "")
    assert read_as_right(folder) == set()
    document = json.loads((folder / "out.json").read_text())
    assert (document["verdict"], document["error"]["kind"]) == ("incomplete", "Incomplete")
    assert document["reproduce"] == f"gradprobe {COMMANDS['check']}"


@pytest.mark.parametrize(
    "words", ["check --help --json out", "init --json out", "check -- --json out", "--json"]
)
def test_no_file_is_replaced_by_what_runs_nothing(words, folder):
    (folder / "out").write_text("before")
    begin(words.split())
    assert (folder / "out").read_text() == "before"
