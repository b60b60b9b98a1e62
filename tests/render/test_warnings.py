import json

import pytest

from tests.render.written import (
    FIRST,
    assert_is_sarif,
    document,
    entry,
    failed,
    form,
    head,
    read_junit,
    run,
)

ACCESS = {
    "kind": "outside", "tensor": "q", "kernel": "lazy_dkdv_kernel", "file": "/repository/kernels/lazy.py", "line": 260,
    "code": "q = tl.load(p_q)", "sentence": "lazy_dkdv_kernel loads outside q", "severity": "warning",
}  # fmt: skip
WARNED = {
    "kind": "huge", "about": "q k", "words": "wrong once an offset into q or k passes 2^31 elements",
    "layouts": ["huge"],
}  # fmt: skip
UNTAKEN = {"kind": "undeclared", "about": "battery 15: Dv > D", "layouts": []}
UNTAKEN["words"] = "not taken: it raised"


def surveyed(severity="warning"):
    """A survey that is right contiguous and wrong in `huge`, which is a warning or counts."""
    wrong = run(
        "huge", entry("dP", head(1, status="mismatch")), first_mismatch=FIRST, severity=severity
    )
    is_warned = severity == "warning"
    return document(
        run("contiguous", entry("dP", head(1)), severity=None), wrong, verdict="match" if is_warned else "mismatch",
        first_mismatch=None if is_warned else FIRST, warnings=[WARNED] if is_warned else [],
        strides={"findings": [ACCESS | {"severity": severity, "layout": "huge"}]},
    )  # fmt: skip


def untaken():
    return failed(title="battery 15: Dv > D", severity="warning", warnings=[UNTAKEN])


def test_sarif_has_one_result_of_level_warning_at_the_line_that_was_seen_and_none_for_what_it_came_to():
    log = json.loads(form("--sarif", surveyed(), code=0))
    assert_is_sarif(log)
    (result,) = log["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("GP040", "warning")
    place = result["locations"][0]["physicalLocation"]
    told = place["artifactLocation"]["uri"], place["region"]["startLine"]
    assert told == ("kernels/lazy.py", 260)
    counted = json.loads(form("--sarif", surveyed("error")))["runs"][0]["results"]
    levels = {(one["ruleId"], one["level"]) for one in counted}
    assert levels == {("GP001", "error"), ("GP010", "error")}


def test_junit_has_no_failing_case_and_a_skipped_one_that_says_what_is_warned_of():
    root = read_junit(form("--junit", surveyed(), untaken()))
    assert (root.get("failures"), root.get("errors")) == ("0", "0")
    told = {case.get("name"): case.find("skipped") for case in root.iter("testcase")}
    assert told["huge q k"].get("message") == f"{WARNED['words']}."
    assert told["undeclared battery 15: Dv > D"].get("type") == "warning"
    assert "dP batch 0 head 1" in told
    assert read_junit(form("--junit", surveyed("error"))).get("failures") == "2"


def test_github_annotates_warnings_and_no_error():
    line, other = form("--github", surveyed(), untaken()).splitlines()
    assert line.startswith("::warning file=kernels/lazy.py,line=260,title=GP040 ")
    assert WARNED["words"] in line
    assert other.startswith("::warning title=GP042 ")
    counted = form("--github", surveyed("error")).splitlines()
    assert {line.split()[0] for line in counted} == {"::error"}


@pytest.mark.parametrize(("made", "rows"), [(surveyed, ["warning", "match"]),
                                            (untaken, ["warning"])])  # fmt: skip
def test_the_summary_has_rows_of_warnings_and_counts_them_and_repeats_nothing(made, rows):
    text = form("--markdown", made())
    table = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [line.split(" | ")[0].strip("| *") for line in table] == rows
    assert "1 warned of" in text.splitlines()[0]
    assert "wrong" not in text.splitlines()[0]
    assert "again:" not in text
