"""A target in a process of its own: whatever it does is a report and an exit code of 0 to 3."""

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
def asleep():
    time.sleep(600)

right_then_segfault = then(lambda: ctypes.string_at(0))
right_then_kill = then(lambda: os.kill(os.getpid(), signal.SIGKILL))
right_then_index_error = then(lambda: [][1])
right_then_hang = then(asleep)
def wrong_then_segfault(q, k, v, do, *, scale):
    return right_then_segfault(q, k, v, do, scale=scale, factor=2)
"""


def without_seconds(text):
    """The report without what two runs of one check differ in."""
    return re.sub(r"seconds:.*?total [\d.]+", "", text, flags=re.DOTALL)


def run_apart(words):
    """The command in this process, and its target in another one."""
    return run(words, GRADPROBE_ISOLATE="1")


def whole_lines(text):
    """The lines of a report, without what folding made lines of their own."""
    return [line for line in text.splitlines() if not line.startswith("    ")]


@pytest.fixture(autouse=True)
def fatal(folder):
    (folder / "fatal.py").write_text(FATAL)


def test_the_report_and_the_exit_code_are_those_of_a_check_in_this_process():
    plain, alone = (
        run(f"check soft.py:doubled_dq {SMALL} --json {flag}.json --{flag}")
        for flag in ("no-isolate", "isolate")
    )
    assert alone.code == plain.code == 1
    assert without_seconds(alone.out) == without_seconds(plain.out)
    documents = [
        json.loads(Path(f"{flag}.json").read_text()) | {"seconds": None}
        for flag in ("no-isolate", "isolate")
    ]
    assert documents[0] == documents[1]


@pytest.mark.parametrize(
    ("name", "flag", "kind", "words"),
    [
        ("segfault", "", "Crash", "crashed (contiguous): killed by SIGSEGV (segmentation fault), "),
        ("leaves", "", "Crash", "crashed (contiguous): ended with exit code 0 before it answered (os._exit?), "),
        pytest.param("hangs", "--timeout 1.5", "Timeout",
                     "took too long (contiguous): no answer within 1.5 s: stopped, ", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_a_crash_exits_3_with_the_signal_and_the_line_and_an_error_report(
    name, flag, kind, words, folder
):
    ran = run_process(f"check fatal.py:{name} {SMALL} {flag} --json report.json")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith(f"gradprobe: target 'fatal.py:{name}' {words}last at fatal.py:")
    assert "Traceback" not in ran.err
    assert "most recent call first" not in ran.err
    document = json.loads((folder / "report.json").read_text())
    assert (document["verdict"], document["error"]["kind"]) == ("error", kind)
    assert document["error"]["function"] == name
    assert document["error"]["file"] == str(folder / "fatal.py")


@pytest.mark.parametrize(
    ("name", "kind", "words", "line"),
    [
        ("segfault", "Crash", "killed by SIGSEGV (segmentation fault)", "ctypes.string_at(0)"),
        ("index_error", "TargetFailure", "raised IndexError (distinct): list index out of range", None),
        pytest.param("kill", "Crash",
                     "killed by SIGKILL (from outside; most often the system was out of memory)", None,
                     marks=pytest.mark.nightly),
        pytest.param("hang", "Timeout", "no answer within 9 s: stopped", "time.sleep(600)", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_what_was_measured_before_the_end_is_reported_and_the_layout_that_came_to_it(
    name, kind, words, line, folder
):
    timeout = "--timeout 9" if name == "hang" else ""
    ran = run_apart(f"check fatal.py:right_then_{name} {SMALL} {timeout} --json report.json")
    assert ran.code == 3
    document = json.loads((folder / "report.json").read_text())
    first, last = document["runs"]
    verdict = "crashed" if kind == "Crash" else "error"
    assert (first["layout"], first["verdict"]) == ("contiguous", "match")
    kinds = last["layout"], last["verdict"], last["error"]["kind"]
    assert kinds == ("distinct", verdict, kind)
    assert (document["verdict"], document["error"]["kind"]) == ("error", kind)
    assert words in document["error"]["message"]
    assert line in (last["error"].get("code") or "") if line else not last["error"].get("code")
    shown = whole_lines(ran.out)
    assert shown[0].startswith(f"ERROR  target 'fatal.py:right_then_{name}' ")
    at = next(
        at for at, row in enumerate(shown) if row.startswith("  contiguous     match, worst ")
    )
    assert shown[at + 1].startswith(f"  distinct       {verdict}: {words}")
    assert shown[at + 2].startswith("  again: ")


def test_a_mismatch_before_a_crash_exits_1_and_is_shown_whole_with_the_crash_in_every_form(
    folder,
):
    words = f"check fatal.py:wrong_then_segfault {SMALL} --json report.json --junit report.xml --sarif report.sarif"
    ran = run_apart(words)
    assert ran.code == 1
    assert ran.out.startswith("MISMATCH  dQ is the first wrong intermediate in every head ")
    assert ran.first_mismatches[0].startswith("FIRST MISMATCH dQ ")
    crash = "distinct       crashed: killed by SIGSEGV (segmentation fault), last at fatal.py:"
    assert any(line.startswith(f"  {crash}") for line in whole_lines(ran.out))
    document = json.loads((folder / "report.json").read_text())
    assert (document["verdict"], document["error"]["kind"]) == ("mismatch", "Crash")
    assert [run["verdict"] for run in document["runs"]] == ["mismatch", "crashed"]
    assert (folder / "report.xml").read_text().count('<error type="Crash"') == 1
    results = json.loads((folder / "report.sarif").read_text())["runs"][0]["results"]
    (result,) = [one for one in results if one["ruleId"] == "GP020"]
    place = result["locations"][0]["physicalLocation"]
    lines = FATAL.splitlines()
    line = next(at for at, text in enumerate(lines, 1) if "then(lambda: ctypes" in text)
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("fatal.py", line)


def test_a_keyboard_interrupt_of_the_target_is_an_error_of_the_target():
    ran = run_apart(f"check fatal.py:interrupted {SMALL}")
    assert (ran.code, ran.out) == (3, "")
    words = "gradprobe: target 'fatal.py:interrupted' raised KeyboardInterrupt (contiguous)\n"
    assert ran.err.startswith(words)
