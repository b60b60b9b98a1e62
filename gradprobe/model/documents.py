"""Reports as JSON, both ways. In gradprobe.report/1 null stood for absent, and for not finite."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from .assignment import parse_layout, parse_run, run_name
from .failures import UsageFailure, did_you_mean
from .layout_run import FAILED, INCOMPLETE, MATCH, MISMATCH
from .number import WORDS, number_of
from .report import SCHEMA, Origin, Report

SCHEMA_OF_SEVERAL = "gradprobe.reports/2"
_SINGLE, _SEVERAL = (SCHEMA, "gradprobe.report/1"), (SCHEMA_OF_SEVERAL, "gradprobe.reports/1")
_WAY_OUT = "gradprobe check --json FILE writes one"
PAIRS = 2
AUTO, QUICK = "auto", "quick"
BATTERIES = ("pairs", QUICK, AUTO)
Kind = TypeVar("Kind")


class FailureGroup(Struct, frozen=True, kw_only=True):
    verdict: str
    cause: str  # `stride/do-head at delta.py:19`, or `dP first`
    summary: str = ""
    titles: tuple[str, ...]
    numbers: tuple[int, ...]
    common: tuple[str, ...] = ()
    shrunk: Report | None = None

    @property
    def is_mismatch(self) -> bool:
        return self.verdict == MISMATCH


class Coverage(Struct, frozen=True, kw_only=True):
    """Of combinations in cases that the target takes."""

    strength: int
    properties: int  # 0 where the case without any is wrong
    held: int = 0
    missing: int = 0


class RefusedCase(Struct, frozen=True):
    title: str
    why: str


class Reports(Struct, frozen=True, kw_only=True, omit_defaults=True):
    reports: tuple[Report, ...]  # warnings last
    planned: int | None = None  # None for one alone
    not_taken: tuple[RefusedCase, ...] | None = None
    origin: Origin | None = None
    groups: tuple[FailureGroup, ...] = ()
    coverage: Coverage | None = None

    @property
    def counted(self) -> list[Report]:
        return [report for report in self.reports if not report.is_warning]

    @property
    def verdict(self) -> str:
        """The worst, incomplete where fewer came than planned; none at all is no match."""
        verdicts = {report.verdict for report in self.counted}
        verdicts |= {INCOMPLETE} if len(self.counted) < (self.planned or 0) else set()
        worst_first = (MISMATCH, INCOMPLETE, FAILED, MATCH)
        return next((word for word in worst_first if word in verdicts), FAILED)


class _ToldWarning(Struct):
    report: Report | None = None


class _ReportsDocument(Reports, frozen=True, kw_only=True):
    warnings: tuple[_ToldWarning, ...]


def document_of(report: Report) -> dict[str, Any]:
    document: dict[str, Any] = _plain(report)
    return document


def several_document(several: Reports) -> dict[str, Any]:
    """Of one that was made alone, its own."""
    if several.planned is None and len(several.reports) == 1:
        return document_of(several.reports[0])
    document: dict[str, Any] = _plain(several)
    counted, warnings = list[Any](), list[dict[str, Any]]()
    for report, plain in zip(several.reports, document.pop("reports"), strict=True):
        about = {"target": report.target.name or None, "title": report.title or None}
        about |= {"report": plain} if report.is_warning else {}
        warnings += [about | _plain(asdict(warned)) for warned in report.warnings]
        counted += [] if report.is_warning else [plain]
    document = {"planned": len(counted), **document, "reports": counted, "warnings": warnings}
    return {"schema": SCHEMA_OF_SEVERAL, "verdict": several.verdict, **document}


def _plain(value: Any) -> Any:
    return _listed(msgspec.to_builtins(value, enc_hook=attrgetter("plain")))


def _listed(value: Any) -> Any:
    """Tuples as lists, and a case's layouts and runs as they are typed."""
    if isinstance(value, (tuple, list)):
        return [_listed(item) for item in value]
    if not isinstance(value, dict):
        return value
    case = value.get("case")
    if isinstance(case, dict):
        layouts = [f"{tensor}={layout}" for tensor, layout in case["layouts"]]
        case |= {"layouts": layouts, "runs": [run_name(assigned) for assigned in case["runs"]]}
    return {key: _listed(item) for key, item in value.items()}


def text_of(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def parsed(text: str | bytes) -> dict[str, Any]:
    """Raises UsageFailure: it is no JSON object."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        words = f"expected a report, got what is no JSON: {error}"
        raise UsageFailure(words, _WAY_OUT) from error
    if not isinstance(document, dict):
        words = f"expected a report, got a JSON {type(document).__name__}"
        raise UsageFailure(words, _WAY_OUT)
    return document


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def load(text: str | bytes) -> Report:
    return report_from(parsed(text))


def report_from(document: Any) -> Report:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in _SINGLE:
        raise UsageFailure(f"expected a report of schema {SCHEMA}, got {schema!r}", _WAY_OUT)
    return _converted(document, Report)


def load_several(text: str | bytes) -> Reports:
    document = parsed(text)
    if document.get("schema") not in _SEVERAL:
        report = report_from(document)
        return Reports(reports=(report,), origin=report.origin)
    several = _converted(document, _ReportsDocument)
    parts = {name: getattr(several, name) for name in Reports.__struct_fields__}
    mild = list[Report]()
    for warned in several.warnings:
        # A report with two warnings stands at both.
        if warned.report is not None and warned.report not in mild:
            mild.append(warned.report)
    return Reports(**parts | {"reports": (*several.reports, *mild)})


def read_reports(file: str) -> Reports:
    """Raises UsageFailure: it cannot be read, or holds none."""
    try:
        return load_several(Path(file).read_bytes())
    except OSError as error:
        close = did_you_mean(file, map(str, Path(file).parent.glob("*.json")), "")
        words = f"{file}: cannot be read, {error.strerror}"
        raise UsageFailure(words, close or _WAY_OUT) from error
    except UsageFailure as failure:
        raise UsageFailure(f"{file}: {failure}", failure.way_out) from failure


def _converted(document: Mapping[str, Any], kind: type[Kind]) -> Kind:
    try:
        today = _as_today(document)
        return msgspec.convert(today, kind, dec_hook=lambda _, plain: number_of(plain))
    except Exception as error:  # in as many ways as there are
        words = f"$: it has no {error}" if isinstance(error, KeyError) else error
        words = f"a document of schema {document['schema']} is damaged: {words}"
        raise UsageFailure(words, _WAY_OUT) from error


def _as_today(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_today(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema = value.get("schema")
    if schema == "gradprobe.report/1":
        value = _without_null(value) | {"schema": SCHEMA}
        environment = value.get("environment", {})
        value["environment"] = {name: str(item) for name, item in environment.items()}
        if "element" not in value.get("close_up", {}):
            value["close_up"] = None
        for at, run in enumerate(value.get("runs", ())):
            for finding in value.get("strides", {}).get("findings", ()):
                if finding.get("layout") == run["layout"] or not (at or finding.get("layout")):
                    run.setdefault("memory", []).append(finding)
    found = {name: _as_today(item) for name, item in value.items()}
    case = found.get("case")
    if schema not in _SINGLE or case is None:
        return found
    if "family" not in case or "runs" not in case:  # the words of a case that could not be made
        return found | {"case": None, "options": case}
    layouts, runs = map(parse_layout, case["layouts"]), map(parse_run, case["runs"])
    return found | {"case": {**case, "layouts": tuple(layouts), "runs": tuple(runs)}}


# What may be null today too.
_NULL = {"batch", "head", "row", "col", "actual", "expected", "budget", "ratio", "residual"}


def _without_null(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: item for name, item in value.items() if item is not None or name in _NULL}
    return {name: _without_null(item) for name, item in kept.items()}


_WORD_LIST = {"type": "array", "items": {"type": "string"}}


def report_schema() -> dict[str, Any]:
    number = {"anyOf": [{"type": "number"}, {"enum": list(WORDS)}]}
    components = partial(msgspec.json.schema_components, ref_template="#/$defs/{name}")
    (schema,), parts = components((Report,), schema_hook=lambda _: number)
    # There layouts and runs are words.
    parts["Case"]["properties"] |= {"layouts": _WORD_LIST, "runs": _WORD_LIST}
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": SCHEMA, **schema, "$defs": parts}


if __name__ == "__main__":
    print(json.dumps(report_schema(), indent=2))
