"""Reports as JSON, both ways: load(dump(report)) == report. Several together: schema gradprobe.reports/2.

What gradprobe.report/1 said is read too: there, null stood for every number that is not finite.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct, structs

from .assignment import parse_layout, parse_run, run_name
from .failures import UsageFailure
from .layout_run import FAILED, INCOMPLETE, MATCH, MISMATCH
from .number import WORDS, number_of
from .report import SCHEMA, Origin, Report

SCHEMA_OF_SEVERAL = "gradprobe.reports/2"
KNOWN = {SCHEMA: 1, "gradprobe.report/1": 1, SCHEMA_OF_SEVERAL: 2, "gradprobe.reports/1": 2}


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Checks that fail for one reason."""

    verdict: str
    """mismatch or error."""
    cause: str
    """The fault that is named with its line, `stride/do-head at delta.py:19`; else what is first wrong, `dP first`."""
    summary: str = ""
    """The cause in a sentence; "" where none is named."""
    titles: tuple[str, ...]
    """Of its checks, the simplest first."""
    numbers: tuple[int, ...]
    """Their places among the checks."""
    common: tuple[str, ...] = ()
    """What they have in common, and what matches does not; sentences."""
    shrunk: Report | None = None
    """The smallest case that was found to fail in the same way as the simplest; None where none was sought or found."""

    @property
    def is_mismatch(self) -> bool:
        return self.verdict == MISMATCH


PAIRS = 2
"""How many properties are combined."""
AUTO, QUICK = "auto", "quick"
"""A battery without a word, which is pairs; and the table of some thirty cases."""
BATTERIES = ("pairs", QUICK, AUTO)
"""What --battery takes."""


class Coverage(Struct, frozen=True, kw_only=True):
    """What of all combinations stands in a case that the target takes."""

    strength: int
    """PAIRS; of an older report 3 too."""
    properties: int
    """How many there are; 0 where nothing was combined, since the case without any is not right."""
    held: int = 0
    """The combinations that stand in a case."""
    missing: int = 0
    """Those that stand in none although nothing shows that the target does not take them."""
    wrong_alone: tuple[str, ...] = ()
    """The cases with one property that are wrong, so that it stands in no other case."""
    wrong_together: tuple[str, ...] = ()
    """The simplest cases of combinations that are wrong, likewise."""


class RefusedCase(Struct, frozen=True):
    """A case that is no check of a target, since it does not take it."""

    title: str
    why: str


class Reports(Struct, frozen=True, kw_only=True):
    """What several checks came to."""

    reports: tuple[Report, ...]
    """Those that count, then those that are warnings."""
    planned: int | None = None
    """How many there are to be that count; None for one check that is made alone."""
    not_taken: tuple[RefusedCase, ...] | None = None
    """What the target does not take, where that is no error."""
    origin: Origin | None = None
    """As in each of them; there may be none."""
    groups: tuple[FailureGroup, ...] = ()
    """Those that fail, by their cause; none as long as more are to come."""
    coverage: Coverage | None = None
    """Of a battery of combinations, once all are made."""

    @property
    def counted(self) -> list[Report]:
        return [report for report in self.reports if not report.is_warning]

    @property
    def verdict(self) -> str:
        """The worst of theirs. As long as fewer came than are planned it is incomplete, and none at all is no match."""
        verdicts = {report.verdict for report in self.counted}
        verdicts |= {INCOMPLETE} if len(self.counted) < (self.planned or 0) else set()
        return next(
            (word for word in (MISMATCH, INCOMPLETE, FAILED, MATCH) if word in verdicts), FAILED
        )


def document_of(report: Report) -> dict[str, Any]:
    """The report in plain values, ready for `json.dumps`: lists, no tuples, and words for what is not finite."""
    document = msgspec.to_builtins(report, enc_hook=lambda number: number.plain)
    if report.case is not None:
        document["case"] |= {
            "layouts": [f"{tensor}={layout}" for tensor, layout in report.case.layouts],
            "runs": [run_name(assigned) for assigned in report.case.runs],
        }
    if report.against is not None:
        document["against"]["report"] = document_of(report.against.report)
    listed: dict[str, Any] = _listed(document)
    return listed


def dump(report: Report) -> str:
    """The report as JSON."""
    return text_of(document_of(report))


def text_of(document: Mapping[str, Any]) -> str:
    """A document as every JSON file here is written."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def load(text: str | bytes) -> Report:
    """The inverse of `dump`.

    Raises:
        UsageFailure: it is no report.
    """
    return report_from(parsed(text))


def report_from(document: Mapping[str, Any]) -> Report:
    """A report of its document, of either schema.

    Raises:
        UsageFailure: it is none.
    """
    if not isinstance(document, Mapping):
        raise UsageFailure(f"expected a report, got a JSON {type(document).__name__}", _WAY_OUT)
    if _reports_in(document) != 1:
        raise UsageFailure(
            f"expected a report of schema {SCHEMA}, got {document.get('schema')!r}", _WAY_OUT
        )
    try:
        return msgspec.convert(
            _as_today(document), Report, dec_hook=lambda _, plain: number_of(plain)
        )
    except _DAMAGE as error:
        raise _damaged(document, error) from error


def _reports_in(document: Mapping[str, Any]) -> int:
    """1 of a report, 2 of several, 0 of what is neither."""
    schema = document.get("schema")
    return KNOWN.get(schema, 0) if isinstance(schema, str) else 0


# What making a report of a document of other types comes to.
_DAMAGE = (
    msgspec.ValidationError, UsageFailure, TypeError, ValueError, AttributeError, LookupError, ArithmeticError,
    RecursionError,
)  # fmt: skip


def _damaged(document: Mapping[str, Any], error: Exception | str) -> UsageFailure:
    words = f"$: it has no {error}" if isinstance(error, KeyError) else error
    return UsageFailure(
        f"a document of schema {document['schema']} is damaged: {words}", _WAY_OUT
    )


_WAY_OUT = "gradprobe check --json FILE writes one"


def parsed(text: str | bytes) -> dict[str, Any]:
    """The JSON object of a text.

    Raises:
        UsageFailure: it is none.
    """
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageFailure(
            f"expected a report, got what is no JSON: {error}", _WAY_OUT
        ) from error
    if not isinstance(document, dict):
        raise UsageFailure(f"expected a report, got a JSON {type(document).__name__}", _WAY_OUT)
    return document


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def several_document(several: Reports) -> dict[str, Any]:
    """Several in one document; of one that was made alone, its own. Those that do not count stand under "warnings"."""
    if several.planned is None and len(several.reports) == 1:
        return document_of(several.reports[0])
    more = (
        {} if several.not_taken is None else {"not_taken": msgspec.to_builtins(several.not_taken)}
    )
    more |= {"groups": list(map(_group_document, several.groups))} if several.groups else {}
    more |= (
        {} if several.coverage is None else {"coverage": msgspec.to_builtins(several.coverage)}
    )
    return {
        "schema": SCHEMA_OF_SEVERAL,
        "origin": msgspec.to_builtins(several.origin),
        "verdict": several.verdict,
        "planned": len(several.counted) if several.planned is None else several.planned,
        "reports": [document_of(report) for report in several.counted],
        "warnings": [warned for report in several.reports for warned in _warned(report)],
        **_listed(more),
    }


def _group_document(group: FailureGroup) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(structs.replace(group, shrunk=None))
    return plain if group.shrunk is None else plain | {"shrunk": document_of(group.shrunk)}


def _group_from(document: Mapping[str, Any]) -> FailureGroup:
    shrunk = document.get("shrunk")
    group = msgspec.convert({**document, "shrunk": None}, FailureGroup)
    return group if shrunk is None else structs.replace(group, shrunk=report_from(shrunk))


def _warned(report: Report) -> Iterator[dict[str, Any]]:
    """The warnings of one of several, each with its target, and with the report of a check that is one."""
    whole = {"report": document_of(report)} if report.is_warning else {}
    for warned in report.warnings:
        about = {"target": report.target.name or None, "title": report.title or None}
        yield about | _listed(asdict(warned)) | whole


def load_several(text: str | bytes) -> Reports:
    """One report or several, of either schema.

    Raises:
        UsageFailure: it is neither.
    """
    document = parsed(text)
    if _reports_in(document) != 2:
        report = report_from(document)
        return Reports(reports=(report,), origin=report.origin)
    try:
        mild = [one["report"] for one in document["warnings"] if one.get("report")]
        # Each once: a report with two warnings stands at both.
        parts = [
            *document["reports"],
            *(one for at, one in enumerate(mild) if one not in mild[:at]),
        ]
        untaken = msgspec.convert(document.get("not_taken"), tuple[RefusedCase, ...] | None)
        origin = msgspec.convert(document.get("origin"), Origin | None)
        reports = tuple(_part(one, at) for at, one in enumerate(parts))
        groups = tuple(map(_group_from, document.get("groups", ())))
        coverage = msgspec.convert(document.get("coverage"), Coverage | None)
        return Reports(
            reports=reports,
            planned=msgspec.convert(document["planned"], int | None),
            not_taken=untaken,
            origin=origin,
            groups=groups,
            coverage=coverage,
        )
    except _DAMAGE as error:
        raise _damaged(document, error) from error


def _part(document: Any, at: int) -> Report:
    try:
        return report_from(document)
    except UsageFailure as failure:
        raise UsageFailure(f"$.reports[{at}]: {failure}", failure.way_out) from failure


def _as_today(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as this schema has it: parsed layouts, and nothing where /1 had null in a word's place."""
    found = {
        name: value
        for name, value in document.items()
        if not (value is None and name in _NEVER_NULL)
    }
    case = found.get("case")
    if case is not None and "family" in case and "runs" in case:
        layouts, runs = map(parse_layout, case["layouts"]), map(parse_run, case["runs"])
        found["case"] = {**case, "layouts": tuple(layouts), "runs": tuple(runs)}
    elif case is not None:  # the words of a case that could not be made
        found |= {"case": None, "options": case}
    if against := found.get("against"):
        found["against"] = {**against, "report": _as_today(against["report"])}
    if document["schema"] == SCHEMA:
        return found
    return found | {"schema": SCHEMA, **_of_the_first_schema(found)}


_NEVER_NULL = ("title", "target", "options", "compared", "reproduce")


def _of_the_first_schema(document: Mapping[str, Any]) -> dict[str, Any]:
    """What /1 named or held otherwise."""
    runs = [
        {**run, "memory": [_present(one) for one in run.get("memory") or ()]}
        for run in document["runs"]
    ]
    changed: dict[str, Any] = {"runs": list(map(_present, runs))}
    if strides := document.get("strides"):
        changed["strides"] = {
            **strides,
            "findings": [_present(one) for one in strides.get("findings") or ()],
        }
    if error := document.get("error"):
        changed["error"] = {
            **error,
            "memory": [_present(one) for one in error.get("memory") or ()],
        }
    if view := document.get("close_up"):
        changed["close_up"] = None if "element" not in view else view
    environment = document.get("environment") or {}
    changed["environment"] = {name: str(value) for name, value in environment.items()}
    return changed


def _present(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value is not None}


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, (tuple, list)) else value


_LISTED = {"type": "array", "items": {"type": "string"}}


def report_schema() -> dict[str, Any]:
    """The schema of what `document_of` gives."""
    number = {"anyOf": [{"type": "number"}, {"enum": list(WORDS)}]}
    components = partial(msgspec.json.schema_components, ref_template="#/$defs/{name}")
    (schema,), parts = components((Report,), schema_hook=lambda _: number)
    # There layouts and runs are words.
    parts["Case"]["properties"] |= {"layouts": _LISTED, "runs": _LISTED}
    parts["Report"]["properties"]["schema"] = {"const": SCHEMA}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        **schema,
        "$defs": parts,
    }


if __name__ == "__main__":
    print(json.dumps(report_schema(), indent=2))
