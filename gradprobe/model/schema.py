"""The JSON Schema of a report, made from its types: `python -m gradprobe.model.schema > docs/report.schema.json`."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from .number import WORDS, Number
from .report import SCHEMA, Report

_LISTED = {"type": "array", "items": {"type": "string"}}


def report_schema() -> dict[str, Any]:
    """The schema of what `document_of` gives."""
    (schema,), parts = msgspec.json.schema_components((Report,), schema_hook=_of_number, ref_template="#/$defs/{name}")
    # There layouts and runs are words.
    parts["Case"]["properties"] |= {"layouts": _LISTED, "runs": _LISTED}
    parts["Report"]["properties"]["schema"] = {"const": SCHEMA}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema, "$defs": parts}


def _of_number(kind: type) -> dict[str, Any]:
    if kind is Number:
        return {"anyOf": [{"type": "number"}, {"enum": list(WORDS)}]}
    raise NotImplementedError(kind.__name__)


if __name__ == "__main__":
    print(json.dumps(report_schema(), indent=2))
