"""What a target does to memory at one length alone is one cause, beside which other faults stand."""

from types import SimpleNamespace

import pytest

from gradprobe.diagnosis.why import FailedCheck, by_length
from gradprobe.model.memory_finding import OUTSIDE, MemoryFinding
from gradprobe.model.report import CauseLine, Diagnosis, causes_among


def diagnosis(fault, *lines, **more):
    more = {"layouts": ("contiguous",), "seen": "seen while it ran", "also": True} | more
    return Diagnosis(
        fault, "M3", "", 1.0, (), tuple(CauseLine("a.py", at, "k") for at in lines), **more
    )


OUT = diagnosis("outside/k", 0, 1, 2, 3, also=False)
LOAD = diagnosis("load/v", 9)
STRIDE = diagnosis("load/q", 5, layouts=("distinct",))
FINDING = MemoryFinding(
    OUTSIDE, kernel="forward", tensor="k", file="a.py", line=1, code="k", sentence="outside k"
)


def check(*memory, ratio=100.0, right_at=lambda first: "--seqlen 128"):
    comparison = SimpleNamespace(findings={"dQ": SimpleNamespace(max_ratio=ratio)})
    measured = SimpleNamespace(comparison=comparison)
    run = SimpleNamespace(
        layout="contiguous", memory=memory, measured=measured, verdict="mismatch"
    )
    return FailedCheck(None, [run], right_at=right_at)


@pytest.mark.parametrize(
    ("found", "told"),
    [((OUT, LOAD), ["tail/length"]), ((OUT, LOAD, STRIDE), ["tail/length", "load/q"])],
)
def test_what_shows_at_one_length_alone_is_one_cause_beside_wrong_strides(found, told):
    of = check(FINDING)
    causes = causes_among(by_length(of, [*found]))
    assert [one.fault for one in causes] == told
    assert of.is_beyond_edits is (len(told) == 1)
    assert causes[0].summary.endswith("in contiguous it is right at --seqlen 128")


def test_without_memory_it_is_a_sentence_and_nothing_where_another_length_is_wrong_too():
    for ratio in (100.0, float("nan")):
        of = check(ratio=ratio)
        assert by_length(of, []) == []
        assert of.known[0].startswith("contiguous, it is right at")
    assert by_length(check(FINDING, right_at=lambda first: ""), [OUT]) == [OUT]


def test_no_other_length_is_asked_for_where_a_cause_is_predicted_or_rounding_may_decide():
    of, tail = check(right_at=pytest.fail), Diagnosis("tail/k", "M3", "the tail", 1.0)
    of.predicted = {"tail/k"}
    assert by_length(of, [tail]) == [tail]
    by_length(check(ratio=1.04, right_at=pytest.fail), [])
