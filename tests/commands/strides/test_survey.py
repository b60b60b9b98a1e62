import pytest

from gradprobe.commands.suite.checking import Setting
from gradprobe.commands.suite.outcome import code_of_report
from gradprobe.commands.survey import survey
from gradprobe.inputs.history import CheckRequest
from tests.commands.strides.written import write

OPTIONS = {"batch": 2, "heads": 2, "seqlen": 20, "head_dim": 8}


def surveyed(word, timeout=None, fast=True, **options):
    request = CheckRequest(word, None, None, OPTIONS | options)
    how = {"given": frozenset(request.options), "setting": Setting(timeout=timeout)}
    return list(survey(request, "again", fast=fast, **how))


def layouts(report, verdict):
    """Those that count, with why they could not be run."""
    counted = [run for run in report.runs if run.severity != "warning"]
    return {run.layout: run.error for run in counted if run.verdict == verdict}


def test_a_right_target_is_a_match_and_something_is_told_after_every_layout(tmp_path):
    reports = surveyed(write(tmp_path, "right"))
    report = reports[-1]
    assert (report.verdict, code_of_report(report)) == ("match", 0)
    assert [len(each.runs) for each in reports] == list(range(1, report.strides.layouts + 1))


@pytest.mark.nightly
def test_a_crash_and_a_hang_are_errors_in_their_layouts_alone(tmp_path):
    word = write(tmp_path, "crash_in_one_layout_and_hang_in_another")
    report = surveyed(word, timeout=3)[-1]
    assert (report.verdict, code_of_report(report)) == ("error", 3)
    late = ("distinct", "distinct-unit", "packed qkv, dO a [B, L, H, D] view")
    words = {title: words[:20] for title, words in layouts(report, "error").items()}
    assert words == {
        **dict.fromkeys(("do=blhd", "do=distinct"), "killed by SIGSEGV (s"),
        **dict.fromkeys(late, "no answer within 3 s"),
    }
    assert len(layouts(report, "match")) == report.strides.layouts - 5


def test_a_target_that_crashes_on_contiguous_tensors_is_a_failure(tmp_path):
    (report,) = surveyed(write(tmp_path, "crash_always"))
    assert (report.verdict, code_of_report(report)) == ("error", 3)
    assert "crashed: killed by SIGSEGV" in report.error.message
