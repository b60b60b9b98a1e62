"""What a target does to memory at one length alone is one cause, beside which other faults stand."""

from types import SimpleNamespace

import pytest

from gradprobe.diagnosis.why import Reasons, with_length
from gradprobe.model.memory_finding import OUTSIDE, MemoryFinding
from gradprobe.model.report import Diagnosis, Where

OUT = Diagnosis("outside/k", "M3", "loads outside k", 1.0, (), tuple(Where("a.py", at, "k") for at in range(4)))
LOAD = Diagnosis("load/v", "S1", "reads other elements of v", 1.0, (), (Where("a.py", 9, "v"),), also=True)
STRIDE = Diagnosis("load/q", "S1", "reads other elements of q", 1.0, (), (Where("a.py", 5, "q"),), also=True)
SHOWN = {"load/v": ("contiguous",), "load/q": ("distinct",)}


def run(*memory, ratio=100.0):
    comparison = SimpleNamespace(findings={"dQ": SimpleNamespace(max_ratio=ratio)})
    return SimpleNamespace(layout="contiguous", memory=memory, measured=SimpleNamespace(comparison=comparison))


def finding():
    return MemoryFinding(OUTSIDE, kernel="forward", tensor="k", file="a.py", line=1, code="k", sentence="outside k")


@pytest.mark.parametrize(
    ("found", "told", "beyond"),
    [
        ((OUT,), ["tail/length"], True),
        ((OUT, LOAD), ["tail/length"], True),
        ((OUT, LOAD, STRIDE), ["tail/length", "load/q"], False),
    ],
)
def test_what_shows_at_one_length_alone_is_one_cause_beside_wrong_strides(found, told, beyond):
    made = with_length(Reasons(found, shown=SHOWN), run(finding()), lambda first: "--seqlen 128")
    assert [one.fault for one in made.causes] == told
    assert made.is_beyond_edits is beyond
    assert made.causes[0].summary.endswith("in contiguous it is right at --seqlen 128")


def test_without_memory_it_is_a_sentence_and_nothing_where_another_length_is_wrong_too():
    assert with_length(Reasons(), run(), lambda first: "--seqlen 128").known[0].startswith("contiguous, it is right at")
    reasons = Reasons((OUT,))
    assert with_length(reasons, run(finding()), lambda first: "") is reasons


def test_a_cause_that_is_predicted_is_asked_for_no_other_length():
    reasons = Reasons((OUT,), predicted={"tail/k": None})
    assert with_length(reasons, run(), pytest.fail) is reasons


def test_no_other_length_is_asked_for_where_rounding_may_decide():
    reasons = Reasons()
    assert with_length(reasons, run(ratio=1.04), pytest.fail) is reasons
    assert with_length(reasons, run(ratio=float("nan")), lambda first: "--seqlen 128") is not reasons
