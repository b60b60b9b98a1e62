"""A pytest test of one case, as source."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import OPTIONS
from ...targets.builtin import BUILTINS

_HEAD = '''"""{first}

The smallest case that fails so. It passes once the fault is gone.
"""

{imports}from gradprobe.testing import assert_backward_matches

'''


def pytest_source(request: CheckRequest, first: str, file: Path) -> str:
    """The source of a test of what was asked.

    Args:
        first: what is wrong, in one line.
        file: where the test is to lie; it finds the target's file from there.
    """
    subject, needs_path = _subject(request.target, file)
    words = {"family": request.family, "reference": request.reference} | dict(request.options)
    options = "".join(f"        {name}={value!r},\n" for name, value in _values(words) if value is not None)
    imports = "from pathlib import Path\n\n" if needs_path else ""
    here = "HERE = Path(__file__).resolve().parent\n\n\n" if needs_path else "\n"
    name = re.sub(r"\W+", "_", request.target.rpartition(":")[2] or request.target).lower()
    call = f"    assert_backward_matches(\n        {subject},\n{options}    )\n"
    return (
        _HEAD.format(first=first.replace('"""', "'''"), imports=imports) + here + f"def test_{name}_shrunk():\n{call}"
    )


def _subject(target: str, file: Path) -> tuple[str, bool]:
    """The source of the target's word, and whether it needs the folder of the test."""
    place, _, name = target.rpartition(":")
    if target in BUILTINS or not place.endswith(".py"):
        return repr(target), False
    path = os.path.relpath(Path(place).resolve(), file.resolve().parent)
    return f'f"{{(HERE / {path!r}).resolve()}}:{name}"', True


def _values(words: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Options as Python values: numbers with commas as a tuple."""
    numbers = {option.name for option in OPTIONS if option.numbers}
    return [(name, _tuple(word) if name in numbers else word) for name, word in words.items()]


def _tuple(word: str) -> tuple[float, ...]:
    return tuple(float(part) if re.search(r"[.en]", part) else int(part) for part in word.split(","))
