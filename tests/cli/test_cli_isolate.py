import json
import re
from pathlib import Path

import pytest

from tests.cli.command import SMALL, run, run_process

FATAL = """
import ctypes, os, signal, time
from soft import backward

def then(crash):
    def target(q, k, v, do, *, scale, factor=1):
        results = backward(q, k, v, do, scale=scale)
        if not q.is_contiguous():
            crash()
        results["dQ"] *= factor
        return results
    return target

def segfault(q, k, v, do, *, scale):
    ctypes.string_at(0)
def hangs(q, k, v, do, *, scale):
    time.sleep(600)
def leaves(q, k, v, do, *, scale):
    os._exit(0)
def interrupted(q, k, v, do, *, scale):
    raise KeyboardInterrupt

right_then_segfault = then(lambda: ctypes.string_at(0))
right_then_kill = then(lambda: os.kill(os.getpid(), signal.SIGKILL))
right_then_index_error = then(lambda: [][1])
right_then_hang = then(lambda: time.sleep(600))
def wrong_then_segfault(q, k, v, do, *, scale):
    return right_then_segfault(q, k, v, do, scale=scale, factor=2)
"""


@pytest.fixture(autouse=True)
def fatal(folder):
    (folder / "fatal.py").write_text(FATAL)


def without_seconds(text):
    return re.sub(r"seconds:.*?total [\d.]+", "", text, flags=re.DOTALL)


def test_the_report_and_the_exit_code_are_those_of_a_check_in_this_process():
    words = f"check soft.py:doubled_dq {SMALL}"
    plain, alone = (
        run(f"{words} --json {flag}.json --{flag}") for flag in ("no-isolate", "isolate")
    )
    assert (alone.code, without_seconds(alone.out)) == (plain.code, without_seconds(plain.out))
    documents = [
        json.loads(Path(f"{flag}.json").read_text()) for flag in ("no-isolate", "isolate")
    ]
    assert documents[0] | {"seconds": None} == documents[1] | {"seconds": None}


@pytest.mark.parametrize(
    ("name", "flag", "kind", "words"),
    [
        ("segfault", "", "Crash", "crashed (contiguous): killed by SIGSEGV (segmentation fault), "),
        ("leaves", "", "Crash", "crashed (contiguous): ended with exit code 0 before it answered (os._exit?), "),
        pytest.param("hangs", "--timeout 1.5", "Timeout",
                     "took too long (contiguous): no answer within 1.5 s: stopped, ", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_a_crash_exits_3_with_the_signal_and_the_line(name, flag, kind, words, folder):
    ran = run_process(f"check fatal.py:{name} {SMALL} {flag} --json report.json")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith(f"gradprobe: target 'fatal.py:{name}' {words}last at fatal.py:")
    assert "most recent call first" not in ran.err
    error = json.loads((folder / "report.json").read_text())["error"]
    assert [error[key] for key in ("kind", "function")] == [kind, name]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("segfault", "Crash", "killed by SIGSEGV (segmentation fault)"),
        ("index_error", "TargetFailure", "raised IndexError (distinct): list index out of range"),
        pytest.param("kill", "Crash", "killed by SIGKILL (from outside; most often the system was out of memory)",
                     marks=pytest.mark.nightly),
        pytest.param("hang", "Timeout", "no answer within 9 s: stopped", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_what_was_measured_before_the_end_is_reported(name, kind, words, folder):
    timeout = "--timeout 9" if name == "hang" else ""
    command = f"check fatal.py:right_then_{name} {SMALL} {timeout} --json report.json"
    ran = run(command, GRADPROBE_ISOLATE="1")
    document = json.loads((folder / "report.json").read_text())
    verdict = "crashed" if kind == "Crash" else "error"
    found = [(run["layout"], run["verdict"]) for run in document["runs"]]
    assert found == [("contiguous", "match"), ("distinct", verdict)]
    assert (ran.code, document["verdict"], document["error"]["kind"]) == (3, "error", kind)
    assert words in document["error"]["message"]
    lines = [line for line in ran.out.splitlines() if not line.startswith("    ")]
    assert lines[0].startswith(f"ERROR  target 'fatal.py:right_then_{name}' ")
    at = next(at for at, line in enumerate(lines) if line.startswith("  contiguous     match, "))
    assert lines[at + 1].startswith(f"  distinct       {verdict}: {words}")


def test_a_mismatch_before_a_crash_exits_1_and_both_are_shown(folder):
    words = f"check fatal.py:wrong_then_segfault {SMALL} --json report.json --junit report.xml --sarif report.sarif"
    ran = run(words, GRADPROBE_ISOLATE="1")
    assert (ran.code, ran.first_mismatches[0][:18]) == (1, "FIRST MISMATCH dQ ")
    assert ran.out.startswith("MISMATCH  dQ is the first wrong intermediate in every head ")
    assert (
        "\n  distinct       crashed: killed by SIGSEGV (segmentation fault), last at" in ran.out
    )
    document = json.loads((folder / "report.json").read_text())
    assert (document["verdict"], document["error"]["kind"]) == ("mismatch", "Crash")
    assert [run["verdict"] for run in document["runs"]] == ["mismatch", "crashed"]
    assert (folder / "report.xml").read_text().count('<error type="Crash"') == 1
    results = json.loads((folder / "report.sarif").read_text())["runs"][0]["results"]
    assert "GP020" in [result["ruleId"] for result in results]


def test_a_keyboard_interrupt_of_the_target_is_an_error_of_the_target():
    ran = run(f"check fatal.py:interrupted {SMALL}", GRADPROBE_ISOLATE="1")
    assert (ran.code, ran.out) == (3, "")
    words = "gradprobe: target 'fatal.py:interrupted' raised KeyboardInterrupt (contiguous)\n"
    assert ran.err.startswith(words)
