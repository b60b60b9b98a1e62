"""A survey of layouts as a report of schema gradprobe.report/1: a run for each, and under "strides" what is its own."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..severity import WARNING
from ..strides.result import Result
from ..strides.survey import Survey
from ..strides.trials import PROGRAM
from ..verdict import add_counts
from .as_json import stray_as_json, without_results


def survey_as_json(found: Survey) -> dict[str, Any]:
    """The document."""
    runs = [_run(result) for result in found.results]
    first = next((run["first_mismatch"] for run in runs if run["first_mismatch"] and run["severity"] != WARNING), None)
    return {
        **found.plan.document,
        "verdict": found.verdict,
        "runs": runs,
        "first_mismatch": first,
        "compared": add_counts([run["compared"] for run in runs]),
        "warnings": [asdict(hazard.warned) for hazard in found.warnings],
        "reproduce": found.again,
        "seconds": {stage: round(took, 4) for stage, took in found.seconds.items()},
        "strides": {
            "layouts": len(found.plan.trials),
            "matrix": _matrix(found),
            "programs": {each.trial.title: each.verdict for each in found.results if each.trial.kind == PROGRAM},
            "culprits": [
                {"kind": culprit.kind, "strides": [list(stride) for stride in culprit.strides], "words": culprit.words}
                for culprit in found.culprits
            ],
            "findings": [finding for result in found.results for finding in _findings(result)],
        },
    }


def _run(result: Result) -> dict[str, Any]:
    run = without_results(result.trial.title, result.verdict) | dict(result.document or {})
    run |= {"how": result.how or None, "copied": list(result.copied)}
    run["severity"] = result.severity if result.is_failing else None
    if result.verdict != "error":
        return run
    return run | {"error": result.words, "memory": [stray_as_json(stray) for stray in result.strays]}


def _matrix(found: Survey) -> dict[str, dict[str, str]]:
    """Verdicts by tensor ("all" for all at once) and layout."""
    rows: dict[str, dict[str, str]] = {}
    for result in found.results:
        if result.trial.row:
            rows.setdefault(result.trial.row, {})[result.trial.layout] = result.verdict
    return rows


def _findings(result: Result) -> list[dict[str, Any]]:
    return [{"layout": result.trial.title, **stray_as_json(stray)} for stray in result.strays]
