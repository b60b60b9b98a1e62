"""The list of targets: for people, and as JSON, schema gradprobe.targets.find/1."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from ..targets.catalogue import Entry
from .text import CAUTION

SCHEMA = "gradprobe.targets.find/1"
_INDENT = 11
_OWN = (
    ("FILE.py:FUNCTION", "of a file, as in gradprobe check my_kernel.py:backward"),
    ("MODULE:FUNCTION", "of a module that Python can import"),
    ("", "One that takes dO is a backward and returns a dict of intermediates; any other is a forward and returns O. "
     "gradprobe init writes a first one of each."),
)  # fmt: skip


def as_json(entries: Sequence[Entry]) -> dict[str, Any]:
    """All that is known of each, ready for `json.dumps`."""
    return {"schema": SCHEMA, "targets": [asdict(entry) | {"missing": entry.missing or None} for entry in entries]}


def render(entries: Sequence[Entry], width: int) -> list[Text]:
    """One paragraph a target, then how one names one's own; folded to `width`."""
    lines = []
    for entry in entries:
        lines += [*_entry(entry, width), Text()]
    lines.append(Text("A function of your own", "bold"))
    for form, meaning in _OWN:
        lines += _folded(form, meaning, width, indent=18)
    return lines


def _entry(entry: Entry, width: int) -> Iterator[Text]:
    name = Text(f"{entry.name:<{_INDENT + 4}}", "dim" if entry.missing else "bold")
    first, *rest = textwrap.wrap(entry.summary, max(width, 40) - len(name))
    yield name + Text(first)
    yield from (Text(" " * len(name) + line) for line in rest)
    if entry.missing:
        yield from _folded("not here", entry.missing, width, CAUTION)
    kind = "backward" if entry.is_backward else "forward through autograd"
    yield from _folded("family", f"{entry.family}, a {kind}", width)
    yield from _folded("takes", " ".join("--" + name.replace("_", "-") for name in entry.takes), width)
    if entry.outputs:
        yield from _folded("writes", f"{' '.join(entry.outputs)}, into tensors that it is given", width)
    yield from _folded("exposes", " ".join(entry.exposes), width)
    yield from _folded("file", f"{_short(entry.file)}:{entry.line}", width)


def _short(file: str) -> str:
    """Beginning at the package's folder, as imports do."""
    return str(Path(file).relative_to(Path(__file__).parents[2]))


def _folded(label: str, words: str, width: int, style: str = "", indent: int = _INDENT) -> Iterator[Text]:
    lines = textwrap.wrap(words, max(width, 40) - indent - 2, break_on_hyphens=False, break_long_words=False)
    for at, line in enumerate(lines):
        yield Text.assemble("  ", (f"{'' if at else label:<{indent}}", "dim"), (line, style))
