"""A case with too many scores for hypotheses is explained on a smaller one, where one fails in the same way."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gradprobe.diagnosis import why
from gradprobe.diagnosis.smaller import MOST_SCORES, size_in_words, smaller_failing
from gradprobe.diagnosis.why import Reasons, _seen_too
from gradprobe.model.report import Diagnosis
from gradprobe.pipeline.probe import probe
from gradprobe.probing.experiment import experiment_of
from gradprobe.targets.find import find_target
from tests.cases import softmax_case

LARGE = {"batch": 1, "heads": 2, "kv_heads": 2, "seqlen_q": 400, "seqlen_k": 400}


def target(folder, line):
    (folder / "kernel.py").write_text(f"""
import torch

def backward(q, k, v, do, *, scale):
    p = (scale * q @ k.mT).softmax(-1)
    dp = do @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    dq, dk, dv = scale * ds @ k, scale * ds.mT @ q, p.mT @ do
    {line}
    return {{"P": p, "dP": dp, "dS": ds, "dQ": dq, "dK": dk, "dV": dv}}
""")
    return find_target(f"{folder}/kernel.py:backward", "softmax")


def report_of(folder, line):
    case = softmax_case(**LARGE)
    assert case.scores > MOST_SCORES
    return probe(replace(case, layouts=(("all", "contiguous"),)), target(folder, line))


def test_the_cause_is_found_on_fewer_rows_and_the_report_says_on_which(tmp_path):
    report = report_of(tmp_path, "dk = dk * 2")
    first = report.diagnoses[0]
    assert (first.fault, first.is_named) == ("factor/dK", True)
    assert first.evidence[-1].endswith("fails in the same way: --batch 1 --heads 2 --seqlen 80")


def test_where_every_smaller_case_matches_no_hypothesis_is_said_to_have_been_tried(tmp_path):
    report = report_of(tmp_path, "dk *= 1 + (dk.shape[1:3] == (2, 400))")
    assert report.diagnoses == ()
    assert report.known[0].startswith("no hypothesis was tried")
    assert not report.sought


def test_a_smaller_case_that_fails_otherwise_is_none(tmp_path):
    case = softmax_case(**LARGE)
    line = "(dk if dk.shape[1:3] == (2, 400) else dv).mul_(2)"
    failing = report_of(tmp_path, line).runs[0]
    assert smaller_failing(experiment_of(case, target(tmp_path, line)), failing) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--batch 1 --heads 2 --seqlen 400"),
        ({"kv_heads": 1, "seqlen_k": 30}, "--batch 1 --heads 2 --kv-heads 1 --seqlen-q 400 --seqlen-k 30"),
    ],
)
def test_a_size_is_said_in_options(options, words):
    assert size_in_words(softmax_case(**{**LARGE, **options})) == words


def test_a_cause_that_was_seen_in_memory_too_is_told_once_with_that_for_evidence():
    cause, seen = Diagnosis("outside/do", "M3", "predicted", 1.0), Diagnosis("outside/do", "M3", "seen", 1.0)
    race = Diagnosis("race/dK", "RACE", "raced", 1.0)
    assert _seen_too([cause], [seen, race]) == ([Diagnosis("outside/do", "M3", "predicted", 1.0, ("seen",))], [race])


def test_what_was_seen_in_memory_of_the_large_case_is_not_told_of_the_smaller_one(monkeypatch):
    race, cause = Diagnosis("race/dK", "RACE", "raced", 1.0), Diagnosis("factor/dK", "A", "doubled", 1.0)
    monkeypatch.setattr(why, "smaller_failing", lambda *_: (SimpleNamespace(case=softmax_case(**LARGE)), []))
    monkeypatch.setattr(why, "_reasons_of", lambda *_: Reasons((race, cause)))
    first, second = why._of_a_smaller_case(None, None, (race,)).diagnoses
    assert first == race
    assert second.evidence[-1].startswith("sought on a smaller case")
