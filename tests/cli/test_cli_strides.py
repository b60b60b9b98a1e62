"""`gradprobe strides` as it is typed: what is printed and written, and the exit codes."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from tests.cli.command import run
from tests.commands.strides.written import write

SIZE = "--seqlen 20 --head-dim 8 --heads 2"


def strides(folder, name, more="", **environment):
    return run(f"strides {write(folder, name)} --fast {SIZE} {more}", **environment)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """What a target that reads dO with q's strides over heads came to on 80 columns, and the folder of its files."""
    folder = tmp_path_factory.mktemp("wrong")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        forms = "--json r.json --junit j.xml --sarif s.json --github"
        return strides(folder, "do_by_q_heads", forms, COLUMNS="80", NO_COLOR="1"), folder


def test_a_match_says_in_how_many_layouts_and_lists_them(tmp_path):
    ran = strides(tmp_path, "right")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert " ".join(lines[0].split())[:5] == "MATCH"
    assert "right in 18 layouts, 18 of them bit for bit as when contiguous" in " ".join(
        ran.out.split()
    )
    row = next(line for line in lines if line.startswith("  all "))
    assert row.split() == ["all", *["="] * 8]
    assert "      =  torch.cat of rows, its backward" in lines
    assert "  = right, bit for bit   blank: not tried" in lines
    assert lines[-1].startswith("  again: gradprobe strides ")


def test_a_mismatch_has_the_verdict_first_then_the_place_then_the_strides_that_must_be_equal(wrong):
    ran, _ = wrong
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0].startswith("MISMATCH  ")
    assert "right when contiguous" in " ".join(ran.out.split("FIRST")[0].split())
    places = [
        at
        for at, line in enumerate(lines)
        if line.startswith("FIRST MISMATCH dQ batch=0 head=1 row=0 col=0")
    ]
    (reason,) = [
        at
        for at, line in enumerate(lines)
        if line == "  wrong only when do.stride(1) != q.stride(1)"
    ]
    (cause,) = [
        at
        for at, line in enumerate(lines)
        if line.startswith("CAUSE  dO is read with q's head stride")
    ]
    assert len(places) == 1
    assert (
        places[0]
        < cause
        < reason
        < next(at for at, line in enumerate(lines) if "the others contiguous" in line)
    )


def test_every_line_fits_the_terminal_but_for_the_greppable_one_and_the_one_that_repeats(wrong):
    assert_fits(*wrong, 80)


@pytest.mark.nightly
def test_every_line_fits_a_wide_terminal(tmp_path):
    assert_fits(strides(tmp_path, "do_by_q_heads", COLUMNS="120", NO_COLOR="1"), tmp_path, 120)


def assert_fits(ran, folder, columns):
    assert "\x1b" not in ran.out
    long = [line for line in ran.out.splitlines() if len(line) > columns]
    free = ("FIRST MISMATCH", "  again:")
    assert [line for line in long if not line.startswith(free) and str(folder) not in line] == []


def test_refusals_are_told_with_their_layouts(tmp_path):
    refused = strides(tmp_path, "refuses_a_transposed_do")
    assert refused.code == 0
    assert "refused in blhd, packed, distinct and 5 more" in " ".join(refused.out.split())
    assert "dO has strides" in " ".join(refused.out.split())


@pytest.mark.nightly
def test_crashes_are_told_with_their_layouts_and_exit_3(tmp_path):
    crashed = strides(tmp_path, "crash_where_do_alone_is_transposed")
    assert crashed.code == 3
    assert crashed.out.startswith("NOT RUN  ")
    assert "killed by SIGSEGV (segmentation fault)" in " ".join(crashed.out.split())


@pytest.mark.nightly
def test_json_on_stdout_stands_there_alone(tmp_path):
    ran = strides(tmp_path, "do_by_q_heads", "--json -")
    assert (ran.code, json.loads(ran.out)["verdict"]) == (1, "mismatch")


def test_every_form_is_written(wrong):
    ran, folder = wrong
    junit, sarif = folder / "j.xml", folder / "s.json"
    assert ran.code == 1
    document = json.loads((folder / "r.json").read_text())
    assert (document["verdict"], len(document["runs"])) == ("mismatch", 18)
    assert (
        document["strides"]["culprits"][0]["words"] == "wrong only when do.stride(1) != q.stride(1)"
    )
    cases = ElementTree.parse(junit).getroot().iter("testcase")
    failing = {
        case.get("classname").rpartition(".")[2]
        for case in cases
        if case.find("failure") is not None
    }
    assert "distinct" in failing
    assert "contiguous" not in failing
    assert {result["ruleId"] for result in json.loads(sarif.read_text())["runs"][0]["results"]} >= {
        "GP001",
        "GP004",
    }
    assert document["diagnoses"][0]["fault"] == "stride/do-head"
    assert "::error " in ran.err


def test_what_contradicts_a_survey_is_refused_and_a_target_that_is_not_there_too():
    for words, message in (
        ("strides lazy --layout do=blhd", "--layout: strides tries every layout"),
        ("strides lazy --runs distinct", "--runs: strides tries every layout"),
        ("strides lazy --repeat 2", "--repeat: strides runs each layout as often as it needs"),
        ("strides lazy --inputs real.pt", "--inputs: strides tries every layout"),
        ("strides nowhere", "target 'nowhere' is neither a built-in"),
        ("strides lazy --timeout 0", "--timeout must be seconds above 0"),
    ):
        ran = run(words)
        assert (ran.code, ran.out) == (2, ""), words
        assert message in ran.err


def test_a_file_that_cannot_be_written_is_said_once_and_before_anything_is_tried(tmp_path):
    ran = strides(tmp_path, "right", f"--json {tmp_path / 'nowhere' / 'r.json'}")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("cannot be written") == 1


def configured(folder, *names):
    """Writes a project of these targets; of one, `raising`, that ends in an error."""
    (folder / "raising.py").write_text("def backward(q, k, v, do):\n    raise KeyError('a slip')\n")
    targets = [f"{name}.py:backward" for name in names]
    (folder / "pyproject.toml").write_text(
        f'[tool.gradprobe]\n{targets = }\nlayouts = ["contiguous"]\n'
    )


def test_of_several_targets_each_that_cannot_be_surveyed_is_one_of_the_reports(
    tmp_path, monkeypatch
):
    configured(tmp_path, "raising", "nowhere")
    monkeypatch.chdir(tmp_path)
    ran = run(f"strides --fast {SIZE} --json all.json --junit all.xml --sarif all.sarif")
    assert (ran.code, ran.out) == (3, "")
    assert "target 'raising.py:backward' raised KeyError" in ran.err
    assert "there is no file nowhere.py" in ran.err
    reports = json.loads((tmp_path / "all.json").read_text())["reports"]
    assert [(report["target"]["name"], report["verdict"], report["error"]["kind"]) for report in reports] == [
        ("raising.py:backward", "error", "TargetFailure"), ("nowhere.py:backward", "error", "UsageFailure"),
    ]  # fmt: skip
    assert [report["reproduce"].split()[2] for report in reports] == [
        "raising.py:backward",
        "nowhere.py:backward",
    ]
    suites = ElementTree.parse(tmp_path / "all.xml").getroot().findall("testsuite")
    assert [suite.get("errors") for suite in suites] == ["1", "1"]
    shown = run("show all.json")
    assert (shown.code, shown.out) == (3, "")
    assert shown.err in ran.err
    sarif = (tmp_path / "all.sarif").read_text()
    assert "raising.py" in sarif
    assert "nowhere.py" in sarif


@pytest.mark.nightly
def test_the_configured_targets_are_tried_and_written_together(tmp_path, monkeypatch):
    for name in ("right", "do_by_q_heads"):
        write(tmp_path, name)
    configured(tmp_path, "right", "raising", "do_by_q_heads")
    monkeypatch.chdir(tmp_path)
    ran = run(f"strides --fast {SIZE} --json all.json")
    assert ran.code == 1
    assert "3 targets" in ran.err
    assert "layouts" not in ran.err
    document = json.loads((tmp_path / "all.json").read_text())
    assert (document["schema"], document["verdict"]) == ("gradprobe.reports/2", "mismatch")
    assert [report["verdict"] for report in document["reports"]] == ["match", "error", "mismatch"]
