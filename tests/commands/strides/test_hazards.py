from dataclasses import replace

import pytest

from gradprobe.commands import survey as of_trials
from gradprobe.commands.suite.outcome import code_of_report
from gradprobe.commands.survey import warnings_of
from tests.commands.strides.benches import bench_for, trials_for
from tests.commands.strides.test_survey import surveyed
from tests.commands.strides.written import write
from tests.diagnosis.test_edits import EXAMPLE, RIGHT

OPTIONS = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8}


def tried(word, *titles, **options):
    """The verdicts of the named layouts of a target, and how much each failure counts; and the results."""
    bench = bench_for(word, **OPTIONS | options)
    trials = trials_for(bench, fast=False)
    runs = [bench.run(replace(trials[title], thorough=False)) for title in titles]
    return [(run.verdict, run.severity) for run in runs], runs


MATCH, WARNED, WRONG = ("match", None), ("mismatch", "warning"), ("mismatch", "error")


def test_what_is_wrong_only_where_an_offset_passes_2_to_the_31_is_a_warning(tmp_path):
    word = write(tmp_path, "wrong_beyond_32_bits")
    found, results = tried(word, "distinct", "q=huge", "k=huge", "huge")
    assert found == [MATCH, MATCH, WARNED, WARNED]
    (note,) = warnings_of(results)
    why = "wrong once an offset into k passes 2^31 elements: an index is held in 32 bits"
    assert (note.words, note.layouts) == (why, ("k=huge", "huge"))


def test_what_the_same_strides_show_when_they_are_small_is_an_error(tmp_path):
    word = write(tmp_path, "wrong_where_rows_lie_far_apart")
    found, results = tried(word, "distinct", "strided-last", "packed", "huge")
    assert (found, [*warnings_of(results)]) == ([MATCH] * 3 + [WRONG], [])


def test_when_strict_or_where_the_case_is_that_large_it_is_an_error(tmp_path, monkeypatch):
    beyond = write(tmp_path, "wrong_beyond_32_bits")
    found, results = tried(beyond, "huge", strict=True)
    assert (found, [*warnings_of(results)]) == ([WRONG], [])
    monkeypatch.setattr(of_trials, "_NARROW", 2 * 20 * 8 - 1)
    assert tried(beyond, "huge")[0] == [WRONG]


@pytest.mark.parametrize("is_right", [True, False])
def test_a_kernel_as_most_are_published_is_right_with_a_warning(tmp_path, is_right):
    (tmp_path / "delta.py").write_text(RIGHT if is_right else EXAMPLE)
    titles = ("contiguous", "distinct", "do=blhd", "do=huge")
    found, _ = tried(f"{tmp_path / 'delta.py'}:delta", *titles, head_dim=16, seqlen=9)
    # The strides of dO are taken for those of O however small they are.
    assert found == [MATCH, *([MATCH, MATCH, WARNED] if is_right else [WRONG] * 3)]


FAR_APART = pytest.param("crash_where_rows_lie_far_apart", 3, [], marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("name", "code", "kinds"), [("crash_beyond_32_bits", 0, ["huge"]), FAR_APART]
)
def test_a_crash_beyond_2_to_the_31_is_a_warning(tmp_path, name, code, kinds):
    report = surveyed(write(tmp_path, name))[-1]
    (huge,) = [run for run in report.runs if run.verdict == "error"]
    assert (huge.layout, huge.error[:14]) == ("huge", "killed by SIGS")
    assert (code_of_report(report), [warned.kind for warned in report.warnings]) == (code, kinds)
