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
# What an address of pages that a browser can read is.
_ADDRESS = re.compile(r"https?://[^\s/]\S*")
_EXITS = {
    0: "everything matches",
    1: "a mismatch",
    2: "the command or a configuration is wrong",
    3: "the target or the tool could not run",
}


def text(several: Reports, code: int | None) -> str:
    """The document; as long as the command runs, with a check that is not finished."""
    origin = several.origin
    version, docs = (origin.version, origin.docs) if origin else (__version__, "")
    reports, base = so_far(several, code), base_of(several)
    return text_of(as_sarif(reports, base, code, version=version, docs=docs))


def as_sarif(
    reports: Sequence[Report],
    base: Base,
    code: int | None,
    *,
    most: int = MOST_RESULTS,
    version: str = __version__,
    docs: str = "",
) -> dict[str, Any]:
    """The reports as one SARIF log with one run, ready for `json.dumps`.

    GitHub takes no result without a place. What has none (a wrong command) is a notification of the invocation instead,
    and so is a layout that the target refused.

    Args:
        code: the exit code of the command; None as long as it runs.
        most: results; the least are left out and counted in a notification.
        version: of the gradprobe that made the reports.
        docs: where the pages of docs/ can be read; "" where they are nowhere.
    """
    results, told = list[Alert](), list[Alert]()
    for alert in alerts_of(reports):
        (results if alert.places and alert.level != "none" else told).append(alert)
    seen: Counter[str] = Counter()
    made = []
    for alert in results[:most]:
        seen[alert.fingerprint] += (
            1  # those of one fingerprint are told apart by how many came before
        )
        made.append(_result(alert, base, seen[alert.fingerprint]))
    root = quote(base.root.rstrip("/"), errors="replace")
    run = {
        "tool": {"driver": _driver(version, docs)},
        "invocations": [_invocation(reports, code, told, len(results) - most)],
        "originalUriBaseIds": {"%SRCROOT%": {"uri": f"file://{root}/"}},
        "columnKind": "unicodeCodePoints",
        "results": made,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def is_address(docs: str) -> bool:
    """Whether rules can lead there."""
    return bool(_ADDRESS.fullmatch(docs))


def _driver(version: str, docs: str) -> dict[str, Any]:
    driver: dict[str, Any] = {"name": "gradprobe", "version": version}
    if re.fullmatch(r"\d+\.\d+\.\d+", version):
        driver["semanticVersion"] = version
    return driver | {"rules": [_rule(rule, docs) for rule in RULES]}


def _rule(rule: Rule, docs: str) -> dict[str, Any]:
    topic = rule.topic
    page = {"helpUri": f"{docs}/explain/#{rule.id.lower()}"} if is_address(docs) else {}
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": f"{topic.title}."},
        "fullDescription": {"text": topic.what},
        "help": {"text": f"{topic.what} {topic.help}", "markdown": in_markdown(topic)},
        **page,
        "defaultConfiguration": {"level": rule.level, "rank": rule.rank},
    }


def _invocation(
    reports: Sequence[Report], code: int | None, told: Sequence[Alert], left_out: int
) -> dict[str, Any]:
    notes: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for alert in told:
        notes[alert.rule is USAGE].append(_notification(alert))
    if left_out > 0:
        words = f"{plural(left_out, 'finding')} more, the least of them, left out: a log holds so many results at most."
        notes[False].append({"level": "warning", "message": {"text": words}})
    counted = list(map(errors_of, reports))
    exits = (
        {} if code is None else {"exitCode": code, "exitCodeDescription": _EXITS.get(code, "")}
    )
    ended = (one.verdict in (MATCH, MISMATCH) and one.error is None for one in counted)
    return {
        "executionSuccessful": all(ended),
        **exits,
        "toolExecutionNotifications": notes[False],
        "toolConfigurationNotifications": notes[True],
    }


def _notification(alert: Alert) -> dict[str, Any]:
    level = "note" if alert.level == "none" else alert.level
    associated = {"id": alert.rule.id, "index": RULES.index(alert.rule)}
    return {"level": level, "message": {"text": _text(alert)}, "associatedRule": associated}


def _result(alert: Alert, base: Base, number: int) -> dict[str, Any]:
    locations = [_location(place, base) for place in alert.places[: MOST_RELATED + 1]]
    related = [{"id": at, **one} for at, one in enumerate(locations[1:], 1)]
    # GitHub knows results by the second fingerprint alone, and where it is absent takes a hash of the line: several
    # intermediates of one kernel share a line, and would be one alert.
    whole, short = (f"{known}:{number}" for known in (alert.fingerprint, alert.fingerprint[:16]))
    return {
        "ruleId": alert.rule.id,
        "ruleIndex": RULES.index(alert.rule),
        "kind": "fail",
        "level": alert.level,
        "message": {"text": _text(alert)},
        "locations": locations[:1],
        **({"relatedLocations": related} if related else {}),
        "partialFingerprints": {"gradprobeFinding/v1": whole, "primaryLocationLineHash": short},
        "rank": alert.rule.rank,
        **({"fixes": [_fix(alert.edit, base)]} if alert.edit else {}),
        "properties": {name: _cleaned(value) for name, value in alert.details.items()},
    }


def _fix(edit: TriedEdit, base: Base) -> dict[str, Any]:
    """The edit as replacements of whole lines."""
    replacements = []
    for change in replacements_of(edit.diff):
        first, last = change.line, change.line + len(change.old)
        region = {"startLine": first, "startColumn": 1, "endLine": last, "endColumn": 1}
        new = visible("".join(f"{line}\n" for line in change.new))
        replacements.append({"deletedRegion": region, "insertedContent": {"text": new}})
    artifact = _location(Place(edit.file, None), base)["physicalLocation"]["artifactLocation"]
    changes = [{"artifactLocation": artifact, "replacements": replacements}]
    return {"description": {"text": visible(f"Tried: {edit.words}.")}, "artifactChanges": changes}


def _location(place: Place, base: Base) -> dict[str, Any]:
    uri, below = base.uri(place.file)
    artifact = {"uri": uri} | ({"uriBaseId": "%SRCROOT%"} if below else {})
    physical: dict[str, Any] = {"artifactLocation": artifact}
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
