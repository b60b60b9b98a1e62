"""Documents of checks that were not to be made, and of several together: gradprobe.reports/1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..failures import Failure
from ..isolation import Crash, Raised
from ..isolation.ended import TIMEOUT
from .checked import Planned, Untaken

SCHEMA = "gradprobe.reports/1"
CRASHED, LATE = "crashed", "took too long"


def together(
    documents: Sequence[Mapping[str, Any]], planned: int, untaken: Sequence[Untaken] | None = None
) -> dict[str, Any]:
    """Several documents as one; as long as fewer came than were planned, or none at all, it is no match.

    Args:
        untaken: what the target does not take, where that is no error.
    """
    verdicts = {document["verdict"] for document in documents}
    verdicts |= {"error"} if len(documents) < planned or not documents else set()
    whole = {
        "schema": SCHEMA,
        "verdict": next((word for word in ("mismatch", "error") if word in verdicts), "match"),
        "planned": planned,
        "reports": list(documents),
    }
    return whole if untaken is None else whole | {"not_taken": [asdict(one) for one in untaken]}


def titled(document: Mapping[str, Any], title: str) -> dict[str, Any]:
    """A document of several, by name."""
    return {"title": title, **document} if title else dict(document)


def of_failure(planned: Planned, failure: Failure, seconds: float) -> dict[str, Any]:
    """What stands in a report's place, with the target and the words of the case that it would have been about."""
    from ..report.as_json import failure_as_json

    return _about(planned, failure_as_json(failure, planned.again()), seconds)


def of_raised(planned: Planned, raised: Raised) -> dict[str, Any]:
    """The same of an exception in another process."""
    document = of_failure(planned, Failure(raised.message, raised.way_out), 0.0)
    return document | {"error": document["error"] | {"kind": raised.kind}}


def of_crash(planned: Planned, crash: Crash) -> dict[str, Any]:
    """The same of a process that died or was stopped."""
    what = LATE if crash.kind == TIMEOUT else CRASHED
    way_out = "a smaller case may do, or a longer --timeout" if crash.kind == TIMEOUT else ""
    failure = Failure(f"target {planned.asked.target!r} {what}: {crash.words}", way_out)
    document = of_failure(planned, failure, crash.seconds)
    error = document["error"] | {"kind": crash.kind, "stderr_tail": crash.stderr_tail}
    return document | {"error": error, "reproduce": planned.again(isolate=True)}


def _about(planned: Planned, document: dict[str, Any], seconds: float) -> dict[str, Any]:
    asked = planned.asked
    chosen = {"reference": asked.reference} if asked.reference else {}
    target = {"name": asked.target} | ({"family": asked.family} if asked.family else {}) | chosen
    case = dict(asked.options)
    return titled({**document, "target": target, "case": case, "seconds": {"total": round(seconds, 4)}}, planned.title)
