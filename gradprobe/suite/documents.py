"""Checks that came to no end: their documents, with what was measured before, and what a person reads of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..failures import Failure, ReferenceFailure, TargetFailure, as_failure
from ..isolation import Crash, Line, Raised
from ..isolation.ended import CRASH, DEVICE, MEMORY, TIMEOUT
from .checked import Checked, Planned
from .heard import Heard

CRASHED, LATE = "crashed", "took too long"
_DEBUGGED = "--no-isolate runs it in this process, for a debugger"
_WAYS_OUT = {
    TIMEOUT: "a smaller case may do, or a longer --timeout",
    MEMORY: "a smaller case may do, or a higher --max-memory",
}


def titled(document: Mapping[str, Any], title: str) -> dict[str, Any]:
    """A document of several, by name."""
    return {"title": title, **document} if title else dict(document)


def of_error(planned: Planned, error: BaseException, heard: Heard, seconds: float) -> Checked:
    """A check that an exception ended, also one that asks for the end of its process."""
    failure = as_failure(error)
    if not isinstance(error, Exception):
        where = f" ({_layout(heard)})" if _layout(heard) else ""
        failure = TargetFailure(f"{_subject(planned, heard)} raised {type(error).__name__}{where}", failure.way_out)
    told = {"kind": type(failure).__name__, "message": str(failure), "way_out": failure.way_out}
    return _ended(planned, told, failure.exit_code, heard, seconds)


def of_raised(planned: Planned, raised: Raised, heard: Heard) -> Checked:
    """The same of an exception in another process."""
    error = {"kind": raised.kind, "message": raised.message, "way_out": raised.way_out}
    return _ended(planned, error, raised.exit_code, heard, 0.0)


def of_crash(planned: Planned, crash: Crash, heard: Heard, memory: Sequence[Mapping[str, Any]] = ()) -> Checked:
    """A check whose process died or was stopped.

    Args:
        memory: what the interpreter's watch sees the kernels do there, as in a report.
    """
    what = LATE if crash.kind == TIMEOUT else CRASHED
    subject, where = _subject(planned, heard), f" ({_layout(heard)})" if _layout(heard) else ""
    way_out = _WAYS_OUT.get(crash.kind, _DEBUGGED)
    words = f"{crash.words}{crash.where}" + (f"; small in the interpreter {memory[0]['sentence']}" if memory else "")
    error = {
        "kind": crash.kind, "message": f"{subject} {what}{where}: {words}", "way_out": way_out, "words": words,
        "stderr_tail": crash.stderr_tail, "stack": crash.stack, **_place(crash.last), "memory": list(memory),
    }  # fmt: skip
    return _ended(planned, error, Failure.exit_code, heard, crash.seconds)


def _place(last: Line | None) -> dict[str, Any]:
    return asdict(last) if last else dict.fromkeys(("file", "line", "function", "code"))


def _subject(planned: Planned, heard: Heard) -> str:
    if heard.stage is not None and heard.stage.words.startswith("reference "):
        return f"reference {planned.asked.reference!r}"
    return f"target {planned.asked.target!r}"


def _layout(heard: Heard) -> str:
    """What was run when it ended, as no run that is measured is called; "" before the first."""
    if heard.stage is None or not heard.stage.layout:
        return ""
    measured = {run["layout"] for run in heard.so_far.document["runs"]} if heard.so_far else set()
    return f"{heard.stage.layout}, once more" if heard.stage.layout in measured else heard.stage.layout


def _ended(planned: Planned, error: Mapping[str, Any], code: int, heard: Heard, seconds: float) -> Checked:
    """What was measured counts, whatever came after it, unless that says that nobody may judge by it."""
    if heard.so_far is None or code != Failure.exit_code or error["kind"] == ReferenceFailure.__name__:
        return Checked(planned.title, planned.asked, _nothing(planned, error, seconds), (), code)
    run, line = run_ended(error, _layout(heard))
    document = {
        **heard.so_far.document,
        "verdict": "mismatch" if heard.mismatch else "error",
        "error": error,
        "runs": [*heard.so_far.document["runs"], run],
        "seconds": {**heard.so_far.document["seconds"], "total": round(seconds, 4)},
    }
    lines = (*heard.so_far.lines, *(["  then:"] if heard.mismatch else []), line)
    return Checked(planned.title, planned.asked, titled(document, planned.title), lines, 1 if heard.mismatch else code)


def run_ended(error: Mapping[str, Any], layout: str) -> tuple[dict[str, Any], str]:
    """The layout that ended a check, as one of its runs, and its line."""
    from ..report.as_json import without_results

    told = {name: error[name] for name in ("kind", "message", "file", "line", "function", "code") if name in error}
    run = without_results(layout, "crashed" if error["kind"] in (CRASH, DEVICE, MEMORY) else "error")
    said = error.get("words") or re.sub(r"^target '.*?' ", "", error["message"])
    line = f"  {layout:<14} {run['verdict']}: {said}"
    return run | {"memory": error.get("memory", []), "error": told}, line


def _nothing(planned: Planned, error: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What stands in a report's place, with the target and the words of the case that it would have been about."""
    from ..report.as_json import failure_as_json

    asked = planned.asked
    chosen = {"reference": asked.reference} if asked.reference else {}
    document = failure_as_json(Failure(""), planned.again) | {
        "error": dict(error),
        "target": {"name": asked.target} | ({"family": asked.family} if asked.family else {}) | chosen,
        "case": dict(asked.options),
        "seconds": {"total": round(seconds, 4)},
    }
    return titled(document, planned.title)
