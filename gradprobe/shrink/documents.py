"""The document of a shrunken case: its report, and what was done to come to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..cases.layouts import run_name
from ..failures import TargetFailure
from ..report.as_json import failure_as_json
from .shown import check_line
from .shrinking import Result


def document_of(result: Result, files: Mapping[str, str]) -> dict[str, Any]:
    """gradprobe.report/1 of the shrunken case, with what was done under "shrink".

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
    if result.shrunk is None:
        return result.looked.document
    if result.told is not None:
        return result.told.document
    crashed = TargetFailure(f"target {result.asked.target!r} crashed: the process that ran it ended")
    return failure_as_json(crashed, check_line(result), result.asked.target)
