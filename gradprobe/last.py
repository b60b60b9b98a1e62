"""What the last check in this folder was, so that `diff` can repeat it."""

from __future__ import annotations

import contextlib
import json
import os
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
    if "GRADPROBE_MUTANT" in os.environ:  # of a copy with a fault in it, which soon is gone
        return
    with contextlib.suppress(OSError):
        FILE.parent.mkdir(exist_ok=True)
        (FILE.parent / ".gitignore").write_text("*\n")
        FILE.write_text(json.dumps(asdict(asked), indent=2))


def load() -> Asked | None:
    """The last check; None where there is none, or what is there is not one."""
    try:
        asked = Asked(**json.loads(FILE.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return asked if is_sound(asked) else None


def is_sound(asked: Asked) -> bool:
    """Whether each word has the type that the command line would give it."""
    kinds = {option.name: option.kind for option in OPTIONS}
    words = (asked.target, asked.family or "", asked.reference or "")
    return (
        all(isinstance(word, str) for word in words)
        and isinstance(asked.options, dict)
        and all(isinstance(word, kinds.get(name, ())) for name, word in asked.options.items())
    )
