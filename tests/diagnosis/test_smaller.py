"""A case with too many scores for hypotheses is explained on a smaller one, where one fails in the same way."""

from dataclasses import replace

import pytest

from gradprobe.diagnosis import why
from gradprobe.diagnosis.smaller import MOST_SCORES, size_in_words, smaller_failing
from gradprobe.diagnosis.why import told_once
from gradprobe.inputs.draw import draw
from gradprobe.inputs.saved import SavedInputs, with_inputs
from gradprobe.model.report import Diagnosis
from gradprobe.probing.experiment import experiment_of
from tests.cases import softmax_case
from tests.diagnosis.backward import GRADIENTS, backward_with
from tests.faults.plain import Planted, softmax_target
from tests.probe import probe

LARGE = {"batch": 1, "heads": 2, "kv_heads": 2, "seqlen_q": 400, "seqlen_k": 400}


def target(folder, line):
    return backward_with(folder, line, results=("P", "dP", "dS", *GRADIENTS))


def report_of(folder, line):
    case = softmax_case(**LARGE)
    assert case.scores > MOST_SCORES
    return probe(replace(case, layouts=(("all", "contiguous"),)), target(folder, line))


def test_the_cause_is_found_on_fewer_rows_and_the_report_says_on_which(tmp_path):
    report = report_of(tmp_path, "dk = dk * 2")
    first = report.diagnoses[0]
    assert (first.fault, first.is_named) == ("factor/dK", True)
    assert first.evidence[-1].endswith("fails in the same way: --batch 1 --heads 2 --seqlen 80")


def test_a_smaller_case_of_which_nothing_is_left_does_not_fail_in_the_same_way(tmp_path):
    first = report_of(tmp_path, "dk = dk * 2 * (dk.shape[2] > 100)").diagnoses[0]
    assert (first.fault, first.is_named) == ("factor/dK", True)
    assert first.evidence[-1].endswith("fails in the same way: --batch 1 --heads 2 --seqlen 144")


def test_where_every_smaller_case_matches_no_hypothesis_is_said_to_have_been_tried(tmp_path):
    report = report_of(tmp_path, "dk *= 1 + (dk.shape[1:3] == (2, 400))")
    assert report.diagnoses == ()
    assert report.known[0].startswith("no cause was sought")
    assert not report.sought


def test_a_smaller_case_that_fails_otherwise_is_none(tmp_path):
    case = softmax_case(**LARGE)
    line = "(dk if dk.shape[1:3] == (2, 400) else dv).mul_(2)"
    failing = report_of(tmp_path, line).runs[0]
    assert smaller_failing(experiment_of(case, target(tmp_path, line)), [failing]) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--batch 1 --heads 2 --seqlen 400"),
        (
            {"kv_heads": 1, "seqlen_k": 30},
            "--batch 1 --heads 2 --kv-heads 1 --seqlen-q 400 --seqlen-k 30",
        ),
    ],
)
def test_a_size_is_said_in_options(options, words):
    assert size_in_words(softmax_case(**{**LARGE, **options})) == words


def test_a_cause_that_was_told_once_is_told_once_with_that_for_evidence():
    cause, seen = (
        Diagnosis("outside/do", "M3", "predicted", 1.0),
        Diagnosis("outside/do", "M3", "seen", 1.0),
    )
    race = Diagnosis("race/dK", "RACE", "raced", 1.0)
    assert told_once([cause], [seen, race]) == (
        [Diagnosis("outside/do", "M3", "predicted", 1.0, ("seen",))],
        [race],
    )


def test_what_was_seen_in_memory_of_the_large_case_is_not_told_of_the_smaller_one(monkeypatch):
    race, cause = (
        Diagnosis("race/dK", "RACE", "raced", 1.0),
        Diagnosis("factor/dK", "A", "doubled", 1.0),
    )
    monkeypatch.setattr(why, "smaller_failing", lambda *_: (None, [], "a smaller case"))
    monkeypatch.setattr(why, "by_numbers", lambda *_: [race, cause])
    first, second = why._by_a_smaller_case(why.FailedCheck(None, []), None, [], [race])
    assert first == race
    assert second.evidence[-1].startswith("sought on a smaller case")


def test_every_layout_that_failed_is_run_on_the_smaller_case(tmp_path):
    case = replace(softmax_case(**LARGE), recover=False, runs=((), (("do", "expanded"),)))
    report = probe(
        case, target(tmp_path, "dk = dk * 2; dv = dv * (3 if do.stride(3) == 0 else 1)")
    )
    assert [one.fault for one in report.diagnoses if one.is_named][:2] == [
        "factor/dK",
        "factor/dV",
    ]
    assert "in do=expanded: explains 100%" in report.diagnoses[1].evidence[0]


DOUBLED = Planted(make=lambda kernel, name, tensor: tensor * 2 if name == "dK" else tensor)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"batch": 3, "heads": 1, "seqlen": 330, "seqlens": (330, 40, 201)},
            "--batch 2 --heads 1 --seqlen 74 --seqlens 74,40",
        ),
        ({"heads": 1, "cu_seqlens": (0, 200, 201, 601)}, "--heads 1 --cu-seqlens 0,72,73,153"),
    ],
    ids=["padded", "packed"],
)
def test_lengths_that_are_given_one_by_one_are_shortened_one_by_one(options, words):
    report = probe(
        replace(softmax_case(**options), layouts=(("all", "contiguous"),)),
        softmax_target(DOUBLED),
    )
    assert report.diagnoses[0].fault == "factor/dK"
    assert report.diagnoses[0].evidence[-1].endswith(words)


def of_a_file(**options):
    """A case whose values are those of a file, and the file."""
    drawn = softmax_case(**options)
    saved = SavedInputs(draw(drawn), {}, {"causal": drawn.causal})
    return replace(
        softmax_case(**with_inputs({}, saved, "values.pt", "softmax")), recover=False
    ), saved


def test_of_values_of_a_file_a_smaller_case_is_drawn():
    case, saved = of_a_file(**LARGE, causal=True)
    report = probe(case, softmax_target(DOUBLED), saved=saved)
    assert report.diagnoses[0].fault == "factor/dK"
    words = "a smaller case of drawn values that fails in the same way: --batch 1 --heads 2 --seqlen 80"
    assert words in report.diagnoses[0].evidence[-1]
