"""docs/report.schema.json is made from the types of a report, and every report of either kind keeps to it."""

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings

from gradprobe.model.documents import document_of, report_from, report_schema
from gradprobe.model.failures import UsageFailure
from gradprobe.model.report import failed_report
from tests.model.test_documents import REPORTS
from tests.render.written import faulty, with_memory

FILE = Path(__file__).resolve().parents[2] / "docs" / "report.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(report_schema())


def test_the_file_is_what_the_types_give():
    assert json.loads(FILE.read_text()) == json.loads(json.dumps(report_schema()))
    jsonschema.Draft202012Validator.check_schema(report_schema())


@settings(derandomize=True, max_examples=60, deadline=None)
@given(REPORTS)
def test_every_report_keeps_to_the_schema(report):
    VALIDATOR.validate(document_of(report))


def test_what_a_check_a_survey_and_a_failure_write_keeps_to_the_schema():
    failed = failed_report(UsageFailure("no"), "again")
    for report in (report_from(faulty()), report_from(with_memory("race")), failed):
        VALIDATOR.validate(document_of(report))


@pytest.mark.parametrize(
    ("name", "value"),
    [("verdict", 3), ("runs", [{"layout": "contiguous"}]), ("first_mismatch", {"head": "one"})],
)
def test_the_schema_refuses_what_no_report_holds(name, value):
    assert not VALIDATOR.is_valid(document_of(report_from(faulty())) | {name: value})
