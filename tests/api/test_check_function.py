import doctest
import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gradprobe
from gradprobe.api.check_function import OWN
from gradprobe.api.shown_report import shown
from gradprobe.cli import option_rows as rows
from gradprobe.model.failures import TargetFailure, UsageFailure
from gradprobe.model.report import failed_report

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8, "fix_budget": 0}


def soft(q, k, v, do, scale):
    p = torch.softmax(q.float() @ k.mT.float() * scale, -1)
    return {"P": p, "dV": p.mT @ do.float()}


def without_scale(q, k, v, do):
    p = torch.softmax(q @ k.mT, -1)
    return {"P": p, "dV": p.mT @ do}


def test_the_other_arguments_are_the_command_s_with_its_defaults():
    shared = rows.SHARED.keys() - {"traceback", "details"}
    assert OWN.keys() == (shared | {"against", "max_memory"}) - {"shrink_budget"}
    assert OWN["fix_budget"] == rows.FIX_BUDGET


def test_importing_the_package_imports_nothing_that_takes_long():
    heavy = {"torch", "triton", "numpy", "msgspec", "rich", "jinja2", "typing"}
    script = f"import sys; before = set(sys.modules); import gradprobe; print({heavy} & (set(sys.modules) - before))"
    assert subprocess.check_output([sys.executable, "-S", "-c", script], cwd=ROOT) == b"set()\n"


def test_a_function_s_report_tells_itself_and_is_saved_in_each_form(tmp_path):
    report = gradprobe.check(without_scale, **SMALL)
    assert isinstance(report, gradprobe.Report)
    assert report.verdict == "mismatch"
    assert repr(report).startswith("MISMATCH  P is the first wrong intermediate")
    assert "FIRST MISMATCH P batch=0 head=0 row=0" in str(report)
    assert "<script" not in report._repr_html_()
    for name in ("r.json", "r.html", "r.md", "r.xml", "r.sarif"):
        report.save(tmp_path / name)
        assert "FIRST MISMATCH" in (tmp_path / name).read_text() or name in ("r.json", "r.md")
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "mismatch"
    (log,) = json.loads((tmp_path / "r.sarif").read_text())["runs"]
    assert log["invocations"][0]["exitCode"] == 1
    report.save(tmp_path / "R.JSON")
    with pytest.raises(UsageFailure, match="no form for 'r.txt'"):
        report.save(tmp_path / "r.txt")


def test_a_right_function_of_this_very_test_matches_and_no_command_line_repeats_it():
    def inside(q, k, v, do, scale):
        return soft(q, k, v, do, scale)

    report = gradprobe.check(inside, dtype=torch.bfloat16, layout={"do": "blhd"}, **SMALL)
    assert (report.verdict, report.case.dtype, report.reproduce) == ("match", "bfloat16", "")
    assert repr(report).startswith("MATCH")
    with pytest.raises(UsageFailure, match="isolate=True"):
        gradprobe.check(inside, isolate=True, **SMALL)


def test_two_functions_stand_side_by_side_and_a_report_may_stand_for_one():
    report = gradprobe.check(without_scale, against=soft, **SMALL)
    assert (report.verdict, report.against.report.verdict) == ("mismatch", "match")
    assert {one.name for one in report.against.differences} == {"P", "dV"}
    again = gradprobe.check(soft, against=report, **SMALL)
    assert (again.verdict, again.against.name) == ("match", report.name)
    with pytest.raises(UsageFailure, match="this is the target itself"):
        gradprobe.check(soft, against=soft, **SMALL)


def test_a_function_that_raises_is_a_report_and_a_wrong_option_is_none():
    def broken(q, k, v, do):
        raise RuntimeError("no such luck")

    report = gradprobe.check(broken, **SMALL)
    assert report.verdict == "error"
    line = 'raise RuntimeError("no such luck")'
    assert line in str(report)
    assert html.escape(line) in report._repr_html_().replace("&#34;", "&quot;")
    with pytest.raises(UsageFailure, match="cannot take --softcap"):
        gradprobe.check(soft, softcap=5.0, **SMALL)
    with pytest.raises(UsageFailure, match="timeout"):
        gradprobe.check(soft, timeout=5, **SMALL)
    hostile = TargetFailure("<script>alert(1)</script>", "a < b")
    page = shown(failed_report(hostile, "gradprobe check '<b>'", "<i>"))._repr_html_()
    assert ("<script" in page, "&lt;script&gt;" in page) == (False, True)


@pytest.mark.parametrize(("target", "options", "kind", "words"), [
    ("lazy", {"against": "flahs"}, UsageFailure, "there is no such target"),
    ("lasy", {}, UsageFailure, "did you mean 'lazy'?"),
    ("lazy", {"max_memory": "3 apples"}, UsageFailure, "max"),
    ("lazy", {"haeds": 4}, TypeError, "did you mean heads"),
    ("lazy", {"heads": "four"}, TypeError, "heads must be a whole number, got 'four'"),
])  # fmt: skip
def test_what_is_mistyped_is_refused_before_anything_runs(
    target, options, kind, words, monkeypatch
):
    monkeypatch.setattr("gradprobe.api.check_function.check_each", None)
    with pytest.raises(kind) as refused:
        gradprobe.check(target, **options)
    way_out = getattr(refused.value, "way_out", "")
    assert words in f"{refused.value}\n{way_out}"
    if sys.version_info >= (3, 11) and way_out:  # which prints notes
        assert refused.value.__notes__ == [way_out]


@pytest.mark.nightly
def test_the_examples_of_the_page_give_what_it_shows(tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "api.md").read_text()
    blocks = re.findall(r"```pycon\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "docs/api.md", None, None)
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    said = []
    runner.run(test, out=said.append)
    assert not runner.summarize(verbose=False).failed, "".join(said)
