"""The file of entries, schema gradprobe.baseline/1: sorted, one line a list, the same bytes for the same entries."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...inputs.history import CheckRequest, is_sound
from ...model.failures import UsageFailure
from .changes import FEWEST, Entry, Errors

SCHEMA = "gradprobe.baseline/1"
DEFAULT = "gradprobe-baseline.json"
_ANEW = "write it anew: gradprobe baseline save"


def load(file: str) -> tuple[Entry, ...]:
    """The entries of a file, in its order.

    Raises:
        UsageFailure: there is no such file, or it is none of these.
    """
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageFailure(f"--file {file}: there is no such file", _ANEW) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageFailure(f"--file {file}: cannot be read as JSON ({_in_short(error)})", _ANEW) from error
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}, not {SCHEMA}")
        return tuple(_entry(one) for one in document["entries"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageFailure(f"--file {file}: holds no baseline ({_in_short(error)})", _ANEW) from error


def _in_short(error: Exception) -> str:
    words = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
    return f"{type(error).__name__}: {words}"


def with_entry(entries: Sequence[Entry], entry: Entry) -> tuple[Entry, ...]:
    """The entries with one added, in place of that of the same target and options; sorted."""
    others = [other for other in entries if other.words != entry.words]
    return tuple(sorted([*others, entry], key=lambda one: one.words))


def save(file: str, entries: Sequence[Entry]) -> None:
    """Writes a file.

    Raises:
        UsageFailure: it cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, "entries": [_plain(entry) for entry in entries]}, indent=2, allow_nan=False)
    # A list on one line, so that a diff shows one line for each figure that changed. No JSON string holds a line's end.
    text = re.sub(r"\[\n[^][{}]*\]", lambda found: re.sub(r"(?<=\[)\n\s*|\n\s*(?=\])", "", found[0]), text)
    text = re.sub(r",\n\s*(?=[-\d])", ", ", text)
    try:
        Path(file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageFailure(f"--file {file}: cannot be written, {error.strerror}") from error


def _plain(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry.request), **{name: value for name, value in asdict(entry).items() if name != "request"}}


def _entry(content: Mapping[str, Any]) -> Entry:
    request = CheckRequest(**{name: content[name] for name in ("target", "family", "reference", "options")})
    seeds = tuple(content["seeds"])
    errors = {
        layout: {name: _errors(figures, len(seeds)) for name, figures in of_layout.items()}
        for layout, of_layout in content["errors"].items()
    }
    ran, environment, kernels, case, coarser = (
        content[name] for name in ("ran", "environment", "kernels", "case", "coarser")
    )
    if not is_sound(request) or not _are_numbers(seeds, int) or len(seeds) < FEWEST:
        raise ValueError(f"the words or seeds of an entry are none: {request.target}, {list(seeds)}")
    if not all(isinstance(one, dict) for one in (environment, kernels, case)) or not isinstance(ran, str):
        raise TypeError(f"of {request.target}, what it ran on")
    return Entry(request, seeds, ran, environment, kernels, case, tuple(coarser), errors)


def _errors(figures: Mapping[str, Any], count: int) -> Errors:
    return Errors(*(_figures(figures[key], count) for key in ("rms", "worst")))


def _figures(numbers: Any, count: int) -> tuple[float, ...]:
    if not isinstance(numbers, list) or len(numbers) != count or not _are_numbers(numbers, (int, float)):
        raise ValueError(f"{numbers} are not {count} figures")
    if not all(0 <= number < math.inf for number in numbers):
        raise ValueError(f"{numbers} are no errors")
    return tuple(map(float, numbers))


def _are_numbers(values: Sequence[Any], kind: type | tuple[type, ...]) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
