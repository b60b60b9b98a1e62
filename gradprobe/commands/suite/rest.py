"""The layouts that a check had not come to when another one ended it, and what both parts come to."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from ...model.report import FAILED, MISMATCH, add_counts
from ...processes.ended import TIMEOUT
from .checked import Checked, Planned, code_of
from .heard import Heard
from .unfinished import run_ended


def rest_of(planned: Planned, checked: Checked) -> Planned | None:
    """A check of those layouts; None where there are none, where none was measured, or where one took too long."""
    error, options = checked.report.error, planned.request.options
    if error is None or error.kind == TIMEOUT or planned.close_up or "layout" in options:
        return None
    # "distinct, the reference" is where the user's reference crashed in `distinct`.
    done = [run.layout.partition(", ")[0] for run in checked.report.runs]
    if not (done and done[-1]):  # nothing was measured, or nobody knows which layout was run
        return None
    left = [name for name in planned.layouts if name not in done]
    asked_again = replace(planned.request, options={**options, "runs": left})
    return replace(planned, request=asked_again, sanitizer=None) if left else None


def joined(checked: Checked, rest: Checked, heard: Heard) -> Checked:
    """A check that a layout ended, with those that were checked after it.

    Args:
        heard: what the later check said before it ended.
    """
    first, then = checked.report, rest.report
    runs = then.runs
    if then.error and not runs:
        runs = (run_ended(then.error, heard.stage.layout if heard.stage else ""),)
    code = code_of([checked.code, rest.code])
    # What is wrong is shown with its reasons.
    own = then if code == rest.code == 1 != checked.code else first
    runs = (*first.runs, *runs)
    total = round(first.seconds["total"] + then.seconds["total"], 4)
    report = structs.replace(
        own, verdict=MISMATCH if code == 1 else FAILED, error=first.error, reproduce=first.reproduce, runs=runs,
        compared=add_counts(run.compared for run in runs), seconds={**first.seconds, "total": total},
    )  # fmt: skip
    return replace(checked, report=report, code=code)
