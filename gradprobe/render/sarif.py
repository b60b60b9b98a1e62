"""SARIF 2.1.0: one result a finding, the worst first, as GitHub's code scanning takes it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from .. import __version__
from ..model.documents import Reports, text_of
from ..model.layout_run import MATCH, MISMATCH
from ..model.number import plural
from ..model.report import Report, TriedEdit, replacements_of
from ..model.writing import visible
from .alerts import RULES, USAGE, Alert, Rule, alerts_of
from .notation import errors_of, so_far
from .source_places import Base, Place, base_of
from .topic import in_markdown

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# GitHub rejects a file with more results than this, and shows the first 5,000 by severity.
MOST_RESULTS = 25_000
MOST_RELATED = 10
_EXITS = {
    0: "everything matches",
    1: "a mismatch",
    2: "the command or a configuration is wrong",
    3: "the target or the tool could not run",
}


def text(several: Reports, code: int | None) -> str:
    """The document; as long as the command runs, with a check that is not finished."""
    version = several.origin.version if several.origin else __version__
    return text_of(as_sarif(so_far(several, code), base_of(several), code, version=version))


def as_sarif(
    reports: Sequence[Report],
    base: Base,
    code: int | None,
    *,
    most: int = MOST_RESULTS,
    version: str = __version__,
) -> dict[str, Any]:
    """The reports as one SARIF log with one run, ready for `json.dumps`.

    GitHub takes no result without a place. What has none (a wrong command) is a notification of the invocation instead,
    and so is a layout that the target refused.

    Args:
        code: the exit code of the command; None as long as it runs.
        most: results; the least are left out and counted in a notification.
        version: of the gradprobe that made the reports.
    """
    results, told = list[Alert](), list[Alert]()
    for alert in alerts_of(reports):
        (results if alert.places and alert.level != "none" else told).append(alert)
    seen, made = Counter[str](), list[dict[str, Any]]()
    for alert in results[:most]:
        seen[alert.fingerprint] += 1  # what tells those of one fingerprint apart
        made.append(_result(alert, base, seen[alert.fingerprint]))
    root = quote(base.root.rstrip("/"), errors="replace")
    driver: dict[str, Any] = {"name": "gradprobe", "version": version}
    if re.fullmatch(r"\d+\.\d+\.\d+", version):
        driver["semanticVersion"] = version
    run = {
        "tool": {"driver": driver | {"rules": list(map(_rule, RULES))}},
        "invocations": [_invocation(reports, code, told, len(results) - most)],
        "originalUriBaseIds": {"%SRCROOT%": {"uri": f"file://{root}/"}},
        "columnKind": "unicodeCodePoints",
        "results": made,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    topic = rule.topic
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": f"{topic.title}."},
        "fullDescription": {"text": topic.what},
        "help": {"text": f"{topic.what} {topic.help}", "markdown": in_markdown(topic)},
        "defaultConfiguration": {"level": rule.level, "rank": rule.rank},
    }


def _invocation(
    reports: Sequence[Report], code: int | None, told: Sequence[Alert], left_out: int
) -> dict[str, Any]:
    notes, wrong_usage = list[dict[str, Any]](), list[dict[str, Any]]()
    for alert in told:
        level = "note" if alert.level == "none" else alert.level
        rule = {"id": alert.rule.id, "index": RULES.index(alert.rule)}
        note = {"level": level, "message": {"text": _text(alert)}, "associatedRule": rule}
        (wrong_usage if alert.rule is USAGE else notes).append(note)
    if left_out > 0:
        words = f"{plural(left_out, 'finding')} more, the least of them, left out: a log holds so many results at most."
        notes.append({"level": "warning", "message": {"text": words}})
    counted = map(errors_of, reports)
    ended = all(one.verdict in (MATCH, MISMATCH) and one.error is None for one in counted)
    found = {
        "executionSuccessful": ended,
        "toolExecutionNotifications": notes,
        "toolConfigurationNotifications": wrong_usage,
    }
    if code is not None:
        found |= {"exitCode": code, "exitCodeDescription": _EXITS.get(code, "")}
    return found


def _result(alert: Alert, base: Base, number: int) -> dict[str, Any]:
    locations = [_location(place, base) for place in alert.places[: MOST_RELATED + 1]]
    # GitHub knows results by the second fingerprint alone, and where it is absent takes a hash of the line: several
    # intermediates of one kernel share a line, and would be one alert.
    whole, short = (f"{known}:{number}" for known in (alert.fingerprint, alert.fingerprint[:16]))
    result = {
        "ruleId": alert.rule.id,
        "ruleIndex": RULES.index(alert.rule),
        "kind": "fail",
        "level": alert.level,
        "message": {"text": _text(alert)},
        "locations": locations[:1],
        "relatedLocations": [{"id": at, **one} for at, one in enumerate(locations[1:], 1)],
        "partialFingerprints": {"gradprobeFinding/v1": whole, "primaryLocationLineHash": short},
        "rank": alert.rule.rank,
        "properties": {name: _cleaned(value) for name, value in alert.details.items()},
    }
    return result | ({"fixes": [_fix(alert.edit, base)]} if alert.edit else {})


def _fix(edit: TriedEdit, base: Base) -> dict[str, Any]:
    """The edit as replacements of whole lines."""
    replacements = []
    for change in replacements_of(edit.diff):
        first, last = change.line, change.line + len(change.old)
        region = {"startLine": first, "startColumn": 1, "endLine": last, "endColumn": 1}
        new = visible("".join(f"{line}\n" for line in change.new))
        replacements.append({"deletedRegion": region, "insertedContent": {"text": new}})
    changes = [{"artifactLocation": _artifact(edit.file, base), "replacements": replacements}]
    return {"description": {"text": visible(f"Tried: {edit.words}.")}, "artifactChanges": changes}


def _artifact(file: str, base: Base) -> dict[str, Any]:
    uri, below = base.uri(file)
    return {"uri": uri} | ({"uriBaseId": "%SRCROOT%"} if below else {})


def _location(place: Place, base: Base) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": _artifact(place.file, base)}
    if place.line:
        physical["region"] = {"startLine": place.line}
    name = {"message": {"text": visible(place.name)}} if place.name else {}
    return {"physicalLocation": physical, **name}


def _text(alert: Alert) -> str:
    return visible(f"{alert.check}: " + "\n".join(alert.sentences))


def _cleaned(value: Any) -> Any:
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return visible(value) if isinstance(value, str) else value
