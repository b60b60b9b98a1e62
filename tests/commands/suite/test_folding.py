from gradprobe.commands.suite import fold
from gradprobe.commands.suite.fold import folded_by_cause, with_smallest
from gradprobe.model.case import Case
from gradprobe.model.layout_run import Element, Error, Run
from gradprobe.model.memory_finding import WARNING
from gradprobe.model.report import CauseLine, CheckedTarget, Diagnosis, Report
from tests.commands.suite.plans import planned

STRIDE = Diagnosis(
    fault="stride/do-head", fault_class="S1", summary="dO is read with q's head stride", explained=1.0,
    where=(CauseLine(file="/a/delta.py", line=19, code="x"),),
)  # fmt: skip


def report(number, *diagnoses, first="dP", verdict="mismatch", dtype="float32", **more):
    at = {"batch": 0, "head": 0, "row": 0, "col": 0, "tile": (0, 0)}
    at |= dict.fromkeys(("actual", "expected", "budget"))
    place = Element(intermediate=first, **at) if verdict == "mismatch" else None
    run = Run(layout="contiguous", verdict=verdict, first_mismatch=place)
    return Report(
        title=f"case {number}", number=number, verdict=verdict, runs=(run,) if verdict != "error" else (),
        diagnoses=diagnoses, case=Case("softmax", dtype=dtype), target=CheckedTarget(name="t"), **more,
    )  # fmt: skip


def error(number, words):
    return report(number, verdict="error", error=Error(kind="Crash", message=words, words=words))


def test_failures_of_one_fault_at_one_line_are_one_group_and_those_without_go_by_what_is_first_wrong():
    reports = [
        report(4, first="dQ"), report(0, STRIDE), report(1, verdict="match"), report(3, STRIDE, first="dV"),
        report(2), error(5, "killed at 7"), error(6, "killed at 12"), error(7, "raised"), report(8, first="dQ"),
        report(9, severity=WARNING),
    ]  # fmt: skip
    groups = folded_by_cause(reports)
    assert [(group.cause, group.numbers) for group in groups] == [
        ("stride/do-head at delta.py:19", (0, 3)), ("dP first, no cause named", (2,)),
        ("dQ first, no cause named", (4, 8)), ("Crash", (5, 6)), ("Crash", (7,)),
    ]  # fmt: skip
    assert [group.is_mismatch for group in groups] == [True, True, True, False, False]
    assert groups[0].summary == "dO is read with q's head stride"


def test_what_a_closer_look_sees_parts_no_case_from_its_like_and_the_cause_that_it_names_is_that_of_all():
    reports = [report(0, first="O"), report(1, first="O"), report(2, STRIDE)]
    assert folded_by_cause(reports, report(0, first="P")) == folded_by_cause(reports)
    (group,) = folded_by_cause(reports, report(0, STRIDE, first="P"))
    assert (group.cause, group.numbers) == ("stride/do-head at delta.py:19", (0, 1, 2))


def test_failures_of_other_causes_are_no_matches_and_contradict_nothing():
    half = dict.fromkeys((1, 2, 3), "float16")
    reports = [report(at, STRIDE, dtype=word) for at, word in half.items()]
    reports += [report(at, verdict="match") for at in (4, 5, 6)]
    other = report(7, first="dQ", dtype="float16")
    sentence = "all 3 failures have --dtype float16, no match has"
    assert folded_by_cause([*reports, other])[0].common == (sentence,)
    (group,) = folded_by_cause([*reports, report(7, verdict="match", dtype="float16")])
    assert group.common != (sentence,)


def test_the_tries_are_shared_by_the_groups(monkeypatch):
    asked = []
    each = lambda factory, tries, items, **_: asked.append((tries, len(items))) or []  # noqa: E731
    monkeypatch.setattr(fold, "run_each", each)
    reports = [report(number, first=name) for number, name in enumerate(("dQ", "dK", "dV"))]
    groups = folded_by_cause([*reports, error(6, "killed")])
    requests = dict.fromkeys(range(3), planned("soft.py:doubled_dq").request)
    assert with_smallest(groups, requests, 40, 1) == groups
    assert asked == [(14, 3)]
