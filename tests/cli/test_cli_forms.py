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


def test_a_mismatch_is_written_in_every_form_and_stdout_stays_what_it_was(folder):
    plain = run(WRONG)
    ran = run(f"{WRONG} --json out.json --junit out.xml --sarif out.sarif")
    assert (ran.code, ran.err, ran.first_mismatches) == (1, "", plain.first_mismatches)
    (line,) = ran.first_mismatches
    report = json.loads((folder / "out.json").read_text())
    cases = read_junit((folder / "out.xml").read_text()).findall(".//testcase")
    failures = [each for each in cases if len(each) and each[0].tag == "failure"]
    assert [each.get("name") for each in failures] == ["delta batch 0 head 1"] * 3
    assert failures[0][0].get("message") == line
    log = json.loads((folder / "out.sarif").read_text())
    assert_is_sarif(log)
    (result,) = log["runs"][0]["results"]
    assert line in result["message"]["text"].splitlines()
    place = result["locations"][0]["physicalLocation"]
    found = place["artifactLocation"]["uri"], place["region"]["startLine"]
    assert found == ("soft.py", report["target"]["line"])
    assert not [file for file in folder.iterdir() if file.name.startswith(".out")]


@pytest.mark.parametrize(
    ("words", "code", "flag", "file", "why"),
    [
        (RIGHT, 2, "--sarif", "here", "Is a directory"), (RAISING, 3, "--json", "here", "Is a directory"),
        (WRONG, 1, "--junit", "soft.py/out", "Not a directory"),
        (f"diff dQ soft.py:backward {SMALL}", 2, "--json", "no/such/out", "No such file or directory"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_told_once(folder, words, code, flag, file, why):
    (folder / "here").mkdir()
    ran = run(f"{words} {flag} {file}")
    assert ran.code == code
    assert ran.err.count(f"gradprobe: {flag} {file}: cannot be written, {why}") == 1
    assert (ran.err.count("cannot be written"), "Traceback" in ran.err) == (1, False)


def test_a_summary_that_cannot_be_written_turns_a_match_to_2():
    ran = run(f"{RIGHT} --github", GITHUB_STEP_SUMMARY="no/such/summary.md")
    assert (ran.code, ran.out[:6]) == (2, "MATCH ")
    why = "cannot be written, No such file or directory\n"
    assert ran.err == f"gradprobe: --github: the summary no/such/summary.md {why}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--json - --junit -", "--json and --junit both write to stdout"),
        ("--junit out --sarif ./out", "--junit and --sarif both write to ./out"),
    ],
)
def test_two_forms_in_one_place_are_refused_and_the_first_says_so(folder, words, said):
    ran = run(f"{RIGHT} {words}")
    assert (ran.code, ran.err) == (2, f"gradprobe: {said}\n  give each a file of its own\n")
    if "--json -" in words:
        assert json.loads(ran.out)["error"]["message"] == said
    else:
        assert read_junit((folder / "out").read_text()).find(".//error").get("message") == said


def test_what_the_parser_refuses_is_written_in_every_form(folder):
    words, message = "check --head 4", "No such option: --head"
    plain = run(words)
    ran = run(f"{words} --json=out.json --junit out.xml --sarif out.sarif --github")
    assert (plain.code, ran.code, ran.out) == (2, 2, "")
    (annotation,) = [line for line in ran.err.splitlines() if line.startswith("::")]
    assert ran.err.replace(f"{annotation}\n", "") == plain.err
    report = json.loads((folder / "out.json").read_text())
    assert (report["verdict"], report["error"]["kind"]) == ("error", "UsageFailure")
    assert report["error"]["message"].startswith(message)
    (error,) = read_junit((folder / "out.xml").read_text()).findall(".//error")
    assert error.get("message").startswith(message)
    (invocation,) = json.loads((folder / "out.sarif").read_text())["runs"][0]["invocations"]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (2, False)
    kind, properties, told = read(annotation)
    assert (kind, properties["title"][:5], message in told) == ("error", "GP025", True)


def test_a_stream_that_is_closed_is_no_failure(folder):
    words = f"-m gradprobe {RIGHT} --runs contiguous --github --junit out.xml"
    command = f"exec {shlex.join([sys.executable, *words.split()])} 1>&-"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, env=environment
    )
    assert (ran.returncode, ran.stdout, "Traceback" in ran.stderr) == (0, "", False)
    assert read_junit((folder / "out.xml").read_text()).find(".//testcase") is not None
