import json

from gradprobe.render.alerts import RULE_OF, RULES
from tests.render.written import (
    FIRST_LINE,
    assert_is_sarif,
    document,
    entry,
    failed,
    faulty,
    form,
    head,
    run,
    with_memory,
)

# Alerts that somebody closed are known by these: one may be added, none changed or taken away.
PUBLISHED = """
GP001 WrongIntermediate error, GP002 InheritedError note, GP003 BrokenIdentity error, GP004 Cause error, GP010
AccessOutsideTensor error, GP011 GuardBandTouched error, GP012 UnwrittenOutput error, GP013 StoreRace error,
GP014 DivergentBarrier error, GP015 MisalignedAccess error, GP016 InputOverwritten error, GP017
ResultInOtherMemory error, GP018 CoarserResult error, GP019 UndefinedShuffle error, GP020 Crash error, GP021
Timeout error, GP022 TargetFailed error, GP023 ReferenceFailed error, GP024 ToolFailed error, GP025 WrongUsage
error, GP026 Incomplete error, GP027 NotCompiled error, GP030 LayoutRefused none, GP040 OffsetOf32Bits warning,
GP041 StridedVector warning, GP042 UndeclaredCase warning
"""
KINDS = """
outside GP010, guard GP011, unwritten GP012, race GP013, barrier GP014, misaligned GP015, changed GP016, shared GP017,
dtype GP018, shuffle GP019, Crash GP020, DeviceLost GP020, NoRoom GP020, Timeout GP021, TargetFailure GP022,
RanksFailure GP022, Refusal GP022, KernelStopped GP022, NoKernel GP022, ReferenceFailure GP023, UsageFailure GP025,
UntestedVersion GP025, InputsFailure GP025, Incomplete GP026, CompileError GP027, huge GP040, vector GP041,
undeclared GP042
"""


def listed(text):
    return [" ".join(part.split()) for part in text.split(",")]


def test_the_published_ids_are_those_of_the_rules_and_of_the_kinds_of_findings():
    rules = RULES.values()
    assert [f"{rule.id} {rule.name} {rule.level}" for rule in rules] == listed(PUBLISHED)
    assert [f"{kind} {rule.id}" for kind, rule in RULE_OF.items()] == listed(KINDS)


def run_of(*documents, code=1):
    log = json.loads(form("--sarif", *documents, code=code))
    assert_is_sarif(log)
    (found,) = log["runs"]
    return found


def told(found):
    results = found["results"]
    words = (one["message"]["text"].partition(": ")[2].split()[0] for one in results)
    return [
        (one["ruleId"], one["level"], word) for one, word in zip(results, words, strict=True)
    ]


def test_a_faulty_check_is_one_result_a_finding_with_its_place_its_line_and_its_numbers():
    found = run_of(faulty())
    assert told(found) == [
        ("GP001", "error", "dP"), ("GP001", "error", "dV"), ("GP003", "error", "I4"), ("GP002", "note", "dS"),
        ("GP002", "note", "dTau"),
    ]  # fmt: skip
    first, second, *_ = found["results"]
    words = first["message"]["text"]
    assert FIRST_LINE in words.splitlines()
    assert "Layout distinct: head 1 of 2; 9 elements wrong, worst 51x what is allowed" in words
    assert "Right when contiguous" in words
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "targets/mine.py", "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 12},
    }  # fmt: skip
    assert second["locations"][0]["physicalLocation"]["region"] == {"startLine": 251}
    (invocation,) = found["invocations"]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (1, True)
    (note,) = invocation["toolExecutionNotifications"]
    assert (note["level"], note["associatedRule"]["id"]) == ("note", "GP030")
    assert "do=expanded was skipped: AssertionError: do must be" in note["message"]["text"]


def test_the_same_finding_in_several_layouts_is_one_result_at_its_worst():
    wrong = [run(name, entry("dQ", head(0), head(1, status="mismatch", max_budget_ratio=ratio)))
             for name, ratio in (("blhd", 3.0), ("packed", 70.0), ("distinct", 50.0))]  # fmt: skip
    (result,) = run_of(document(*wrong))["results"]
    words = "Layouts blhd, packed and distinct: head 1 of 2; 9 elements wrong, worst 70x what is allowed in packed."
    assert words in result["message"]["text"]


def test_the_worst_of_all_checks_come_first_and_point_at_their_rules():
    memory = with_memory("outside", "guard", "unwritten", "race")
    found = run_of(faulty(), faulty(), memory, failed("Crash", target={"name": "a.py:f"}))
    rules, results = found["tool"]["driver"]["rules"], found["results"]
    for result in results:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    first = [result["ruleId"] for result in results[:5]]
    assert first == ["GP020", "GP010", "GP011", "GP013", "GP012"]
    assert [name for _, _, name in told(found)[5:9]] == ["dP", "dP", "dV", "dV"]


def test_a_failure_is_a_result_where_it_has_a_file_and_else_a_notification():
    found = run_of(
        failed("TargetFailure", "it raised", target={"name": "sub/mine.py:f"}), code=3
    )
    (result,) = found["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "sub/mine.py", "uriBaseId": "%SRCROOT%"}}
    # What is no fault of the target is laid on no file.
    assert run_of(failed("Failure", target={"name": "sub/mine.py:f"}), code=3)["results"] == []
    found = run_of(failed(), code=2)
    (invocation,) = found["invocations"]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (2, False)
    (notification,) = invocation["toolExecutionNotifications"]
    assert (found["results"], notification["associatedRule"]["id"]) == ([], "GP025")
    assert "at least 1, got 0\ngive at least one" in notification["message"]["text"]


def fingerprints(found):
    return [
        result["partialFingerprints"]["primaryLocationLineHash"] for result in found["results"]
    ]


def test_fingerprints_stay_where_lines_numbers_and_values_change_and_differ_between_findings():
    moved = faulty()
    moved["target"] |= {"line": 900, "sha256": "other"}
    moved["runs"][1]["intermediates"][1]["max_budget_ratio"] = 77.0
    before, after = fingerprints(run_of(faulty())), fingerprints(run_of(moved))
    assert before == after
    assert len(set(before)) == 5
    assert not set(before) & set(fingerprints(run_of(faulty(title="gqa"))))
    # Those of one fingerprint are told apart.
    alike = [one.partition(":") for one in fingerprints(run_of(with_memory("race", "race")))]
    assert len({one for one, *_ in alike}) == 1
    assert [number for *_, number in alike] == ["1", "2"]
