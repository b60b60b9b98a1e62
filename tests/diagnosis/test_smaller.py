"""Where causes are sought: in every failing layout, and in a smaller case where there are too many scores."""

import pytest

from gradprobe.diagnosis.smaller import MOST_SCORES, smaller_failing
from gradprobe.probing.experiment import experiment_of
from tests.cases import softmax_case
from tests.diagnosis.backward import GRADIENTS, backward_with
from tests.probe import probe

LARGE = {"batch": 1, "heads": 2, "kv_heads": 2, "seqlen_q": 400, "seqlen_k": 400}
CONTIGUOUS = {"layouts": (("all", "contiguous"),)}


def target(folder, line):
    return backward_with(folder, line, results=("P", "dP", "dS", *GRADIENTS))


@pytest.mark.nightly
def test_causes_are_found_on_fewer_rows(tmp_path):
    case = softmax_case(**LARGE, recover=False, runs=((), (("do", "expanded"),)))
    assert case.scores > MOST_SCORES
    (first,) = (
        one for one in probe(case, target(tmp_path, "dk = dk * 2")).diagnoses if one.is_named
    )
    assert first.fault == "factor/dK"
    on = "fails in the same way: --batch 1 --heads 2 --seqlen 80"
    assert any(said.endswith(on) for said in first.evidence)


def test_where_every_smaller_case_matches_or_fails_otherwise_none_is_taken(tmp_path):
    case = softmax_case(**LARGE, **CONTIGUOUS)
    report = probe(case, target(tmp_path, "dk *= 1 + (dk.shape[1:3] == (2, 400))"))
    assert (report.diagnoses, report.sought) == ((), False)
    assert report.known[0].startswith("no cause was sought")
    otherwise = target(tmp_path, "(dk if dk.shape[1:3] == (2, 400) else dv).mul_(2)")
    assert smaller_failing(experiment_of(case, otherwise), [report.runs[0]]) is None


EXPANDED = "do.stride(3) == 0"


def told(folder, *lines):
    case = softmax_case(batch=1, heads=2, seqlen=40, head_dim=16, recover=False)
    return probe(case, backward_with(folder, *lines))


def causes(report):
    first, *others = report.diagnoses
    told = (first, *(other for other in others if other.also))
    return [(one.fault, one.also) for one in told if one.is_named]


def test_what_no_hypothesis_fits_in_one_layout_hides_no_cause_in_another(tmp_path):
    odd = f"dq = dq * (1 if {EXPANDED} else torch.linspace(1, 2, 40)[:, None])"
    report = told(tmp_path, odd, f"dk *= 1 + ({EXPANDED})")
    assert causes(report) == [("factor/dK", False)]
    assert report.diagnoses[0].evidence[0].startswith("in do=expanded: ")
    assert report.known[0].startswith("in contiguous, distinct no hypothesis fits: dQ: ")
