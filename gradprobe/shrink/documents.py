"""The document of a shrunken case: its report, and what was done to come to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..cases.layouts import run_name
from ..failures import TargetFailure
from ..model import documents
from ..model.report import failed_report
from .shown import check_line
from .shrinking import Result


def document_of(result: Result, files: Mapping[str, str]) -> dict[str, Any]:
    """The report of the shrunken case, with what was done under "shrink".

    Where the case asked for matches it is the report of that.
    """
    shrunk, asked = result.shrunk, result.facts.case
    about: dict[str, Any] = {
        "from": {**asdict(asked), "layouts": [], "runs": [run_name(assigned) for assigned in asked.runs]}
    }
    about |= {"tries": result.tries, "complete": shrunk is None or shrunk.complete, "kept": result.from_kept}
    about |= {"script": files.get("script"), "test": files.get("test"), "needs": list(shrunk.needs) if shrunk else []}
    about |= {"symptom": asdict(shrunk.symptom) if shrunk else None, "seconds": round(result.seconds, 4)}
    return {**_report(result), "shrink": about}


def _report(result: Result) -> Mapping[str, Any]:
    if result.shrunk is None and result.looked.report is not None:
        return documents.document_of(result.looked.report)
    if result.told is not None:
        return documents.document_of(result.told.report)
    crashed = TargetFailure(f"target {result.asked.target!r} crashed: the process that ran it ended")
    return documents.document_of(failed_report(crashed, check_line(result), result.asked.target))
