import json
from pathlib import Path

import pytest

from gradprobe.commands.kernel_reading import Inquiry, render_lint
from gradprobe.model.report import CauseLine
from gradprobe.source.lint import LintFinding
from tests.cli.command import run
from tests.planted.lazy_faults import HISTORICAL
from tests.planted.planting import KERNELS


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file with dO advanced by Q's head stride in three kernels, in the current folder."""
    (tmp_path / "my_lazy.py").write_text(HISTORICAL.plant((KERNELS / "lazy.py").read_text()))
    monkeypatch.chdir(tmp_path)
    return "my_lazy.py"


def test_the_three_lines_of_the_dO_fault_stand_with_the_edit_and_in_json(mine):
    ran = run(f"lint {mine} --json out.json")
    assert (ran.code, "\x1b" in ran.out) == (1, False)
    lines = ran.out.splitlines()
    assert lines[0] == "FINDINGS  3 wrong strides (my_lazy.py)"
    places = [line for line in lines if line.startswith("my_lazy.py:")]
    assert places == [
        "my_lazy.py:145  lazy_preprocess_kernel  foreign",
        "my_lazy.py:203  lazy_dq_kernel  foreign",
        "my_lazy.py:275  lazy_dkdv_kernel  foreign",
    ]
    at = lines.index(places[1])
    assert lines[at + 1] == "  do_ptr += b * stride_dob + h * stride_qh"
    assert lines[at + 3] == "  fix: stride_qh -> stride_doh"
    assert "  read 4 kernels by the names of their parameters; no kernel was run" in lines
    document = json.loads(Path("out.json").read_text())
    assert (document["schema"], document["verdict"]) == ("gradprobe.lint/2", "findings")
    found = [(finding["line"], finding["fix"]) for finding in document["findings"]]
    assert found == [(line, "stride_qh -> stride_doh") for line in (145, 203, 275)]
    assert document["kernels"] == [
        "lazy_forward_kernel", "lazy_preprocess_kernel", "lazy_dq_kernel", "lazy_dkdv_kernel",
    ]  # fmt: skip


def test_many_findings_take_24_rows_and_the_rest_are_counted():
    where = CauseLine("/f.py", 3, "do_ptr += h * stride_qh", 14, 9, "kernel", "q's head stride")
    many = (LintFinding(where, "do", "q", "h"),) * 20
    inquiry = Inquiry("f.py", many, ("kernel",), tuple(map(str, range(60))))
    lines = [line.plain for line in render_lint(inquiry, 80)]
    assert len(lines) <= 24
    assert "  and 17 wrong strides more: --json FILE has all" in lines
