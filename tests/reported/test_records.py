"""Every record: the exit code, what is said and what is not; and what a record cannot hold."""

import json
import os

import pytest

from gradprobe.model.documents import report_from
from gradprobe.probing import compilation
from gradprobe.render.console import whereabouts
from tests.reported.records import RECORDS, SMALL


def parts(words):
    return [part.strip() for part in words.split(" | ")] if words else []


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(one, marks=[pytest.mark.nightly] * one.night, id=one.words)
        for one in RECORDS
    ],
)
def test_a_record_holds(check, record):
    ran, report = check(f"{record.words} {record.case}")
    said = " ".join(f"{ran.out} {ran.err}".split()) + json.dumps(report, ensure_ascii=False)
    assert ran.code == record.code, ran.err
    assert [words for words in parts(record.says) if words not in said] == []
    assert [words for words in parts(record.unsaid) if words in said] == []
    if record.first:
        assert report["first_mismatch"]["intermediate"] == record.first
    if record.cause:
        cause = report["diagnoses"][0]
        assert cause["fault"] == record.cause
        assert record.at in "".join(where["code"] for where in cause["where"][:1])
    verdicts = {run["layout"]: run["verdict"] for run in report.get("runs", ())}
    assert record.layouts.items() <= verdicts.items()


def causes(report):
    first, *others = [one for one in report["diagnoses"] if one["explained"] >= 0.9]
    return [first, *(one for one in others if one["also"])]


def test_what_follows_of_a_wrong_value_inherits_where_delta_was_given(check):
    _, report = check(f"keys_kernels.py:heavier --implied causal --fix-budget 0 {SMALL}")
    shown = {one["name"]: one["status"] for one in report["runs"][0]["intermediates"]}
    told = {name: now for name, now in shown.items() if now not in ("match", "not exposed")}
    assert told == {"P": "mismatch", **dict.fromkeys(("dV", "dS", "dK"), "inherited")}
    assert [one["fault"] for one in causes(report)] == ["value/P"]


def test_a_first_mismatch_is_wrong_by_the_order_of_the_worst(check):
    _, report = check(f"torch_backwards.py:two_errors {SMALL}")
    first, made = report["first_mismatch"], report["runs"][0]["intermediates"]
    (p,) = [one for one in made if one["name"] == "P"]
    assert (first["intermediate"], first["batch"], first["head"]) == ("P", 0, 0)
    assert first["row"] == 7
    assert first["col"] >= 10
    ratio = abs(first["actual"] - first["expected"]) / first["budget"]
    assert ratio >= p["max_budget_ratio"] / 10
    (said,) = [one for one in whereabouts(report_from(report)) if one.startswith("wrong rows")]
    assert said == "wrong rows: 0, 7-19 (14 of 20); keys: 0-19 (20)"


def test_a_fork_of_the_front_end_that_ends_is_told(check, monkeypatch):
    monkeypatch.setattr(compilation, "_errors_of", lambda calls: os._exit(1))
    ran, report = check(f"uncompiled.py:plain_global {SMALL} --layout all=contiguous")
    told = [one for one in report["notes"] if "whether rows_kernel compiles is not known" in one]
    assert (ran.code, bool(told)) == (0, True)
