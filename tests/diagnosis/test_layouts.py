"""Every failing layout is explained: a fault that several show is told once, and none hides another."""

from tests.cases import softmax_case
from tests.diagnosis.backward import backward_with
from tests.probe import probe

EXPANDED = "do.stride(3) == 0"


def told(folder, *lines):
    case = softmax_case(batch=1, heads=2, seqlen=40, head_dim=16, recover=False)
    return probe(case, backward_with(folder, *lines))


def causes(report):
    first, *others = report.diagnoses
    told = (first, *(other for other in others if other.also))
    return [(one.fault, one.also) for one in told if one.is_named]


def test_a_fault_that_shows_in_every_layout_is_told_once_and_hides_no_other(tmp_path):
    report = told(tmp_path, "dv = dv * 2", f"dk = dk * (3 if {EXPANDED} else 1)")
    assert causes(report) == [("factor/dV", False), ("factor/dK", True)]
    first, second = (one.evidence for one in report.diagnoses[:2])
    assert first[-1] == "layouts that show it: contiguous, do=expanded, distinct"
    assert second[0].startswith("in do=expanded: explains 100%")
    assert report.known == ()


def test_what_no_hypothesis_fits_in_one_layout_hides_no_cause_in_another(tmp_path):
    odd = f"dq = dq * (1 if {EXPANDED} else torch.linspace(1, 2, 40)[:, None])"
    report = told(tmp_path, odd, f"dk *= 1 + ({EXPANDED})")
    assert causes(report) == [("factor/dK", False)]
    assert report.diagnoses[0].evidence[0].startswith("in do=expanded: ")
    assert report.known[0].startswith("in contiguous, distinct no hypothesis fits: dQ: ")
