"""The JSON report keeps contract's keys and types, holds no NaN, and repeats itself by its own command line."""

import hashlib
import json
from pathlib import Path

import jsonschema
import pytest

from tests.cli.command import ROOT, SMALL, run

FAILING = f"check soft.py:wrong_delta {SMALL}"

pytestmark = pytest.mark.usefixtures("made_once")


def report_of(words):
    ran = run(f"{words} --json -")
    return json.loads(ran.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())
# The names of the contract, by where they stand.
KEYS = {
    "": "schema verdict target environment case runs first_mismatch diagnoses reproduce seconds",
    "target": "name family backend file line sha256 shadows",
    "environment": "torch triton device",
    "case": "family batch heads kv_heads seqlen_q seqlen_k head_dim head_dim_v dtype causal scale bias seed device "
            "layouts block_m block_n pattern dots repeat",
    "seconds": "import target reference compare diagnose total",
    "runs.0": "layout verdict skipped intermediates first_mismatch compared invariants",
    "runs.0.compared": "heads rows elements intermediates",
    "runs.0.intermediates.-1": "name status source mismatched total non_finite max_abs_err max_budget_ratio heads",
    "runs.0.intermediates.-1.heads.1": "batch head status mismatched max_budget_ratio rows",
    "first_mismatch": "intermediate batch head row col tile actual expected budget masked",
}  # fmt: skip


def test_a_report_has_every_key_of_the_contract_and_fits_its_schema():
    report = report_of(FAILING)
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    for place, names in KEYS.items():
        found = report
        for step in filter(None, place.split(".")):
            found = found[int(step) if step.lstrip("-").isdigit() else step]
        assert set(names.split()) <= found.keys(), place
    assert report["first_mismatch"] == report["runs"][0]["first_mismatch"]
    target = report["target"]
    source = Path(target["file"]).read_bytes()
    assert source.decode().splitlines()[target["line"] - 1].startswith("def ")
    assert target["sha256"] == hashlib.sha256(source).hexdigest()
    assert (target["backend"], target["shadows"]) == ("torch", [])
    report = report_of(f"check lazily.py:backward {SMALL}")
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    assert (report["first_mismatch"], report["diagnoses"]) == (None, [])
