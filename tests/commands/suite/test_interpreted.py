"""Of kernels that were compiled for a GPU the causes and edits are those that a small case in the interpreter gives."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gradprobe.commands.suite import checking
from gradprobe.commands.suite.checking import Setting, with_interpreter
from gradprobe.commands.suite.interpreted import with_causes_of
from gradprobe.commands.suite.outcome import CheckOutcome
from gradprobe.commands.suite.plan import PlannedCheck
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.layout_run import Intermediate, Run
from gradprobe.model.report import CheckedTarget, Diagnosis, Report
from gradprobe.processes import TaskResult
from tests.cases import softmax_case

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "delta.py"
REQUEST = CheckRequest(
    f"{EXAMPLE}:delta", None, None, {"batch": 1, "heads": 8, "seqlen": 16, "device": "cuda"}
)
OTHER = Diagnosis("compiler/delta", "COMP", "delta is wrong", 0.6)


def report_of(*wrong, diagnoses=(OTHER,), backend="triton", device="cuda"):
    how = {"status": "mismatch", "source": "exported"}
    found = tuple(Intermediate(name=name, **how) for name in wrong)
    run = Run(layout="contiguous", verdict="mismatch", intermediates=found)
    return Report(
        verdict="mismatch", target=CheckedTarget(name=REQUEST.target, backend=backend),
        case=replace(softmax_case(), device=device), runs=(run,), diagnoses=diagnoses,
        known=("what the large case shows",),
    )  # fmt: skip


def interpreted(report, budget=20):
    check, outcome = PlannedCheck("", REQUEST), CheckOutcome(REQUEST, report)
    return with_interpreter(check, outcome, Setting(fix_budget=budget)).report


def test_cause_line_and_edit_are_those_of_a_small_case_in_the_interpreter():
    report = interpreted(report_of("delta", "dQ"))
    (cause,) = report.causes
    assert (cause.fault, bool(cause.where)) == ("stride/do-head", True)
    words = "where the same case with --heads 2 goes wrong in the same way"
    assert cause.evidence[-1] == f"seen in Triton's interpreter, {words}"
    head = "in Triton's interpreter, with it all matches: contiguous"
    assert cause.edit.words.startswith(head)
    assert report.known == ()


@pytest.mark.parametrize("changes", [{"backend": "cuda"}, {"device": "cpu"}, {"budget": 0}])
def test_nothing_is_run_again_for_other_backends_the_cpu_and_no_budget(changes):
    budget = changes.pop("budget", 20)
    report = report_of("delta", **changes)
    assert interpreted(report, budget) is report


def test_the_small_case_sees_no_gpu(monkeypatch):
    """A library may take one, and a process that holds one cannot fork."""
    seen = []
    visible = lambda: os.environ["CUDA_VISIBLE_DEVICES"]  # noqa: E731
    each = lambda _, __, items, **___: seen.append(visible()) or [TaskResult(items[0], 0)]  # noqa: E731
    monkeypatch.setattr(checking, "run_each", each)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    interpreted(report_of("dQ"))
    assert (seen, visible()) == ([""], "1")


SEEN = Diagnosis("factor/dQ", "A", "dQ lacks the scale", 1.0)
GUESSED = Diagnosis("factor/P", "A", "P has a factor", 1.0)
RACE = Diagnosis("race/dK", "RACE", "dK differs from call to call", 1.0)


@pytest.mark.parametrize(
    ("here", "there", "own", "told"),
    [
        (("dQ",), ("dQ",), GUESSED, ["factor/dQ"]),
        (("dQ",), ("dQ", "dK"), GUESSED, ["factor/dQ"]),
        (("dQ", "dV"), ("dQ",), GUESSED, ["factor/dQ", "factor/P"]),
        (("dQ",), ("dQ",), RACE, ["factor/dQ", "race/dK"]),
        (("dK",), ("dQ", "dK"), GUESSED, ["factor/P"]),
        (("dQ",), (), GUESSED, ["factor/P"]),
    ],
)
def test_a_cause_of_the_large_case_stays_where_the_small_one_does_not_go_wrong_as_it_does(
    here, there, own, told
):
    large = report_of(*here, diagnoses=(own,))
    other = report_of(*there, diagnoses=(SEEN,) if there else ())
    found = with_causes_of(large, PlannedCheck("", REQUEST), other)
    assert [one.fault for one in found.causes] == told
