"""Failing cases that are kept in the folder, to be tried first the next time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..files import replace_file
from ..last import Asked, is_sound
from .symptom import Symptom

FILE = Path(".gradprobe") / "failing.json"


@dataclass(frozen=True)
class Kept:
    """A shrunken case, and in which way it fails."""

    asked: Asked
    symptom: Symptom


def load(file: Path = FILE) -> list[Kept]:
    """The kept cases; none where the file is missing or broken."""
    try:
        targets = json.loads(file.read_text())
        found = [_kept(entry) for entries in targets.values() for entry in entries]
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return []
    return [kept for kept in found if is_sound(kept.asked)]


def _kept(entry: Mapping[str, Any]) -> Kept:
    symptom: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in entry["symptom"].items()
    }
    return Kept(Asked(**entry["asked"]), Symptom(**symptom))


def save(kept: Sequence[Kept], file: Path = FILE) -> None:
    """Writes the file, grouped by target. A folder that cannot be written is no failure."""
    targets: dict[str, list[dict[str, Any]]] = {}
    for one in kept:
        targets.setdefault(one.asked.target, []).append(asdict(one))
    with contextlib.suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        (file.parent / ".gitignore").write_text("*\n")
        replace_file(file, json.dumps(targets, indent=2) + "\n")


def of_target(kept: Sequence[Kept], asked: Asked) -> list[Kept]:
    """Those of the target that is asked for, under the same family and reference."""
    words = (asked.target, asked.family, asked.reference)
    return [one for one in kept if (one.asked.target, one.asked.family, one.asked.reference) == words]


def with_another(kept: Sequence[Kept], new: Kept) -> list[Kept]:
    """The kept cases and a new one, which replaces those of its target that fail in the same way."""
    same = [one for one in of_target(kept, new.asked) if _way(one.symptom) == _way(new.symptom)]
    return [*(one for one in kept if one not in same), new]


def _way(symptom: Symptom) -> tuple[str, str, str | None]:
    return symptom.kind, symptom.first, symptom.fault
