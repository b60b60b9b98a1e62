"""A report comes back from JSON as it was, and from what gradprobe.report/1 wrote as far as that said it."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gradprobe.model.assignment import DEFAULT_RUNS
from gradprobe.model.case import Case
from gradprobe.model.documents import (
    Reports,
    document_of,
    load,
    load_several,
    report_from,
    report_schema,
    several_document,
    text_of,
)
from gradprobe.model.failures import UsageFailure
from gradprobe.model.layout_run import CloseUp, CloseUpRow, Difference, Element
from gradprobe.model.memory_finding import MemoryFinding, WarningNote
from gradprobe.model.number import Number
from gradprobe.model.report import Report, SecondCheck, failed_report
from tests.render.written import faulty, with_memory

CASE = Case("lazy", tau=(0.5, -1.0), window=(3, -1), layouts=(("q", "blhd"),), runs=DEFAULT_RUNS)
PLAIN = {
    bool: st.booleans(), int: st.integers(0, 2**40), float: st.floats(0, 1e6), str: st.text(max_size=3),
    type(None): st.none(), Number: st.floats(width=32).map(Number), Case: st.just(CASE),
    Any: st.booleans() | st.integers(0, 9) | st.text(max_size=3),
}  # fmt: skip


def drawn(kind):
    of, args = get_origin(kind), get_args(kind)
    if of is Annotated:
        return st.integers(args[1].ge, args[1].le)
    if kind in PLAIN:
        return PLAIN[kind]
    if of is tuple and args[1:] == (...,):
        return st.lists(drawn(args[0]), max_size=1).map(tuple)
    if of is tuple:
        return st.tuples(*map(drawn, args))
    if of is Mapping:
        return st.dictionaries(drawn(args[0]), drawn(args[1]), max_size=1)
    if args:
        return st.one_of(*map(drawn, args))
    return st.deferred(lambda: st.builds(kind, **dict(parts_of(kind))))


def parts_of(kind):
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return [(one.name, drawn(hints[one.name])) for one in fields(kind)]
    given = [
        one for one in msgspec.structs.fields(kind) if one.name not in ("schema", "against")
    ]
    return [(one.name, drawn(one.type)) for one in given]


REPORTS = drawn(Report)
FILE = Path(__file__).resolve().parents[2] / "docs" / "report.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(report_schema())


@settings(derandomize=True, max_examples=30, deadline=None)
@given(REPORTS, REPORTS, PLAIN[Number])
def test_a_report_comes_back_from_json_as_it_was_with_one_that_is_set_beside_it(
    report, other, number
):
    found = Difference(layout="distinct", name="dK", total=3, heads=(1,), other=number)
    second = SecondCheck(name="old.py:f", report=other, differences=(found,))
    report = replace(report, against=second)
    VALIDATOR.validate(document_of(report))
    assert load(text_of(document_of(report))) == report


def test_what_is_not_finite_is_a_word_in_json_which_stays_strict():
    numbers = {"actual": math.nan, "expected": -math.inf, "ratio": math.inf}
    worst = {name: Number(value) for name, value in numbers.items()}
    row = CloseUpRow(row=0, mismatched=1, col=0, **worst)
    place = Element(
        intermediate="dK", batch=0, head=1, row=3, col=2, tile=(None, 0), actual=Number(math.nan),
        expected=Number(0.5), budget=Number(1e-5),
    )  # fmt: skip
    view = CloseUp(
        layout="contiguous", intermediate="dK", batch=0, head=1, mismatched=1, total=4, shape=(2, 2), tile=(2, 2),
        map=((None, Number(math.inf)),), rows=(row,), element=place,
    )  # fmt: skip
    report = Report(verdict="mismatch", close_up=view)
    text = text_of(document_of(report))
    strict = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    (found,) = strict["close_up"]["rows"]
    assert [found[name] for name in numbers] == ["NaN", "-Infinity", "Infinity"]
    assert load(text) == report
    assert math.isnan(load(text).close_up.rows[0].actual)


def test_the_first_schema_is_read_and_its_null_is_a_number_that_is_not_finite():
    first = faulty()
    first["runs"][1]["intermediates"][1]["max_budget_ratio"] = None
    stray = {"kind": "race", "tensor": "do", "sentence": "s", "access": None, "lanes": None}
    first["runs"][1]["memory"] = [stray]
    report = load(json.dumps(first))
    assert report.runs[1].intermediates[1].ratio == math.inf
    assert report.runs[1].memory == (MemoryFinding("race", "do", "s"),)
    told = report.schema, report.verdict, report.first_mismatch.head
    assert told == ("gradprobe.report/2", "mismatch", 1)
    assert load(json.dumps(with_memory("race"))).memory[0].line == 270


def test_several_reports_come_back_with_what_does_not_count():
    reports = tuple(
        Report(title=title, verdict="mismatch", severity=severity, warnings=warnings)
        for title, severity, warnings in (
            ("right", None, ()), ("odd", "warning", (WarningNote("huge", "q", "words", ("huge",)),)),
        )
    )  # fmt: skip
    several = Reports(reports=reports, planned=1, not_taken=())
    assert load_several(text_of(several_document(several))) == several


@pytest.mark.parametrize(
    "text",
    ['{"schema": "gradprobe.report/2"}', '{"schema": "gradprobe.reports/2"}',
     '{"schema": "gradprobe.report/1", "verdict": "match", "runs": [{"layout": 1}]}'],
)  # fmt: skip
def test_what_is_no_report_is_refused(text):
    with pytest.raises(UsageFailure, match="report"):
        load_several(text)


def test_the_file_of_the_schema_is_what_the_types_give():
    assert json.loads(FILE.read_text()) == json.loads(json.dumps(report_schema()))
    jsonschema.Draft202012Validator.check_schema(report_schema())
    failed = document_of(failed_report(UsageFailure("no"), "again"))
    for document in (document_of(report_from(faulty())), failed):
        VALIDATOR.validate(document)
    assert not VALIDATOR.is_valid(failed | {"runs": [{"layout": "contiguous"}]})
