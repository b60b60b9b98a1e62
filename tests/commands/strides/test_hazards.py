"""What only offsets beyond 2^31 or strided vectors of parameters show is a warning, and nothing else is."""

from dataclasses import replace

import pytest

from gradprobe.commands.strides import bench as of_bench
from gradprobe.commands.strides.bench import FIRST
from gradprobe.commands.strides.culprits import hazards
from gradprobe.commands.strides.trials import trials_of
from gradprobe.commands.strides.worker import bench_of
from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline.resolve import resolve_problem
from tests.commands.strides.test_survey import surveyed
from tests.commands.strides.written import write
from tests.commands.suite import narrow

OPTIONS = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8}


def tried(folder, name, *titles, **options):
    """The results of the named layouts of a target."""
    bench = bench_of(
        resolve_problem(CheckRequest(write(folder, name), None, None, OPTIONS | options))
    )
    trials = {trial.title: trial for trial in (FIRST, *trials_of(bench.shapes(), (), fast=False))}
    return [bench.tried(trials[title]) for title in titles]


def severities(results):
    return [(result.verdict, result.severity if result.is_failing else None) for result in results]


def test_what_is_wrong_only_where_an_offset_passes_2_to_the_31_is_a_warning(tmp_path):
    results = tried(tmp_path, "wrong_beyond_32_bits", "distinct", "q=huge", "k=huge", "huge")
    assert severities(results) == [
        ("match", None),
        ("match", None),
        ("mismatch", "warning"),
        ("mismatch", "warning"),
    ]
    (hazard,) = hazards(results)
    assert (
        hazard.warned.words
        == "wrong once an offset into k passes 2^31 elements: an index is held in 32 bits"
    )
    assert hazard.warned.layouts == ("k=huge", "huge")


def test_what_the_same_strides_show_when_they_are_small_is_an_error_though_no_other_layout_shows_it(
    tmp_path,
):
    results = tried(
        tmp_path, "wrong_where_rows_lie_far_apart", "distinct", "strided-last", "packed", "huge"
    )
    assert severities(results) == [("match", None)] * 3 + [("mismatch", "error")]
    assert hazards(results) == ()


def test_a_strided_vector_is_a_warning_and_a_fault_of_its_values_is_an_error(tmp_path):
    titles = ("alibi=distinct", "alibi=strided-last", "alibi=offset", "distinct")
    results = tried(tmp_path, "slopes_taken_for_contiguous", *titles, alibi=True)
    assert severities(results) == [("mismatch", "warning")] * 2 + [("match", None)] * 2
    (hazard,) = hazards(results)
    assert hazard.warned.words == "wrong when alibi.stride(0) != 1: it is taken for contiguous"
    of_values = tried(
        tmp_path, "equal_slopes_doubled", "alibi=distinct", "alibi=expanded", alibi=True
    )
    assert severities(of_values) == [("match", None), ("mismatch", "error")]


def test_where_it_is_asked_for_or_the_case_is_itself_that_large_it_is_an_error(
    tmp_path, monkeypatch
):
    titles = ("alibi=distinct",)
    assert severities(
        tried(tmp_path, "slopes_taken_for_contiguous", *titles, alibi=True, strict=True)
    ) == [("mismatch", "error")]
    strict = tried(tmp_path, "wrong_beyond_32_bits", "huge", strict=True)
    assert severities(strict) == [("mismatch", "error")]
    assert [hazard.severity for hazard in hazards(strict)] == ["error"]
    monkeypatch.setattr(of_bench, "_NARROW", 2 * 20 * 8 - 1)
    assert severities(tried(tmp_path, "wrong_beyond_32_bits", "huge")) == [("mismatch", "error")]
    assert severities(tried(tmp_path, "slopes_taken_for_contiguous", *titles, alibi=True)) == [
        ("mismatch", "warning")
    ]


def test_a_kernel_as_most_are_published_is_right_with_two_warnings_and_a_fault_in_it_is_an_error(
    tmp_path,
):
    titles = ("contiguous", "distinct", "do=blhd", "alibi=distinct", "q=huge")
    options = {"head_dim": 16, "seqlen": 9, "batch": 1, "heads": 2, "alibi": True}

    def tried(fault):
        bench = bench_of(
            resolve_problem(CheckRequest(narrow.write(tmp_path, fault), None, None, options))
        )
        trials = {
            trial.title: trial for trial in (FIRST, *trials_of(bench.shapes(), (), fast=False))
        }
        return severities([bench.tried(replace(trials[title], thorough=False)) for title in titles])

    warned, wrong = ("mismatch", "warning"), ("mismatch", "error")
    assert tried("") == [("match", None)] * 3 + [warned, warned]
    # q's strides alone are those that dO is read with, however small they are.
    assert tried("do_by_q_heads") == [("match", None), wrong, wrong, warned, wrong]


@pytest.mark.parametrize(
    ("name", "code", "kinds"),
    [
        ("crash_beyond_32_bits", 0, ["huge"]),
        pytest.param("crash_where_rows_lie_far_apart", 3, [], marks=pytest.mark.nightly),
    ],
)
def test_a_crash_beyond_2_to_the_31_is_a_warning_unless_the_same_strides_crash_it_when_small(
    tmp_path, name, code, kinds
):
    found, _ = surveyed(write(tmp_path, name))
    (huge,) = [result for result in found.results if result.verdict == "error"]
    assert (huge.trial.title, huge.words) == ("huge", "killed by SIGSEGV (segmentation fault)")
    assert (found.exit_code, [hazard.kind for hazard in found.warnings]) == (code, kinds)
