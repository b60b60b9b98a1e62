"""--junit, --sarif and --github on real checks: what is written where, what cannot be, and the exit code."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from tests.cli.command import ROOT, SMALL, run, run_process
from tests.planted.lazy_faults import HISTORICAL
from tests.planted.planting import KERNELS
from tests.render.test_github import read, table
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
    return [line for line in words.splitlines() if "seconds: " not in line and "total" not in line]


def test_a_mismatch_is_written_in_every_form_and_stdout_stays_what_it_was(folder):
    plain = run(WRONG)
    ran = run(f"{WRONG} --json out.json --junit out.xml --sarif out.sarif")
    assert (ran.code, ran.err) == (1, "")
    assert lasting(ran.out) == lasting(plain.out)
    (line,) = ran.first_mismatches
    report = json.loads((folder / "out.json").read_text())
    failures = read_junit((folder / "out.xml").read_text()).findall(".//failure")
    assert failures[0].get("message") == line
    assert {failure.get("type") for failure in failures} == {"mismatch"}
    log = json.loads((folder / "out.sarif").read_text())
    assert_is_sarif(log)
    (result,) = log["runs"][0]["results"]
    assert line in result["message"]["text"].splitlines()
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "soft.py"
    assert place["region"]["startLine"] == report["target"]["line"]
    assert sorted(file.name for file in folder.iterdir() if file.name.startswith(".out")) == []


def test_a_junit_case_stands_for_every_head_of_every_intermediate_and_layout():
    root = read_junit(run(f"{WRONG} --junit -").out)
    heads = [one.get("name") for one in root.findall(".//testcase") if " head " in one.get("name")]
    assert len(heads) == 3 * 7 * 2  # contiguous, distinct, dO expanded
    skipped = [
        one.get("name")
        for one in root.findall(".//testcase")
        if len(one) and one[0].tag == "skipped"
    ]
    assert skipped == ["LSE", "O"] * 3
    failing = [
        one.get("name")
        for one in root.findall(".//testcase")
        if len(one) and one[0].tag == "failure"
    ]
    assert failing == ["delta batch 0 head 1"] * 3


@pytest.mark.parametrize(
    ("flag", "reader"), [("--junit", read_junit), ("--sarif", json.loads), ("--json", json.loads)]
)
@pytest.mark.parametrize(
    ("words", "code"), [(WRONG, 1), (RAISING, 3), ("check --heads 0", 2), ("check --heads x", 2)]
)
def test_a_form_on_stdout_stands_there_alone(flag, reader, words, code):
    ran = run(f"{words} {flag} -")
    assert ran.code == code
    assert reader(ran.out) is not None
    assert ("FIRST MISMATCH delta" in ran.out) == (code == 1 and flag != "--json")


def test_annotations_go_to_stderr_and_leave_json_on_stdout_pure():
    ran = run(f"{WRONG} --json - --github")
    assert ran.code == 1
    report = json.loads(ran.out)
    ((kind, properties, message),) = annotations(ran)
    assert (kind, properties["file"], properties["title"]) == (
        "error",
        "soft.py",
        "GP001 delta is wrong by itself",
    )
    assert int(properties["line"]) == report["target"]["line"]
    assert "FIRST MISMATCH delta batch=0 head=1 row=7 col=- " in message


def test_a_match_is_annotated_with_nothing_and_summed_up_in_one_table(folder):
    summary = folder / "summary.md"
    summary.write_text("before\n")
    ran = run(f"{RIGHT} --github", GITHUB_STEP_SUMMARY=str(summary))
    assert (ran.code, ran.err) == (0, "")
    text = summary.read_text()
    assert text.startswith("before\n### gradprobe: 1 check, 1 right\n")
    assert [row[0] for row in table(text)[2:]] == ["match"]


@pytest.mark.parametrize("room", [10, 400])
def test_a_summary_that_the_step_has_filled_is_not_overfilled(folder, room):
    summary = folder / "summary.md"
    summary.write_text("x" * (2**20 - room))
    run(f"{WRONG} --github", GITHUB_STEP_SUMMARY=str(summary))
    assert 2**20 - room <= summary.stat().st_size <= 2**20
    assert ("left out" in summary.read_text()) == (room == 400)


def test_paths_are_told_from_the_checkout_where_the_command_runs_in_a_folder_of_it(folder):
    for workspace, file in (
        (folder.parent, f"{folder.name}/soft.py"),
        (folder, "soft.py"),
        ("/elsewhere", "soft.py"),
    ):
        ran = run(f"{WRONG} --github --sarif out.sarif", GITHUB_WORKSPACE=str(workspace))
        assert annotations(ran)[0][1]["file"] == file
        result, *_ = json.loads((folder / "out.sarif").read_text())["runs"][0]["results"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == file


@pytest.mark.parametrize("flag", ["--json", "--junit", "--sarif"])
@pytest.mark.parametrize(
    ("words", "code"), [(RIGHT, 2), (WRONG, 1), (RAISING, 3), ("check --heads x", 2)]
)
@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("no/such/out", "No such file"),
        ("soft.py/out", "Not a directory"),
        ("here", "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_after_the_verdict_and_turns_a_match_to_2(
    folder, flag, words, code, file, why
):
    (folder / "here").mkdir()
    ran = run(
        f"{words} {flag} {file} --sarif fine.sarif"
        if flag != "--sarif"
        else f"{words} {flag} {file}"
    )
    assert ran.code == code
    assert f"gradprobe: {flag} {file}: cannot be written, {why}" in ran.err
    assert ran.err.count("cannot be written") == 1
    assert "Traceback" not in ran.err
    assert ran.out.startswith({RIGHT: "MATCH ", WRONG: "MISMATCH "}.get(words, ""))
    assert (
        flag == "--sarif" or json.loads((folder / "fine.sarif").read_text())["version"] == "2.1.0"
    )


def test_a_file_that_a_close_up_cannot_write_is_told_once():
    ran = run(f"diff dQ soft.py:backward {SMALL} --json no/such/out")
    assert ran.code == 2
    assert (
        ran.err == "gradprobe: --json no/such/out: cannot be written, No such file or directory\n"
    )


def test_a_summary_that_cannot_be_written_turns_a_match_to_2():
    ran = run(f"{RIGHT} --github", GITHUB_STEP_SUMMARY="no/such/summary.md")
    assert ran.code == 2
    assert (
        ran.err
        == "gradprobe: --github: the summary no/such/summary.md cannot be written, No such file or directory\n"
    )
    assert ran.out.startswith("MATCH ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--json - --junit -", "--json and --junit both write to stdout"),
        ("--junit out --sarif ./out", "--junit and --sarif both write to ./out"),
        ("--json - --junit out --sarif -", "--json and --sarif both write to stdout"),
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("check --heads four", "Invalid value for '--heads'"),
        ("check --head 4", "No such option: --head"),
        ("check lazy more", "Got unexpected extra argument"),
        ("chek", "No such command 'chek'"),
    ],
)
def test_what_the_parser_refuses_is_written_in_every_form_with_the_words_on_stderr_as_ever(
    folder, words, message
):
    plain = run(words)
    ran = run(f"{words} --json=out.json --junit out.xml --sarif out.sarif --github")
    assert (plain.code, ran.code, ran.out) == (2, 2, "")
    assert (
        "".join(line for line in ran.err.splitlines(True) if not line.startswith("::")) == plain.err
    )
    report = json.loads((folder / "out.json").read_text())
    assert (report["verdict"], report["error"]["kind"]) == ("error", "UsageFailure")
    assert report["error"]["message"].startswith(message)
    assert (
        read_junit((folder / "out.xml").read_text())
        .find(".//error")
        .get("message")
        .startswith(message)
    )
    log = json.loads((folder / "out.sarif").read_text())
    assert_is_sarif(log)
    (invocation,) = log["runs"][0]["invocations"]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (2, False)
    assert message in invocation["toolConfigurationNotifications"][0]["message"]["text"]
    ((kind, properties, told),) = annotations(ran)
    assert (kind, properties["title"][:5]) == ("error", "GP025")
    assert message in told


@pytest.mark.parametrize(
    "words", ["init --json out", "check --heads x -- --json out", "check --json", "-- --json out"]
)
def test_no_form_is_written_that_the_command_line_does_not_ask_for(folder, words):
    before = sorted(folder.iterdir())
    assert run(words).code == 2
    assert sorted(folder.iterdir()) == before


def test_a_failure_names_its_target_in_every_form(folder):
    ran = run(f"{RAISING} --json out.json --junit out.xml --sarif out.sarif --github")
    assert ran.code == 3
    assert json.loads((folder / "out.json").read_text())["target"]["name"] == "soft.py:raising"
    (case,) = read_junit((folder / "out.xml").read_text()).findall(".//testcase")
    assert (case.get("classname"), case[0].get("type")) == ("soft.py:raising", "Refusal")
    (result,) = json.loads((folder / "out.sarif").read_text())["runs"][0]["results"]
    assert (
        result["ruleId"],
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
    ) == (
        "GP022",
        "soft.py",
    )
    assert annotations(ran)[0][1] == {
        "file": "soft.py",
        "title": "GP022 The target cannot be run, or returns what it may not return",
    }


def test_a_refused_layout_is_skipped_with_the_targets_words(folder):
    ran = run(f"check soft.py:contiguous_only {SMALL} --junit out.xml --github")
    assert (ran.code, ran.err) == (0, "")
    skipped = [
        one
        for one in read_junit((folder / "out.xml").read_text()).findall(".//skipped")
        if one.get("type") == "refused"
    ]
    assert {one.get("message") for one in skipped} == {
        "AssertionError: q and do must be contiguous"
    }
    assert len(skipped) == 3


def test_a_planted_fault_in_a_workflow_is_annotated_at_its_kernels_and_summed_up(folder):
    """dO read with Q's head stride, in a step as GitHub runs one: streams in pipes, its variables set."""
    (folder / "sub é").mkdir()
    file = folder / "sub é" / "planted.py"
    file.write_text(HISTORICAL.plant((KERNELS / "lazy.py").read_text()))
    (folder / "link.py").symlink_to(file)
    summary = folder / "summary.md"
    words = f"check link.py:lazy_intermediates {SMALL} --github --json - --junit out.xml --sarif out.sarif"
    ran = run_process(
        words, GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(folder), GITHUB_STEP_SUMMARY=str(summary)
    )
    assert ran.code == 1
    report = json.loads(ran.out)
    kernels = {kernel["name"]: kernel["line"] for kernel in report["target"]["kernels"]}
    errors = [
        (properties, message) for kind, properties, message in annotations(ran) if kind == "error"
    ]
    assert len(annotations(ran)) == len(ran.err.splitlines())
    assert {properties["file"] for properties, _ in errors} == {"sub é/planted.py"}
    seen = [
        properties["title"] for properties, _ in errors if properties["title"].startswith("GP010 ")
    ]
    assert {title.partition(": ")[2].partition(" in ")[0] for title in seen} == {"do"}
    (cause,) = (properties for properties, _ in errors if properties["title"].startswith("GP004 "))
    assert int(cause["line"]) == report["diagnoses"][0]["where"][0]["line"]
    errors = [error for error in errors if error[0]["title"] not in (*seen, cause["title"])]
    assert [properties["title"] for properties, _ in errors[:2]] == [
        "GP001 dP is wrong by itself", "GP001 dV is wrong by itself",
    ]  # fmt: skip
    lines = {where["kernel"]: where["line"] for where in report["diagnoses"][0]["where"]}
    assert int(errors[0][0]["line"]) in lines.values()
    assert int(errors[1][0]["line"]) == lines["lazy_dkdv_kernel"] > kernels["lazy_dkdv_kernel"]
    assert "Cause: dO is read with q's head stride (explains 100% of what is wrong)" in errors[0][1]
    assert all(f"sub é/planted.py:{line} {name}" in errors[0][1] for name, line in kernels.items())
    failures = read_junit((folder / "out.xml").read_text()).findall(".//failure")
    assert {one.get("type") for one in failures} >= {"mismatch", "inherited"}
    log = json.loads((folder / "out.sarif").read_text())
    assert_is_sarif(log)
    assert log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"][
        "uri"
    ] == ("sub%20%C3%A9/planted.py")
    errors = [row[2] for row in table(summary.read_text())[2:] if row[0] == "**error**"]
    assert any(found.startswith("Cause&#58; dO is read with q's head stride") for found in errors)
    assert any(found.startswith("dP is wrong by itself&#58;") for found in errors)


@pytest.mark.parametrize(
    ("closed", "out"), [("1", ""), pytest.param("2", "MISMATCH ", marks=pytest.mark.nightly)]
)
def test_a_stream_that_is_closed_is_no_failure(folder, closed, out):
    words = [
        sys.executable,
        "-m",
        "gradprobe",
        *f"{WRONG} --runs contiguous --github --junit out.xml".split(),
    ]
    command = f"exec {shlex.join(words)} {closed}>&-"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stdout.startswith(out)
    assert "::error" not in ran.stdout
    assert "Traceback" not in ran.stderr
    assert read_junit((folder / "out.xml").read_text()).find(".//failure") is not None
