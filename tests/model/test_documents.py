"""A report comes back from JSON as it was, and from what gradprobe.report/1 wrote as far as that said it."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gradprobe.model.assignment import DEFAULT_RUNS
from gradprobe.model.case import Case
from gradprobe.model.documents import Reports, dump, load, load_several, several_document, text_of
from gradprobe.model.failures import UsageFailure
from gradprobe.model.layout_run import (
    CloseUp,
    CloseUpRow,
    Counts,
    Difference,
    Element,
    Error,
    Head,
    Identity,
    Intermediate,
    Run,
    Window,
)
from gradprobe.model.memory_finding import MemoryFinding, WarningNote
from gradprobe.model.number import Number
from gradprobe.model.report import (
    CheckedTarget,
    Culprit,
    Diagnosis,
    Report,
    SecondCheck,
    Source,
    SurveySummary,
    TriedEdit,
    Where,
)
from tests.render.written import faulty, many_heads, with_memory

WORDS = st.text(max_size=6)
NUMBERS = st.floats(width=32).map(Number)
COUNTS = st.integers(0, 2**40)
INDEX = st.none() | st.integers(0, 9)


def rows_of(cell):
    return st.lists(st.tuples(cell, cell), max_size=2).map(tuple)


def few(values, most=2):
    return st.lists(values, max_size=most).map(tuple)


WINDOWS = st.builds(
    Window, rows=few(COUNTS), cols=few(COUNTS), actual=rows_of(NUMBERS), expected=rows_of(NUMBERS)
)
ELEMENTS = st.builds(
    Element, intermediate=WORDS, batch=INDEX, head=INDEX, row=INDEX, col=INDEX, tile=st.tuples(INDEX, INDEX),
    actual=NUMBERS, expected=NUMBERS, budget=NUMBERS, masked=st.none() | st.booleans(), window=st.none() | WINDOWS,
)  # fmt: skip
HEADS = st.builds(
    Head, batch=INDEX, head=st.integers(0, 127), status=WORDS, mismatched=COUNTS,
    max_budget_ratio=st.none() | NUMBERS, rows=few(st.tuples(COUNTS, COUNTS)),
)  # fmt: skip
INTERMEDIATES = st.builds(
    Intermediate, name=WORDS, status=WORDS, source=st.none() | WORDS, reading_adds=st.none() | NUMBERS,
    max_abs_err=st.none() | NUMBERS, max_budget_ratio=st.none() | NUMBERS, length=INDEX, heads=few(HEADS, 3),
)  # fmt: skip
IDENTITIES = st.builds(
    Identity, name=WORDS, of=WORDS, holds=st.booleans(), residual=NUMBERS, budget=NUMBERS
)
STRAYS = st.builds(
    MemoryFinding,
    kind=WORDS,
    tensor=WORDS,
    sentence=WORDS,
    line=INDEX,
    lanes=COUNTS,
    place=few(INDEX, 4),
    in_block=st.booleans(),
)
ERRORS = st.builds(
    Error, kind=WORDS, message=WORDS, line=INDEX, code=st.none() | WORDS, memory=few(STRAYS)
)
RUNS = st.builds(
    Run, layout=WORDS, verdict=WORDS, skipped=st.none() | WORDS, coarser=few(WORDS), memory=few(STRAYS),
    intermediates=few(INTERMEDIATES), first_mismatch=st.none() | ELEMENTS, invariants=few(IDENTITIES),
    compared=st.builds(Counts, elements=COUNTS), error=st.none() | WORDS | ERRORS, bits=st.none() | st.booleans(),
)  # fmt: skip
ROWS = st.builds(
    CloseUpRow,
    row=COUNTS,
    mismatched=COUNTS,
    col=COUNTS,
    actual=NUMBERS,
    expected=NUMBERS,
    ratio=NUMBERS,
)
CLOSE_UPS = st.builds(
    CloseUp, layout=WORDS, intermediate=WORDS, batch=INDEX, head=COUNTS, mismatched=COUNTS, total=COUNTS,
    shape=st.tuples(COUNTS, COUNTS), tile=st.tuples(COUNTS, COUNTS), map=rows_of(st.none() | NUMBERS),
    rows=few(ROWS),
    element=ELEMENTS,
)  # fmt: skip
DIAGNOSES = st.builds(
    Diagnosis, fault=WORDS, fault_class=WORDS, summary=WORDS, explained=st.floats(0, 1), evidence=few(WORDS),
    where=few(st.builds(Where, file=WORDS, line=COUNTS, code=WORDS, column=INDEX)), fix=WORDS, also=st.booleans(),
    edit=st.none() | st.builds(TriedEdit, matches=st.booleans(), words=WORDS, diff=WORDS, others=few(WORDS)),
    seen=WORDS,
)  # fmt: skip
SURVEYS = st.builds(
    SurveySummary, layouts=COUNTS, matrix=st.dictionaries(WORDS, st.dictionaries(WORDS, WORDS, max_size=1), max_size=1),
    culprits=few(st.builds(Culprit, kind=WORDS, strides=few(st.tuples(WORDS, st.integers())), words=WORDS)),
    findings=few(STRAYS),
)  # fmt: skip
CASE = Case(
    "lazy",
    tau=(0.5, -1.0),
    window=(3, -1),
    layouts=(("q", "blhd"), ("all", "distinct")),
    runs=DEFAULT_RUNS,
)
REPORTS = st.builds(
    Report, title=WORDS, verdict=WORDS, severity=st.none() | WORDS, error=st.none() | ERRORS, runs=few(RUNS),
    target=st.builds(CheckedTarget, name=WORDS, line=INDEX, kernels=few(st.builds(Source, name=WORDS, file=WORDS))),
    case=st.sampled_from([None, CASE]), options=st.dictionaries(WORDS, st.booleans() | COUNTS | WORDS, max_size=2),
    first_mismatch=st.none() | ELEMENTS, diagnoses=few(DIAGNOSES), sought=st.booleans(),
    notes=few(WORDS), reproduce=WORDS,
    warnings=few(st.builds(WarningNote, kind=WORDS, about=WORDS, words=WORDS, layouts=few(WORDS))),
    seconds=st.dictionaries(WORDS, st.floats(0, 1e6), max_size=2), close_ups=few(CLOSE_UPS, 1),
    close_up=st.none() | CLOSE_UPS, strides=st.none() | SURVEYS,
)  # fmt: skip


@settings(derandomize=True, max_examples=60, deadline=None)
@given(REPORTS)
def test_a_report_comes_back_from_json_as_it_was(report):
    assert load(dump(report)) == report


@settings(derandomize=True, max_examples=10, deadline=None)
@given(REPORTS, REPORTS, NUMBERS)
def test_so_does_one_that_is_set_beside_another(report, other, number):
    found = Difference(layout="distinct", name="dK", total=3, heads=(1,), other=number)
    report = replace(
        report, against=SecondCheck(name="old.py:f", report=other, differences=(found,))
    )
    assert load(dump(report)) == report


def test_what_is_not_finite_is_a_word_in_json_which_stays_strict():
    row = CloseUpRow(
        row=0,
        mismatched=1,
        col=0,
        actual=Number(math.nan),
        expected=Number(-math.inf),
        ratio=Number(math.inf),
    )
    place = Element(
        intermediate="dK", batch=0, head=1, row=3, col=2, tile=(None, 0), actual=Number(math.nan),
        expected=Number(0.5), budget=Number(1e-5),
    )  # fmt: skip
    view = CloseUp(
        layout="contiguous", intermediate="dK", batch=0, head=1, mismatched=1, total=4, shape=(2, 2), tile=(2, 2),
        map=((None, Number(math.inf)),), rows=(row,), element=place,
    )  # fmt: skip
    report = Report(verdict="mismatch", close_up=view)
    text = dump(report)
    (found,) = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))[
        "close_up"
    ]["rows"]
    assert (found["actual"], found["expected"], found["ratio"]) == ("NaN", "-Infinity", "Infinity")
    assert load(text) == report
    assert math.isnan(load(text).close_up.rows[0].actual)


def test_the_first_schema_is_read_and_its_null_is_a_number_that_is_not_finite():
    first = faulty()
    first["runs"][1]["intermediates"][1]["max_budget_ratio"] = None
    first["runs"][1]["memory"] = [
        {"kind": "race", "tensor": "do", "sentence": "s", "access": None, "lanes": None}
    ]
    report = load(json.dumps(first))
    assert report.runs[1].intermediates[1].ratio == math.inf
    assert report.runs[1].memory == (MemoryFinding("race", "do", "s"),)
    assert (report.schema, report.verdict, report.first_mismatch.head) == (
        "gradprobe.report/2",
        "mismatch",
        1,
    )
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
    ["", "[]", '{"schema": "other/1"}', '{"schema": "gradprobe.report/2"}',
     '{"schema": "gradprobe.report/2", "verdict": "match", "runs": 3}',
     '{"schema": "gradprobe.report/1", "verdict": "match", "runs": [{"layout": 1}]}',
     '{"schema": "gradprobe.reports/2"}'],
)  # fmt: skip
def test_what_is_no_report_is_refused(text):
    with pytest.raises(UsageFailure, match="report"):
        load_several(text)


def test_a_report_of_128_heads_is_below_one_megabyte_a_layout():
    report = load(json.dumps(many_heads()))
    assert len(dump(report)) < 3 * 2**20
