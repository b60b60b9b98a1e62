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


def test_a_match_says_in_how_many_layouts(tmp_path):
    ran = strides(tmp_path, "right")
    assert (ran.code, ran.err, ran.out[:7]) == (0, "", "MATCH  ")
    lines = ran.out.splitlines()
    assert "in 15 layouts (float32" in " ".join(ran.out.split())
    assert lines[-1].startswith("  again: gradprobe strides ")


def test_a_mismatch_has_the_verdict_first_then_the_place_the_cause_and_the_tensors(wrong):
    ran, _ = wrong
    assert (ran.code, "\x1b" in ran.out) == (1, False)
    lines = ran.out.splitlines()
    assert lines[0].startswith("MISMATCH  ")
    assert "; right in contiguous, " in " ".join(ran.out.split("CAUSE")[0].split())
    beginnings = (
        "FIRST MISMATCH dQ batch=0 head=1 row=0 col=0", "  wrong rows: ", "CAUSE  dO is read with q's head stride",
    )  # fmt: skip
    places = [
        [at for at, line in enumerate(lines) if line.startswith(one)] for one in beginnings
    ]
    assert sorted(places) == places


def test_every_form_is_written(wrong):
    ran, folder = wrong
    document = json.loads((folder / "r.json").read_text())
    assert (document["verdict"], len(document["runs"])) == ("mismatch", 15)
    verdicts = {run["layout"]: run["verdict"] for run in document["runs"]}
    assert (verdicts["do=distinct"], verdicts["blhd"]) == ("mismatch", "match")
    elements = [run["compared"]["elements"] for run in document["runs"]]
    assert document["compared"]["elements"] == sum(elements)
    assert document["diagnoses"][0]["fault"] == "stride/do-head"
    cases = ElementTree.parse(folder / "j.xml").getroot().iter("testcase")
    failing = {one.get("classname") for one in cases if one.find("failure") is not None}
    failing = {name.rpartition(".")[2] for name in failing}
    assert ("distinct" in failing, "contiguous" in failing) == (True, False)
    results = json.loads((folder / "s.json").read_text())["runs"][0]["results"]
    assert {result["ruleId"] for result in results} >= {"GP001", "GP004"}
    assert "::error " in ran.err


def test_each_target_that_cannot_be_surveyed_is_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raising.py").write_text(
        "def backward(q, k, v, do):\n    raise KeyError('a slip')\n"
    )
    names = ["raising.py:backward", "nowhere.py:backward"]
    (tmp_path / "pyproject.toml").write_text(
        f"[tool.gradprobe]\ntargets = {names}\nlayouts = ['blhd']\n"
    )
    ran = run(f"strides --fast {SIZE} --json all.json --junit all.xml")
    assert (ran.code, ran.out) == (3, "")
    assert "of pyproject.toml is in force\n" in ran.err
    assert "target 'raising.py:backward' raised KeyError" in ran.err
    assert "there is no file nowhere.py" in ran.err
    reports = json.loads((tmp_path / "all.json").read_text())["reports"]
    assert [(one["target"]["name"], one["verdict"]) for one in reports] == [
        (name, "error") for name in names
    ]
    suites = ElementTree.parse(tmp_path / "all.xml").getroot().findall("testsuite")
    assert [suite.get("errors") for suite in suites] == ["1", "1"]
