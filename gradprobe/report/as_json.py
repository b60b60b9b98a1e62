"""The JSON form, schema gradprobe.report/1: stable names, plain numbers, null for what is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..cases.case import Case
from ..cases.layouts import run_name
from ..diagnosis import Diagnosis
from ..failures import Failure
from ..incomplete import INCOMPLETE
from ..intermediates import steps
from ..judging.measured import Measured
from ..judging.strays import Stray
from ..judging.tally import Finding
from ..running.trace import dtype_of
from ..severity import WARNING
from ..targets.provenance import Source
from ..verdict import MISMATCH, Report, Run, add_counts, compared

if TYPE_CHECKING:
    from ..judging.locate import Location

SCHEMA = "gradprobe.report/1"
SCHEMA_OF_SEVERAL = "gradprobe.reports/1"


def as_json(report: Report) -> dict[str, Any]:
    """The whole report, ready for `json.dumps`."""
    failing = report.failing
    return {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "target": _target(report),
        "environment": dict(report.environment) | {"triton_cache": report.provenance.triton_cache},
        "case": _case(report),
        "runs": [run_as_json(report.case, run) for run in report.runs],
        "first_mismatch": _first(failing[1].first) if failing else None,
        "diagnoses": [_diagnosis(diagnosis) for diagnosis in report.diagnoses],
        "known": list(report.known),
        "notes": list(report.notes),
        "compared": report.compared,
        "warnings": [asdict(warned) for warned in report.warnings],
        "reproduce": report.reproduce,
        "seconds": {stage: round(seconds, 4) for stage, seconds in report.seconds.items()},
    }


def failure_as_json(failure: Failure, reproduce: str, target: str | None = None) -> dict[str, Any]:
    """What stands in a report's place where there was none to make."""
    return {
        "schema": SCHEMA,
        "verdict": "error",
        **({"target": {"name": target}} if target else {}),
        "error": {"kind": type(failure).__name__, "message": str(failure), "way_out": failure.way_out},
        "runs": [],
        "first_mismatch": None,
        "diagnoses": [],
        "reproduce": reproduce,
    }


def together(documents: Sequence[Mapping[str, Any]], planned: int | None = None) -> Mapping[str, Any]:
    """Several documents in one, whose verdict is the worst of theirs. Checks that do not count stand under "warnings".

    Args:
        planned: how many there are to be that count; as long as fewer came it is incomplete, and none at all is no
            match. None for a check that is made alone, which is itself the document.
    """
    if planned is None and len(documents) == 1:
        return documents[0]
    counted = [document for document in documents if document.get("severity") != WARNING]
    planned = len(counted) if planned is None else planned
    verdicts = {document["verdict"] for document in counted} | ({INCOMPLETE} if len(counted) < planned else set())
    whole = next((word for word in (MISMATCH, INCOMPLETE, "error", "match") if word in verdicts), "error")
    warnings = [warned for document in documents for warned in _warned(document)]
    return {
        "schema": SCHEMA_OF_SEVERAL, "verdict": whole, "planned": planned, "reports": counted, "warnings": warnings
    }  # fmt: skip


def _warned(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The warnings of one of several documents, each with its target, and with the report of a check that is one."""
    target, title = (document.get("target") or {}).get("name"), document.get("title")
    report = {"report": document} if document.get("severity") == WARNING else {}
    for warned in document.get("warnings") or ():
        yield {"target": target, "title": title, **warned, **report}


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "fault": diagnosis.fault,
        "class": diagnosis.fault_class,
        "summary": diagnosis.summary,
        "explained": diagnosis.explained,
        "evidence": list(diagnosis.evidence),
        "where": [asdict(where) for where in diagnosis.where],
        "fix": diagnosis.fix,
        "also": diagnosis.also,
    }


def _target(report: Report) -> dict[str, Any]:
    provenance = report.provenance
    return {
        "name": provenance.target,
        "family": report.case.family,
        "backend": provenance.backend,
        **_source(provenance.source),
        "shadows": list(provenance.shadows),
        "kernels": [{"name": kernel.name, **_source(kernel)} for kernel in provenance.kernels],
        "reference": provenance.reference,
    }


def _source(source: Source) -> dict[str, Any]:
    return {"file": source.file, "line": source.line, "sha256": source.sha256}


def _case(report: Report) -> dict[str, Any]:
    case = asdict(report.case)
    case["layouts"] = [f"{tensor}={layout}" for tensor, layout in report.case.layouts]
    case["runs"] = [run_name(assigned) for assigned in report.case.runs]
    return _plain(case)  # type: ignore[no-any-return]


def run_as_json(case: Case, run: Run) -> dict[str, Any]:
    """One of a report's runs."""
    measured = run.shown
    if measured is None:
        memory = [stray_as_json(stray) for stray in run.strays]
        return without_results(run.layout, run.verdict) | {"skipped": run.skipped, "memory": memory}
    return {
        "layout": run.layout,
        "verdict": run.verdict,
        "skipped": None,
        "precision": measured.comparison.precision.name,
        "undecided": measured.comparison.undecided,
        "coarser": [coarser.words for coarser in measured.coarser],
        "memory": [stray_as_json(stray) for stray in run.strays],
        "inside": list(run.inside.sentences) if run.inside else [],
        "intermediates": _intermediates(case, measured),
        "first_mismatch": _first(measured.first),
        "compared": compared(case, measured),
        "invariants": [
            {
                "name": invariant.name, "of": invariant.of, "holds": invariant.holds,
                "residual": number(invariant.residual), "budget": number(invariant.budget),
            }
            for invariant in measured.invariants
        ],
    }  # fmt: skip


def without_results(layout: str, verdict: str) -> dict[str, Any]:
    """A run of which nothing is known but how it ended."""
    return {
        "layout": layout, "verdict": verdict, "skipped": None, "intermediates": [], "coarser": [], "memory": [],
        "first_mismatch": None, "compared": add_counts([]), "invariants": [],
    }  # fmt: skip


def stray_as_json(stray: Stray) -> dict[str, Any]:
    """A finding about memory."""
    return {
        "kind": stray.kind, "tensor": stray.tensor, "kernel": stray.kernel,
        "file": stray.file, "line": stray.line, "code": stray.code, "sentence": stray.sentence,
        "severity": stray.severity,
        "access": stray.access or None, "lanes": stray.lanes or None,
        "place": list(stray.place), "actual": stray.stood[0], "expected": stray.stood[1],
    }  # fmt: skip


def _intermediates(case: Case, measured: Measured) -> list[dict[str, Any]]:
    findings, absent = measured.comparison.findings, measured.comparison.absent
    names = [row.name for row, _ in steps(case.family) if row.name in findings or row.name in absent]
    return [_finding(findings[name], measured) if name in findings else _not_exposed(name) for name in names]


def _finding(finding: Finding, measured: Measured) -> dict[str, Any]:
    return {
        "name": finding.name,
        "status": finding.status,
        "source": measured.trace.sources[finding.name],
        "dtype": dtype_of(measured.trace, finding.name),
        "reading_adds": measured.comparison.reading.get(finding.name),
        "mismatched": finding.mismatched,
        "total": finding.total,
        "non_finite": finding.non_finite,
        "max_abs_err": number(finding.max_abs_err),
        "max_budget_ratio": number(finding.max_ratio),
        "heads": _heads(finding),
    }


def _not_exposed(name: str) -> dict[str, Any]:
    return {
        "name": name, "status": "not exposed", "source": None, "dtype": None, "reading_adds": None, "mismatched": 0,
        "total": 0, "non_finite": 0, "max_abs_err": None, "max_budget_ratio": None, "heads": [],
    }  # fmt: skip


def _heads(finding: Finding) -> list[dict[str, Any]]:
    n_batch, n_heads = finding.ratio.shape
    return [
        {
            "batch": batch if finding.axes[0] == "b" else None,
            "head": head,
            "status": finding.head_status(batch, head),
            "mismatched": int(finding.wrong[batch, head]),
            "max_budget_ratio": number(float(finding.ratio[batch, head])),
            "rows": [list(span) for span in finding.row_ranges(batch, head)],
        }
        for batch in range(n_batch)
        for head in range(n_heads)
    ]


def _first(location: Location | None) -> dict[str, Any] | None:
    if location is None:
        return None
    place = location.place
    return {
        "intermediate": location.intermediate,
        "batch": place.batch, "head": place.head, "row": place.row, "col": place.col,
        "tile": list(location.tile),
        "actual": number(place.actual), "expected": number(place.expected), "budget": number(place.budget),
        "masked": location.masked,
    }  # fmt: skip


def number(value: float) -> float | None:
    """A plain number; None where it is not finite."""
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return number(value) if isinstance(value, float) else value
