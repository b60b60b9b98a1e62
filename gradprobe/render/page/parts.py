"""Parts: what the page of one report says, as the words that its template writes."""

from __future__ import annotations

from typing import Any

from ...model.report import Report
from ..console import blame_of, first_line
from ..places import base_of


def parts_of(report: Report) -> dict[str, Any]:
    """What `report.html` reads beside the report."""
    return {
        "headline": _headline(report),
        "first_line": first_line(report) if report.measured else "",
        "element": report.first_mismatch,
        "base": base_of(report),
    }


def _headline(report: Report) -> str:
    """The sentence beside the verdict."""
    if report.error is not None:
        return report.error.message
    if (run := report.failing) is not None:
        return f"{blame_of(run)} ({report.name}, {run.layout})"
    return report.name
