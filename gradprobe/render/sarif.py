"""SARIF 2.1.0, as GitHub's code scanning takes it: a result a finding."""

from collections import Counter
from typing import Any
from urllib.parse import quote

from .. import __version__
from ..model.documents import Reports, text_of
from ..model.layout_run import MATCH, MISMATCH
from ..model.writing import visible
from .alerts import RULES, Alert, Rule, alerts_of
from .notation import errors_of, so_far
from .source_places import Base, base_of

_ENDED, _TRY = (MATCH, MISMATCH), "**Try:** "
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def text(several: Reports, code: int | None) -> str:
    """One log with one run. What has no place is a notification: GitHub takes no such result."""
    reports, base = so_far(several, code), base_of(several)
    results, notes, seen = list[dict[str, Any]](), list[dict[str, Any]](), Counter[str]()
    for alert in alerts_of(reports):
        if alert.places and alert.level != "none":
            seen[alert.fingerprint] += 1
            results.append(_result(alert, base, seen[alert.fingerprint]))
        else:
            rule, level = {"id": alert.rule.id}, alert.level.replace("none", "note")
            message = {"text": _text(alert)}
            notes.append({"level": level, "message": message, "associatedRule": rule})
    counted = map(errors_of, reports)
    version = several.origin.version if several.origin else __version__
    driver = {"name": "gradprobe", "version": version, "rules": list(map(_rule, RULES.values()))}
    is_done = all(report.error is None and report.verdict in _ENDED for report in counted)
    invocation = {"executionSuccessful": is_done, "toolExecutionNotifications": notes}
    root = quote(base.root.rstrip("/"), errors="replace")
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation | ({} if code is None else {"exitCode": code})],
        "originalUriBaseIds": {"%SRCROOT%": {"uri": f"file://{root}/"}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return text_of({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(rule: Rule) -> dict[str, Any]:
    what, *_, do = rule.paragraphs
    return {
        "id": rule.id, "name": rule.name,
        "shortDescription": {"text": f"{rule.title}."},
        "fullDescription": {"text": what},
        "help": {"text": f"{what} {do.removeprefix(_TRY)}", "markdown": "\n\n".join(rule.paragraphs)},
        "defaultConfiguration": {"level": rule.level, "rank": rule.rank},
    }  # fmt: skip


def _result(alert: Alert, base: Base, number: int) -> dict[str, Any]:
    place = alert.places[0]
    uri, below = base.uri(place.file)
    physical: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if below:
        physical["artifactLocation"]["uriBaseId"] = "%SRCROOT%"
    if place.line:
        physical["region"] = {"startLine": place.line}
    name = {"message": {"text": visible(place.name)}} if place.name else {}
    # GitHub knows results by the second fingerprint alone, and where it is absent takes a hash of the line: several
    # intermediates of one kernel share a line, and would be one alert.
    whole, short = f"{alert.fingerprint}:{number}", f"{alert.fingerprint[:16]}:{number}"
    return {
        "ruleId": alert.rule.id,
        "ruleIndex": list(RULES).index(alert.rule.id),
        "kind": "fail",
        "level": alert.level,
        "message": {"text": _text(alert)},
        "locations": [{"physicalLocation": physical, **name}],
        "partialFingerprints": {"gradprobeFinding/v1": whole, "primaryLocationLineHash": short},
        "rank": alert.rule.rank,
    }


def _text(alert: Alert) -> str:
    return visible(f"{alert.check}: " + "\n".join(alert.sentences))
