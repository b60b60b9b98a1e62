"""--junit, --sarif and --github on real checks: what is written where, what cannot be, and the exit code."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from tests.cli.command import ROOT, SMALL, run
from tests.render.test_github import read
from tests.render.written import assert_is_sarif, read_junit

WRONG = f"check soft.py:wrong_delta {SMALL}"
RIGHT = f"check soft.py:backward {SMALL}"
RAISING = f"check soft.py:raising {SMALL}"

pytestmark = pytest.mark.usefixtures("made_once")


@pytest.fixture(autouse=True)
def no_github(monkeypatch):
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


def annotations(ran):
    return [read(line) for line in ran.err.splitlines() if line.startswith("::")]


def lasting(words):
    """The lines of a console report but that of its seconds."""
    return [
        line for line in words.splitlines() if "seconds: " not in line and "total" not in line
    ]


def test_a_mismatch_is_written_in_every_form_and_stdout_stays_what_it_was(folder):
    plain = run(WRONG)
    ran = run(f"{WRONG} --json out.json --junit out.xml --sarif out.sarif")
    assert (ran.code, ran.err) == (1, "")
    assert lasting(ran.out) == lasting(plain.out)
    (line,) = ran.first_mismatches
    report = json.loads((folder / "out.json").read_text())
    cases = read_junit((folder / "out.xml").read_text()).findall(".//testcase")
    failures = [one for one in cases if len(one) and one[0].tag == "failure"]
    assert [one.get("name") for one in failures] == ["delta batch 0 head 1"] * 3
    assert failures[0][0].get("message") == line
    log = json.loads((folder / "out.sarif").read_text())
    assert_is_sarif(log)
    (result,) = log["runs"][0]["results"]
    assert line in result["message"]["text"].splitlines()
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "soft.py"
    assert place["region"]["startLine"] == report["target"]["line"]
    assert not [file for file in folder.iterdir() if file.name.startswith(".out")]


@pytest.mark.parametrize(
    ("words", "code", "flag", "file", "why"),
    [
        (RIGHT, 2, "--sarif", "here", "Is a directory"), (RAISING, 3, "--json", "here", "Is a directory"),
        (WRONG, 1, "--junit", "soft.py/out", "Not a directory"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_told_after_the_verdict_and_turns_a_match_to_2(
    folder, words, code, flag, file, why
):
    (folder / "here").mkdir()
    ran = run(f"{words} {flag} {file} --markdown fine.md")
    assert ran.code == code
    assert f"gradprobe: {flag} {file}: cannot be written, {why}" in ran.err
    assert ran.err.count("cannot be written") == 1
    assert "Traceback" not in ran.err
    assert ran.out.startswith({RIGHT: "MATCH ", WRONG: "MISMATCH "}.get(words, ""))
    assert (folder / "fine.md").read_text().startswith("### gradprobe: 1 check")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--json - --junit -", "--json and --junit both write to stdout"),
        ("--junit out --sarif ./out", "--junit and --sarif both write to ./out"),
    ],
)
def test_two_forms_in_one_place_are_refused_and_the_first_says_so(folder, words, said):
    ran = run(f"{RIGHT} {words}")
    assert ran.code == 2
    assert ran.err == f"gradprobe: {said}\n  give each a file of its own\n"
    if "--json -" in words:
        assert json.loads(ran.out)["error"]["message"] == said
    else:
        assert read_junit((folder / "out").read_text()).find(".//error").get("message") == said


def test_what_the_parser_refuses_is_written_in_every_form_with_the_words_on_stderr_as_ever(
    folder,
):
    words, message = "check --head 4", "No such option: --head"
    plain = run(words)
    ran = run(f"{words} --json=out.json --junit out.xml --sarif out.sarif --github")
    assert (plain.code, ran.code, ran.out) == (2, 2, "")
    told = [line for line in ran.err.splitlines(True) if not line.startswith("::")]
    assert "".join(told) == plain.err
    report = json.loads((folder / "out.json").read_text())
    assert (report["verdict"], report["error"]["kind"]) == ("error", "UsageFailure")
    assert report["error"]["message"].startswith(message)
    (error,) = read_junit((folder / "out.xml").read_text()).findall(".//error")
    assert error.get("message").startswith(message)
    (invocation,) = json.loads((folder / "out.sarif").read_text())["runs"][0]["invocations"]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (2, False)
    ((kind, properties, told),) = annotations(ran)
    assert (kind, properties["title"][:5], message in told) == ("error", "GP025", True)


def test_a_stream_that_is_closed_is_no_failure(folder):
    words = f"-m gradprobe {RIGHT} --runs contiguous --github --junit out.xml"
    command = f"exec {shlex.join([sys.executable, *words.split()])} 1>&-"
    ran = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "")
    assert "Traceback" not in ran.stderr
    assert read_junit((folder / "out.xml").read_text()).find(".//testcase") is not None
