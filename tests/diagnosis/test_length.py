"""What a target does to memory at one length alone is one cause, beside which other faults stand."""

from types import SimpleNamespace

import pytest

from gradprobe.diagnosis.why import FailedCheck, by_length
from gradprobe.model.memory_finding import OUTSIDE, MemoryFinding
from gradprobe.model.report import CauseLine, Diagnosis, causes_among

HERE, SEEN = (
    {"layouts": ("contiguous",), "seen": "seen while it ran"},
    {"seen": "seen in k", "also": True},
)
OUT = Diagnosis(
    "outside/k",
    "M3",
    "loads outside k",
    1.0,
    (),
    tuple(CauseLine("a.py", at, "k") for at in range(4)),
    **HERE,
)
LOAD = Diagnosis(
    "load/v",
    "S1",
    "reads other elements of v",
    1.0,
    (),
    (CauseLine("a.py", 9, "v"),),
    also=True,
    **HERE,
)
STRIDE = Diagnosis(
    "load/q", "S1", "of q", 1.0, (), (CauseLine("a.py", 5, "q"),), layouts=("distinct",), **SEEN
)


def check(*memory, ratio=100.0, right_at=lambda first: "--seqlen 128"):
    comparison = SimpleNamespace(findings={"dQ": SimpleNamespace(max_ratio=ratio)})
    measured = SimpleNamespace(comparison=comparison)
    run = SimpleNamespace(
        layout="contiguous", memory=memory, measured=measured, verdict="mismatch"
    )
    return FailedCheck(None, [run], right_at=right_at)


def finding():
    return MemoryFinding(
        OUTSIDE, kernel="forward", tensor="k", file="a.py", line=1, code="k", sentence="outside k"
    )


@pytest.mark.parametrize(
    ("found", "told", "beyond"),
    [
        ((OUT,), ["tail/length"], True),
        ((OUT, LOAD), ["tail/length"], True),
        ((OUT, LOAD, STRIDE), ["tail/length", "load/q"], False),
    ],
)
def test_what_shows_at_one_length_alone_is_one_cause_beside_wrong_strides(found, told, beyond):
    of = check(finding())
    causes = causes_among(by_length(of, [*found]))
    assert [one.fault for one in causes] == told
    assert of.is_beyond_edits is beyond
    assert causes[0].summary.endswith("in contiguous it is right at --seqlen 128")


def test_without_memory_it_is_a_sentence_and_nothing_where_another_length_is_wrong_too():
    of = check()
    assert by_length(of, []) == []
    assert of.known[0].startswith("contiguous, it is right at")
    assert by_length(check(finding(), right_at=lambda first: ""), [OUT]) == [OUT]


def test_a_cause_that_is_predicted_is_asked_for_no_other_length():
    tail = Diagnosis("tail/k", "M3", "the tail", 1.0)
    of = check(right_at=pytest.fail)
    of.predicted = {"tail/k"}
    assert by_length(of, [tail]) == [tail]


def test_no_other_length_is_asked_for_where_rounding_may_decide():
    by_length(check(ratio=1.04, right_at=pytest.fail), [])
    of = check(ratio=float("nan"))
    by_length(of, [])
    assert of.known
