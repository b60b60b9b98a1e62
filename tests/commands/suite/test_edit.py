"""Of a kernel that is compiled for a GPU the edit is the one that a small case in the interpreter comes to."""

from dataclasses import replace
from pathlib import Path

import pytest

from gradprobe.commands.suite.checked import Checked, Planned
from gradprobe.commands.suite.checking import Setting, with_edit
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.report import CheckedTarget, Diagnosis, Report
from tests.cases import softmax_case

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "delta.py"
REQUEST = CheckRequest(f"{EXAMPLE}:delta", None, None, {"batch": 1, "heads": 2, "seqlen": 16, "device": "cuda"})
OTHER = Diagnosis("compiler/delta", "COMP", "delta is wrong", 0.6)


def with_edit_of(backend="triton", device="cuda", budget=20.0):
    case = replace(softmax_case(), device=device)
    report = Report(
        verdict="mismatch", target=CheckedTarget(name=REQUEST.target, backend=backend), case=case, diagnoses=(OTHER,)
    )
    checked = Checked(REQUEST, report, 1)
    return with_edit(Planned("", REQUEST), checked, Setting(fix_budget=budget)).report.diagnoses


def test_the_edit_of_the_interpreter_is_taken_and_says_where_it_was_run():
    first, *others = with_edit_of()
    assert (first.fault, others) == ("stride/do-head", [OTHER])
    assert first.edit.words.startswith("in Triton's interpreter, with it all matches: contiguous")
    assert "+    do_ptr += b * stride_dob + h * stride_doh" in first.edit.diff


@pytest.mark.parametrize("changes", [{"backend": "cuda"}, {"device": "cpu"}, {"budget": 0.0}])
def test_nothing_is_run_again_for_other_backends_the_cpu_and_no_budget(changes):
    assert with_edit_of(**changes) == (OTHER,)
