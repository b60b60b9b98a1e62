"""`gradprobe mutate`: faults planted in a user's kernel, and what its gate makes of them."""

import json
import shlex
import signal
import sys
import time

import pytest
from typer.testing import CliRunner

from gradprobe.cli import app
from tests.cli.command import run, start
from tests.commands.mutate.written import TINY, WEAK_TEST

CASE = "--batch 2 --heads 2 --seqlen 9 --head-dim 8"
PYTHON = shlex.quote(sys.executable)
WEAK = f"{PYTHON} -m pytest -q -p no:cacheprovider test_weak.py"
WEAK_ALONE = f"{PYTHON} -c 'import test_weak; test_weak.test_gradients()'"


@pytest.fixture
def tiny(folder, monkeypatch):
    (folder / "tiny.py").write_text(TINY)
    (folder / "test_weak.py").write_text(WEAK_TEST)
    monkeypatch.setenv(
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"
    )  # what is installed here is not the gate's
    return folder


def quoted(*words):
    """The command with words that hold spaces."""
    result = CliRunner().invoke(
        app, ["mutate", *words], prog_name="gradprobe", env={"COLUMNS": "100"}
    )
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.nightly
def test_gradprobe_s_own_gate_kills_every_stride_of_another_tensor(tiny):
    ran = run(f"mutate tiny.py:tiny {CASE} --class S1 --sample 3 --json all.json")
    assert (ran.code, ran.err) == (0, "")
    words = f"KILLED 3 of 3 faults: tiny.py:tiny, by gradprobe check tiny.py:tiny {CASE} "
    assert " ".join(ran.out.split()).startswith(words)
    document = json.loads((tiny / "all.json").read_text())
    assert (document["schema"], document["verdict"], document["possible"]) == (
        "gradprobe.mutate/1",
        "killed",
        24,
    )
    assert document["classes"] == {
        "S1": {"planted": 3, "killed": 3, "survived": 0, "did_not_run": 0}
    }
    assert all(mutant["words"].startswith("FIRST MISMATCH ") for mutant in document["mutants"])
    assert (tiny / "tiny.py").read_text() == TINY
    assert not (tiny / ".gradprobe").exists()


def test_a_weak_test_of_contiguous_tensors_lets_a_stride_fault_survive_and_kills_the_algebra(tiny):
    code, out, _ = quoted(
        "tiny.py", "--check", WEAK_ALONE, "--class", "S1,A", "--sample", "2", "--json", "all.json"
    )
    assert code == 1
    document = json.loads((tiny / "all.json").read_text())
    assert document["classes"] == {
        "S1": {"planted": 1, "killed": 0, "survived": 1, "did_not_run": 0},
        "A": {"planted": 1, "killed": 1, "survived": 0, "did_not_run": 0},
    }
    survivors = [mutant for mutant in document["mutants"] if mutant["verdict"] == "survived"]
    for mutant in survivors:
        assert f"  tiny.py:{mutant['line']}  S1  {mutant['name']} in " in out
        assert f" - {mutant['before']} + {mutant['after']} " in " ".join(out.split())
        assert mutant["diff"].startswith(
            f"--- tiny.py\n+++ tiny.py\n@@ -{mutant['line']} +{mutant['line']} @@\n-"
        )
    assert out.startswith("SURVIVED  1 of 2 faults: tiny.py, by ")
    assert "survived: the gate has a gap, or the edit changes no result" in out


@pytest.mark.nightly
def test_a_fault_on_a_line_that_the_gate_never_runs_is_said_to_be_on_one(tiny):
    ran = run(f"mutate tiny.py:tiny {CASE} --class M1 --all --json all.json")
    document = json.loads((tiny / "all.json").read_text())
    hidden = [mutant for mutant in document["mutants"] if "keys <= offs" in mutant["before"]]
    assert [(mutant["verdict"], mutant["line_ran"], mutant["seconds"]) for mutant in hidden] == [
        ("survived", False, 0.0)
    ] * len(hidden)
    assert len(hidden) == 2
    assert "; this gate never runs that line" in ran.out
    assert " survivors changed a line that this gate never runs: " in " ".join(ran.out.split())


def test_an_interrupt_shows_the_fault_that_was_tried_and_keeps_it_in_the_file(tiny):
    # A gate that passes the file, fails at the first fault, and never ends at the second. It loads the file alone.
    (tiny / "gate.py").write_text(
        "import pathlib, sys, time\nfrom unittest.mock import MagicMock\nfile = pathlib.Path('runs')\n"
        "sys.modules.update(dict.fromkeys(('torch', 'triton', 'triton.language'), MagicMock()))\n"
        "runs = len(file.read_text()) if file.exists() else 0\nfile.write_text('x' * (runs + 1))\n"
        "if runs < 2:\n    import tiny\n"
        "time.sleep(600 if runs == 2 else 0)\nsys.exit(runs)\n"
    )
    (tiny / "gate.sh").write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} gate.py\n")
    (tiny / "gate.sh").chmod(0o755)
    with start(
        "mutate tiny.py --check ./gate.sh --sample 5 --workers 1 --json all.json"
    ) as process:
        while not ((tiny / "runs").exists() and (tiny / "runs").read_text() == "xxx"):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = (stream.decode() for stream in process.communicate(timeout=60))
    assert process.returncode == 130
    assert out.startswith(
        "INTERRUPTED  1 of 5 faults were tried; of these:\nKILLED  1 of 1 fault: tiny.py, by "
    )
    assert "gradprobe: interrupted after 1 of 5 faults\n" in err
    document = json.loads((tiny / "all.json").read_text())
    assert (document["verdict"], document["chosen"], document["killed"]) == ("incomplete", 5, 1)


def test_faults_are_listed_without_being_tried(tiny):
    ran = run("mutate tiny.py:tiny --class ACC,RACE,A --list")
    assert ran.code == 0
    assert "    - delta = tl.sum(p * dp, 1)" not in ran.out
    assert "    - ds = p * (dp - delta[:, None])\n    + ds = p * (dp)\n" in ran.out
    assert ran.out.splitlines()[-1] == "10 faults can be planted"


def test_an_edit_is_folded_where_the_terminal_is_narrower_and_all_of_it_is_shown(tiny):
    ran = run("mutate tiny.py:tiny --class S1 --list", COLUMNS="80")
    assert max(map(len, ran.out.splitlines())) <= 80
    (load,) = (line.strip() for line in TINY.splitlines() if "q = tl.load" in line)
    assert f" - {load} + " in " ".join(ran.out.split())


def test_a_gate_that_fails_without_any_fault_exits_3_with_what_it_said(tiny):
    code, out, err = quoted("tiny.py", "--check", "sh -c 'echo no such day; exit 1'")
    assert (code, out) == (3, "")
    assert err.startswith("gradprobe: the gate fails without any fault: ")
    assert "no such day" in err


@pytest.mark.nightly
def test_tests_that_fail_without_any_fault_exit_3(tiny):
    (tiny / "test_weak.py").write_text(
        WEAK_TEST + "\n\ndef test_no():\n    import tiny\n    assert False\n"
    )
    code, out, err = quoted("tiny.py", "--check", WEAK)
    assert (code, out) == (3, "")
    assert err.startswith("gradprobe: the gate fails without any fault: ")
    assert "FAILED test_weak.py::test_no" in err


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        ("tiny.py", "names no function for gradprobe to check"),
        (
            "tiny.py:tiny --check true --battery",
            "--check, --battery and --strides each name a gate",
        ),
        ("tiny.py:tiny --check true --heads 4", "--heads: a case of gradprobe check"),
        ("tiny.py:tiny --sample 0", "--sample must be at least 1, got 0"),
        ("tiny.py:tiny --sample 3 --all", "--sample and --all exclude each other"),
        ("tiny.py:tiny --workers 0", "--workers must be at least 1, got 0"),
        ("tiny.py:tiny --timeout 0", "--timeout must be seconds above 0"),
        ("tiny.py:tiny --class S1,X9", "got 'X9'"),
        ("tiny.py:tiny --class RACE", "no fault of class RACE can be planted"),
        ("soft.py:backward", "holds no Triton kernel that backward reaches"),
        ("none.py:f", "there is no file none.py"),
        ("tiny.py --file kernels.cu --check true", "not yet in CUDA C++"),
    ],
)
def test_a_wrong_word_exits_2_before_anything_runs(tiny, words, piece):
    ran = run(f"mutate {words}")
    assert (ran.code, ran.out) == (2, "")
    assert piece in ran.err


@pytest.mark.nightly
def test_of_ten_faults_of_lazy_a_small_check_kills_all_that_run_and_change_something():
    ran = run(
        "mutate lazy --seqlen 36 --heads 2 --batch 2 --sample 10 --class S1,S3,M2,A,ACC --json all.json"
    )
    with open("all.json") as stream:
        document = json.load(stream)
    assert ran.code == 0
    assert document["killed"] + document["did_not_run"] == document["planted"] == 10
    assert document["killed"] >= 8
