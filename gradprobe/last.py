"""What the last check in this folder was, so that `diff` can repeat it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .options import OPTIONS

FILE = Path(".gradprobe") / "last.json"


@dataclass(frozen=True)
class Asked:
    """A target and the options given with it, as words of the command line."""

    target: str
    family: str | None
    reference: str | None
    options: Mapping[str, Any]


def save(asked: Asked) -> None:
    """Writes the file; a folder that cannot be written is no reason to fail a check."""
    with contextlib.suppress(OSError):
        FILE.parent.mkdir(exist_ok=True)
        (FILE.parent / ".gitignore").write_text("*\n")
        FILE.write_text(json.dumps(asdict(asked), indent=2))


def load() -> Asked | None:
    """The last check; None where there is none, or what is there is not one."""
    known = {option.name for option in OPTIONS}
    try:
        asked = Asked(**json.loads(FILE.read_text()))
        return asked if set(asked.options) <= known else None
    except (OSError, ValueError, TypeError):
        return None
