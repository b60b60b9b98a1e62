"""A target in a process of its own: whatever it does is a report and an exit code of 0 to 3."""

import json
import re

import pytest

from tests.cli.command import SMALL, run, run_on_terminal, run_process
from tests.sampling import sampled

FATAL = """
import ctypes, os, signal, sys, time
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
def crashes_or_wrong(q, k, v, do, *, scale):
    if not (q.is_contiguous() and k.is_contiguous()):
        os.abort()
    results = backward(q, k, v, do, scale=scale)
    results["dQ"] *= 1 if do.is_contiguous() else 2
    return results
def asleep():
    time.sleep(600)

right_then_segfault = then(lambda: ctypes.string_at(0))
right_then_abort = then(os.abort)
right_then_kill = then(lambda: os.kill(os.getpid(), signal.SIGKILL))
right_then_leave = then(lambda: os._exit(0))
right_then_exit = then(sys.exit)
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


def at_night(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.fixture(autouse=True)
def fatal(folder):
    (folder / "fatal.py").write_text(FATAL)


@sampled("name", ["doubled_dq", "backward"], push=1)
def test_the_report_and_the_exit_code_are_those_of_a_check_in_this_process(name):
    plain = run(f"check soft.py:{name} {SMALL} --json plain.json --no-isolate")
    alone = run(f"check soft.py:{name} {SMALL} --json alone.json --isolate")
    assert alone.code == plain.code == (1 if name == "doubled_dq" else 0)
    assert without_seconds(alone.out) == without_seconds(plain.out)
    documents = []
    for file in ("plain.json", "alone.json"):
        with open(file, encoding="utf-8") as opened:
            documents.append(json.load(opened) | {"seconds": None})
    assert documents[0] == documents[1]


@pytest.mark.parametrize(
    ("name", "flag", "kind", "words"),
    [
        ("segfault", "", "Crash", "crashed (contiguous): killed by SIGSEGV (segmentation fault), "),
        at_night(
            "leaves",
            "",
            "Crash",
            "crashed (contiguous): ended with exit code 0 before it answered (os._exit?), ",
        ),
        (
            "hangs",
            "--timeout 1.5",
            "Timeout",
            "took too long (contiguous): no answer within 1.5 s: stopped, ",
        ),
    ],
)
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
    assert (document["error"]["function"], document["error"]["file"]) == (
        name,
        str(folder / "fatal.py"),
    )


@pytest.mark.parametrize(
    ("name", "kind", "words", "line"),
    [
        ("segfault", "Crash", "killed by SIGSEGV (segmentation fault)", "ctypes.string_at(0)"),
        at_night("abort", "Crash", "killed by SIGABRT (abort)", "crash()"),
        at_night(
            "kill",
            "Crash",
            "killed by SIGKILL (from outside; most often the system was out of memory)",
            None,
        ),
        at_night(
            "leave", "Crash", "ended with exit code 0 before it answered (os._exit?)", "os._exit(0)"
        ),
        at_night("exit", "TargetFailure", "raised SystemExit (distinct)", None),
        (
            "index_error",
            "TargetFailure",
            "raised IndexError (distinct): list index out of range",
            None,
        ),
        at_night("hang", "Timeout", "no answer within 9 s: stopped", "time.sleep(600)"),
    ],
)
def test_what_was_measured_before_the_end_is_reported_and_the_layout_that_came_to_it(
    name, kind, words, line, folder
):
    timeout = "--timeout 9" if name == "hang" else ""
    ran = run_apart(f"check fatal.py:right_then_{name} {SMALL} {timeout} --json report.json")
    assert ran.code == 3
    document = json.loads((folder / "report.json").read_text())
    first, last, *after = document["runs"]
    verdict = "crashed" if kind == "Crash" else "error"
    assert (first["layout"], first["verdict"]) == ("contiguous", "match")
    assert (last["layout"], last["verdict"], last["error"]["kind"]) == ("distinct", verdict, kind)
    # What took too long may do so again.
    kept = [] if name == "hang" else [("do=expanded", "match")]
    assert [(run["layout"], run["verdict"]) for run in after] == kept
    assert (document["verdict"], document["error"]["kind"]) == ("error", kind)
    assert words in document["error"]["message"]
    assert line in (last["error"].get("code") or "") if line else not last["error"].get("code")
    shown = whole_lines(ran.out)
    assert shown[0].startswith(f"ERROR  target 'fatal.py:right_then_{name}' ")
    assert shown[1].startswith("  contiguous     match, worst ")
    assert shown[2].startswith(f"  distinct       {verdict}: {words}")
    assert shown[3].startswith("  do=expanded    match, worst " if kept else "  again: ")


def test_a_terminal_says_once_what_ended_a_check():
    ran = run_on_terminal(
        f"check fatal.py:right_then_index_error {SMALL} --runs contiguous --runs q=distinct"
    )
    assert ran.code == 3
    assert ran.out.count("raised IndexError") == 2, (
        ran.out
    )  # the message, and the line of the layout
    assert "ERROR  " not in ran.out


@pytest.mark.nightly
def test_a_layout_after_the_crash_that_is_wrong_comes_first_and_every_crash_has_its_line(folder):
    layouts = "".join(
        f" --runs {layout}" for layout in ("contiguous", "q=distinct", "k=distinct", "do=expanded")
    )
    ran = run_apart(f"check fatal.py:crashes_or_wrong {SMALL} {layouts} --json report.json")
    document = json.loads((folder / "report.json").read_text())
    assert [run["verdict"] for run in document["runs"]] == [
        "match",
        "crashed",
        "crashed",
        "mismatch",
    ]
    assert (ran.code, document["verdict"], document["error"]["kind"]) == (1, "mismatch", "Crash")
    assert (document["first_mismatch"]["intermediate"], ran.first_mismatches[0][:18]) == (
        "dQ",
        "FIRST MISMATCH dQ ",
    )
    shown = ran.out.splitlines()
    assert shown[0].startswith("MISMATCH  dQ is the first wrong intermediate ")
    names = ("contiguous", "q=distinct", "k=distinct", "do=expanded")
    layouts = [words[:2] for line in shown if (words := line.split())[1:] and words[0] in names]
    assert layouts == [
        list(pair)
        for pair in zip(names, ("match,", "crashed:", "crashed:", "mismatch,"), strict=True)
    ]


def test_a_mismatch_before_a_crash_exits_1_and_is_shown_whole_with_the_crash_in_every_form(folder):
    words = f"check fatal.py:wrong_then_segfault {SMALL} --json report.json --junit report.xml --sarif report.sarif"
    ran = run_apart(words)
    assert ran.code == 1
    assert ran.out.startswith("MISMATCH  dQ is the first wrong intermediate in every head ")
    assert ran.first_mismatches[0].startswith("FIRST MISMATCH dQ ")
    crash = "distinct       crashed: killed by SIGSEGV (segmentation fault), last at fatal.py:"
    shown = whole_lines(ran.out)
    at = next(number for number, line in enumerate(shown) if line.startswith(f"  {crash}"))
    assert [shown[at + way].split()[:2] for way in (-1, 1)] == [
        ["contiguous", "mismatch,"],
        ["do=expanded", "mismatch,"],
    ]
    document = json.loads((folder / "report.json").read_text())
    assert (document["verdict"], document["error"]["kind"]) == ("mismatch", "Crash")
    assert [run["verdict"] for run in document["runs"]] == ["mismatch", "crashed", "mismatch"]
    junit, sarif = (folder / "report.xml").read_text(), (folder / "report.sarif").read_text()
    assert junit.count('<error type="Crash"') == 1
    (result,) = [one for one in json.loads(sarif)["runs"][0]["results"] if one["ruleId"] == "GP020"]
    place = result["locations"][0]["physicalLocation"]
    line = next(
        at for at, text in enumerate(FATAL.splitlines(), 1) if "then(lambda: ctypes" in text
    )
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("fatal.py", line)


@pytest.mark.parametrize("word", ["raise KeyboardInterrupt", "raise SystemExit(0)"])
def test_a_wish_to_end_the_process_at_the_import_or_in_a_call_is_an_error_of_the_target(
    word, folder
):
    (folder / "wish.py").write_text(f"{word}\ndef f(q, k, v, do, *, scale): pass\n")
    kind = word.split()[1].partition("(")[0]
    ran = run_apart(f"check wish.py:f {SMALL}")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("gradprobe: target 'wish.py:f' ")
    assert kind in ran.err
    if kind == "KeyboardInterrupt":
        assert run_apart(f"check fatal.py:interrupted {SMALL}").err.startswith(
            "gradprobe: target 'fatal.py:interrupted' raised KeyboardInterrupt (contiguous)\n"
        )


def test_what_a_target_prints_goes_to_stderr():
    ran = run_process(f"check soft.py:printing {SMALL}")
    assert ran.code == 0
    assert "the target speaks\n" in ran.err
    assert "speaks" not in ran.out


@sampled("words", ["soft.py:raising", "soft.py:no_such", "soft.py:backward --kv-heads 5"], push=1)
def test_a_failure_is_told_as_in_this_process(words):
    plain, alone = run(f"check {words} {SMALL}"), run(f"check {words} {SMALL} --isolate")
    assert alone.code == plain.code != 0
    assert (alone.out, alone.err) == (plain.out, plain.err)


def test_a_traceback_of_the_other_process_is_shown_where_it_is_asked_for():
    ran = run(f"check soft.py:raising {SMALL} --isolate --traceback")
    assert "Traceback (most recent call last)" in ran.err
    assert "ValueError: the target says no" in ran.err


@pytest.mark.parametrize("word", ["0", "-1", "nan", "inf", "1e300"])
def test_a_timeout_that_is_no_time_exits_2(word):
    ran = run(f"check soft.py:backward --timeout {word}")
    assert (ran.code, ran.out) == (2, "")
    assert "--timeout must be seconds above 0" in ran.err


def test_a_timeout_without_a_process_to_stop_exits_2():
    ran = run(f"check soft.py:backward {SMALL} --timeout 5 --no-isolate")
    assert (ran.code, ran.out) == (2, "")
    assert "--timeout stops a process, and --no-isolate is in this one" in ran.err
