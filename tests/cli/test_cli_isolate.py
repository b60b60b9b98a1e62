"""`check --isolate` and `--timeout`: the same report from a process of its own, and a crash that is an error."""

import json
import re

import pytest

from .command import SMALL, run, run_process

FATAL = """
import ctypes, os, time
def segfault(q, k, v, do, *, scale):
    ctypes.string_at(0)
def hangs(q, k, v, do, *, scale):
    time.sleep(600)
def leaves(q, k, v, do, *, scale):
    os._exit(0)
"""


def without_seconds(text):
    """The report without what two runs of one check differ in."""
    return re.sub(r"seconds:.*?total [\d.]+", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", ["backward", "doubled_dq"])
def test_the_report_and_the_exit_code_are_those_of_a_check_in_this_process(name):
    plain = run(f"check soft.py:{name} {SMALL} --json plain.json")
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
        ("segfault", "--isolate", "Crash", "crashed: killed by SIGSEGV (segmentation fault)"),
        ("leaves", "--isolate", "Crash", "crashed: ended with exit code 0 before it answered (os._exit?)"),
        ("hangs", "--timeout 1.5", "Timeout", "took too long: no answer within 1.5 s: stopped"),
    ],
)
def test_a_crash_exits_3_with_the_signal_by_name_and_an_error_report(name, flag, kind, words, folder):
    (folder / "fatal.py").write_text(FATAL)
    ran = run_process(f"check fatal.py:{name} {SMALL} {flag} --json report.json")
    assert (ran.code, ran.out) == (3, "")
    assert f"gradprobe: target 'fatal.py:{name}' {words}\n" in ran.err
    assert (f"in {name}" in ran.err) == (name != "leaves")
    document = json.loads((folder / "report.json").read_text())
    assert (document["verdict"], document["error"]["kind"]) == ("error", kind)
    assert document["reproduce"].endswith(" --isolate")


def test_what_a_target_prints_goes_to_stderr():
    ran = run_process(f"check soft.py:printing {SMALL} --isolate")
    assert ran.code == 0
    assert "the target speaks\n" in ran.err
    assert "speaks" not in ran.out


def test_a_failure_is_told_as_in_this_process():
    for words in ("soft.py:raising", "soft.py:no_such", "soft.py:backward --kv-heads 5"):
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
