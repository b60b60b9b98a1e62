"""A survey keeps what came when a layout crashes the target or hangs, and says what happened."""

from dataclasses import replace

import pytest

from gradprobe.commands.strides.survey import survey
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.documents import document_of
from gradprobe.model.failures import TargetFailure
from tests.commands.strides.crashing import write as write_crashing
from tests.commands.strides.written import write

OPTIONS = {"batch": 2, "heads": 2, "seqlen": 20, "head_dim": 8}


def surveyed(word, timeout=None, **options):
    told = []
    request = CheckRequest(word, None, None, OPTIONS | options)
    given = frozenset(request.options)
    found = survey(
        request, "again", given=given, fast=True, timeout=timeout, told=told.append, echo=lambda text: None
    )  # fmt: skip
    return found, told


def test_a_right_target_is_a_match_and_something_is_told_after_every_layout(tmp_path):
    found, told = surveyed(write(tmp_path, "right"))
    assert (found.verdict, found.exit_code) == ("match", 0)
    assert [len(each.results) for each in told] == list(range(1, len(found.plan.trials) + 1))
    assert {result.how for result in found.results} <= {"same bits", "within budget"}
    assert document_of(found.report)["verdict"] == "match"


def test_a_crash_and_a_hang_in_one_layout_each_are_errors_there_and_the_others_are_tried(
    tmp_path,
):
    found, _ = surveyed(write(tmp_path, "crash_in_one_layout_and_hang_in_another"), timeout=3)
    assert (found.verdict, found.exit_code) == ("error", 3)
    late = ("distinct", "distinct-unit", "packed qkv, dO a [B, L, H, D] view")
    assert {result.trial.title: result.words for result in found.having("error")} == {
        **dict.fromkeys(("do=blhd", "do=distinct"), "killed by SIGSEGV (segmentation fault)"),
        **dict.fromkeys(late, "no answer within 3 s: stopped"),
    }
    assert len(found.having("match")) == len(found.plan.trials) - 5


def test_a_target_that_crashes_on_contiguous_tensors_is_a_failure(tmp_path):
    with pytest.raises(TargetFailure, match="crashed on contiguous tensors: killed by SIGSEGV"):
        surveyed(write(tmp_path, "crash_always"))


@pytest.mark.nightly
def test_a_layout_that_costs_the_device_is_a_crash_with_the_line_that_the_interpreter_names(
    tmp_path,
):
    word = write_crashing(tmp_path, "narrow", losing=True)
    found, _ = surveyed(word)
    (crashed,) = [result for result in found.results if result.verdict == "error"]
    words = "CUDA error: an illegal memory access was encountered"
    assert (crashed.trial.title, crashed.words) == ("huge", words)
    (stray,) = crashed.memory
    assert (stray.kind, stray.tensor, stray.kernel) == ("outside", "do", "narrow_copy_kernel")
    assert stray.code.startswith("x = tl.load(x_ptr + b * stride_b + h * stride_h")
    assert [hazard.culprit.kind for hazard in found.warnings] == ["overflow"]
    assert len(found.having("match")) == len(found.plan.trials) - 1
    assert (found.verdict, found.exit_code, stray.severity) == ("match", 0, "warning")
    results = tuple(replace(result, severity="error") for result in found.results)
    counted = replace(found, results=results)
    assert (counted.verdict, counted.exit_code) == ("mismatch", 1)
    (run,) = (run for run in document_of(found.report)["runs"] if run["verdict"] == "error")
    assert (run["error"], run["memory"][0]["line"]) == (crashed.words, stray.line)
