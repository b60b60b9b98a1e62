"""The layouts that a check had not come to when another one ended it, and what both parts come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..cases.layouts import parse_run, planned_runs, run_name
from ..isolation.ended import TIMEOUT
from .checked import Checked, Planned, code_of
from .documents import run_ended
from .heard import Heard


def rest_of(planned: Planned, checked: Checked) -> Planned | None:
    """A check of those layouts; None where there are none, where none was measured, or where one took too long."""
    document, options = checked.document, planned.asked.options
    error = document.get("error")
    if error is None or error["kind"] == TIMEOUT or planned.close_up or "layout" in options:
        return None
    # "distinct, the reference" is where the user's reference crashed in `distinct`.
    done = [run["layout"].partition(", ")[0] for run in document["runs"]]
    if not (done and done[-1]):  # nothing was measured, or nobody knows which layout was run
        return None
    asked = tuple(parse_run(word) for word in options.get("runs") or ())
    names = map(run_name, planned_runs(asked, are_saved="inputs" in options))
    left = [name for name in names if name not in done]
    asked_again = replace(planned.asked, options={**options, "runs": left})
    return replace(planned, asked=asked_again, sanitizer=None) if left else None


def joined(checked: Checked, rest: Checked, heard: Heard) -> Checked:
    """A check that a layout ended, with those that were checked after it.

    Args:
        heard: what the later check said before it ended.
    """
    runs, lines = rest.document["runs"], heard.so_far.layouts if heard.so_far else ()
    if error := rest.document.get("error"):
        layout = runs[-1]["layout"] if runs else heard.stage.layout if heard.stage else ""
        run, line = run_ended(error, layout)
        runs, lines = runs or [run], (*lines, line)
    code = code_of([checked.code, rest.code])
    # A report begins with what is wrong.
    turned = code == rest.code == 1 != checked.code
    lines = (*rest.lines, "  before:", *checked.lines) if turned else (*checked.lines, *lines)
    own = rest.document if turned else checked.document
    document = {**own, **_of_both(checked.document, rest.document, runs)}
    document["verdict"] = "mismatch" if code == 1 else "error"
    return replace(checked, document=document, lines=lines, code=code)


def _of_both(first: Mapping[str, Any], rest: Mapping[str, Any], runs: list[Any]) -> dict[str, Any]:
    total = round(first["seconds"]["total"] + rest["seconds"]["total"], 4)
    kept = {name: first[name] for name in ("error", "reproduce")}
    return kept | {"runs": [*first["runs"], *runs], "seconds": {**first["seconds"], "total": total}}
