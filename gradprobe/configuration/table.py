"""The table [tool.gradprobe]: which pyproject.toml has it, and what it holds, as TOML has it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..failures import UsageFailure

# What can only mean the table, for a file that cannot be read as TOML.
_MEANT = re.compile(r"tool[\s.\"']*gradprobe|^\s*gradprobe\b.*=", re.MULTILINE)


@dataclass(frozen=True)
class Table:
    """The nearest table."""

    file: Path
    content: Mapping[str, Any]


def nearest_table(folder: Path) -> Table | None:
    """The table of the nearest pyproject.toml, from a folder upwards, that has one; None where none has.

    Raises:
        UsageFailure: one cannot be read, or seems to have it and is no TOML, or this Python reads none.
    """
    for above in (folder, *folder.parents):
        table = _table_of(above / "pyproject.toml")
        if table is not None:
            return table
    return None


def _table_of(file: Path) -> Table | None:
    try:
        there = file.is_file()
    except OSError:  # in a folder that may not be searched: nobody can say that it is there
        return None
    try:
        raw = file.read_bytes() if there else b""
    except OSError as error:
        raise UsageFailure(
            f"{file}: it may hold [tool.gradprobe] and cannot be read, {error.strerror}",
            "make it readable, or add [tool.gradprobe] to one in a folder below it",
        ) from None
    if b"gradprobe" in raw.replace(b"\0", b"") and b"gradprobe" not in raw:
        raise UsageFailure(f"{file} must be UTF-8, and is UTF-16 or UTF-32", "save it as UTF-8")
    text = raw.decode("utf-8", errors="replace")
    if "gradprobe" not in text:  # most files, read in no time and by no parser
        return None
    content = _content(file, text)
    tools = content.get("tool") if content else None
    if not isinstance(tools, dict) or "gradprobe" not in tools:
        return None
    if not isinstance(tools["gradprobe"], dict):
        raise UsageFailure(f"{file}: tool.gradprobe must be a table", "write [tool.gradprobe]")
    return Table(file, tools["gradprobe"])


def _content(file: Path, text: str) -> dict[str, Any] | None:
    """All of a file; None where it cannot be read and says nothing about this tool."""
    toml = _reader()
    if toml is None:
        if not _MEANT.search(text):
            return None
        raise UsageFailure(f"{file}: this Python has no TOML reader", "pip install tomli, or use Python 3.11 or newer")
    try:
        return dict(toml.loads(text))
    except (toml.TOMLDecodeError, RecursionError) as error:
        if not _MEANT.search(text):
            return None
        if isinstance(error, RecursionError):
            raise UsageFailure(
                f"{file}: its values are nested too deeply to be read", "no option needs more than 3 levels"
            ) from None
        raise UsageFailure(f"{file} is not valid TOML: {error}") from None


def _reader() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None
