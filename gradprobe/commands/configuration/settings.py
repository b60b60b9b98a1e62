"""The table [tool.gradprobe] of pyproject.toml, and the variables of the environment: their values as words."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...inputs.options import FAMILIES, OPTIONS, Option, is_number, parse, word_of
from ...model.failures import UsageFailure, did_you_mean

_TOOLS = re.compile(r"^\s*\[\s*tool\s*\.\s*[\"']?([\w-]+)", re.MULTILINE)
# One letter left out, doubled or exchanged.
_NEARLY = 0.85
# What can only mean the table, for a file that cannot be read as TOML.
_MEANT = re.compile(r"tool[\s.\"']*gradprobe|^\s*gradprobe\b.*=", re.MULTILINE)


@dataclass(frozen=True)
class SettingsTable:
    file: Path
    content: Mapping[str, Any]


def nearest_table(folder: Path) -> SettingsTable | None:
    """The table of the nearest pyproject.toml, from a folder upwards, that has one; None where none has.

    Raises:
        UsageFailure: one cannot be read, or seems to have it and is no TOML, or this Python reads none.
    """
    tables = (table_of(above / "pyproject.toml") for above in (folder, *folder.parents))
    return next((table for table in tables if table is not None), None)


def table_of(file: Path) -> SettingsTable | None:
    """The table of one pyproject.toml; None where it has none. Raises as `nearest_table` does."""
    if not os.path.isfile(file):
        return None
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        what = f"{file}: it may hold [tool.gradprobe] and cannot be read, {error.strerror}"
        way_out = "make it readable, or add [tool.gradprobe] to one in a folder below it"
        raise UsageFailure(what, way_out) from None
    # In UTF-16 and UTF-32 there are zeros between letters.
    if "gradprobe" in text.replace("\0", "") and "gradprobe" not in text:
        raise UsageFailure(f"{file} must be UTF-8, and is UTF-16 or UTF-32", "save it as UTF-8")
    if "gradprobe" not in text:  # most files, read by no parser
        return None
    tools = _content(file, text).get("tool")
    if not isinstance(tools, dict) or "gradprobe" not in tools:
        return None
    if not isinstance(tools["gradprobe"], dict):
        raise UsageFailure(f"{file}: tool.gradprobe must be a table", "write [tool.gradprobe]")
    return SettingsTable(file, tools["gradprobe"])


def misspelt_table(folder: Path) -> str:
    """The nearest table below [tool] whose name is nearly this tool's, in a sentence; "" where there is none."""
    for file in (above / "pyproject.toml" for above in (folder, *folder.parents)):
        with contextlib.suppress(OSError):
            tools = _TOOLS.findall(file.read_text(encoding="utf-8", errors="replace"))
            if close := difflib.get_close_matches("gradprobe", tools, cutoff=_NEARLY):
                return f"{file}: [tool.{close[0]}] is no table of gradprobe's"
    return ""


def _content(file: Path, text: str) -> dict[str, Any]:
    """All of a file; nothing where it cannot be read and says nothing about this tool."""
    toml, is_meant = _reader(), _MEANT.search(text)
    if toml is None:
        if not is_meant:
            return {}
        way_out = "pip install tomli, or use Python 3.11 or newer"
        raise UsageFailure(f"{file}: this Python has no TOML reader", way_out)
    try:
        return dict(toml.loads(text))
    except (ValueError, RecursionError) as error:
        if not is_meant:
            return {}
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UsageFailure(f"{file} is not valid TOML: {why}") from None


def _reader() -> Any:
    for name in ("tomllib", "tomli"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return None


@dataclass(frozen=True)
class CaseSettings:
    """What a table says, at the top or of one case. Files are told from the current folder."""

    targets: tuple[str, ...] = ()
    family: str | None = None
    reference: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Words of the command line; of the top, only strict and runs."""


@dataclass(frozen=True)
class Settings:
    file: Path
    top: CaseSettings
    timeout: float | None
    """Seconds, for each check."""
    cases: Mapping[str, CaseSettings]
    """By their names, in the order of the file."""

    @property
    def place(self) -> str:
        """The file, from the current folder where that is shorter."""
        return min(os.path.relpath(self.file), str(self.file), key=len)


_RUNS = next(option for option in OPTIONS if option.name == "runs")
_ROWS = {
    "targets": Option("targets", list, ""),
    "layouts": _RUNS,
    "family": Option("family", str, ""),
    "reference": Option("reference", str, ""),
}
_CASE_ROWS = {**_ROWS, **{option.name: option for option in OPTIONS if option is not _RUNS}}
_TOP = (*_ROWS, "strict", "timeout", "cases")


def settings_of(table: SettingsTable) -> Settings:
    """A table, read. Raises UsageFailure."""
    top = _values(table, table.content, "[tool.gradprobe]", _TOP)
    cases = {
        name: _scope(table, _values(table, case, f"[tool.gradprobe.cases.{name}]", _CASE_ROWS))
        for name, case in top.get("cases", {}).items()
    }
    return Settings(table.file, _scope(table, top), top.get("timeout"), cases)


def _values(
    table: SettingsTable, content: Mapping[str, Any], title: str, known: Collection[str]
) -> dict[str, Any]:
    """The values of a table, as words, by their keys with underscores."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        name, place = key.replace("-", "_"), f"in {title} of {table.file}"
        if name not in known:
            way_out = did_you_mean(name, known, "") or did_you_mean(name, known)
            raise UsageFailure(f"unknown key {key!r} {place}", way_out)
        if name in found:
            words = f"{key!r} is set twice {place}, with - and with _"
            raise UsageFailure(words, "keep one of them")
        found[name] = _value(name, value, f"{key} {place}")
    return found


def _value(name: str, value: Any, where: str) -> Any:
    if name == "timeout":
        return seconds(value, where)
    if name == "cases":
        tables = value.values() if isinstance(value, Mapping) else [value]
        if not all(isinstance(case, Mapping) for case in tables):
            way_out = "write [tool.gradprobe.cases.NAME] above a case's options"
            raise UsageFailure(f"{where} must hold tables", way_out)
        return value
    if name == "family" and value not in FAMILIES:
        raise UsageFailure(f"{where} must be {' or '.join(FAMILIES)}, got {value!r}")
    row = _CASE_ROWS[name]
    word = None if value == [] else word_of(row, value)
    if word is None:
        raise UsageFailure(f"{where} must be {row.expected}, got {value!r}")
    return word if name in _ROWS and row is not _RUNS else _parsed(row, word, where)


def _scope(table: SettingsTable, found: Mapping[str, Any]) -> CaseSettings:
    """What a table holds; its files, which are told from its own folder, from the current one."""

    def from_here(file: str) -> str:
        return os.path.relpath(table.file.parent / file)

    def target(word: str) -> str:
        place, colon, name = word.rpartition(":")
        is_file = colon and place.endswith((".py", ".cu"))
        return f"{from_here(place)}:{name}" if is_file else word

    options = {name: word for name, word in found.items() if name not in (*_ROWS, *_TOP[-2:])}
    if "inputs" in options:
        options["inputs"] = from_here(options["inputs"])
    if "layouts" in found:
        options["runs"] = found["layouts"]
    reference = target(found["reference"]) if "reference" in found else None
    targets = tuple(target(word) for word in found.get("targets", ()))
    return CaseSettings(targets, found.get("family"), reference, options)


# Seconds of a year: what the system's clocks take without overflow.
_LONGEST = 31_536_000.0
_TRUTH = {**dict.fromkeys(("1", "true", "yes", "on"), True)}
_TRUTH |= dict.fromkeys(("0", "false", "no", "off"), False)


def seconds(value: Any, where: str) -> float:
    """A timeout. Raises UsageFailure where it is not a number of seconds from 0 to a year."""
    if not is_number(value) or not 0 < value <= _LONGEST:
        words = f"seconds above 0, and at most {_LONGEST:.0f}"
        raise UsageFailure(f"{where} must be {words}, got {value!r}")
    return float(value)


def _parsed(option: Option, word: Any, where: str) -> Any:
    """The word, once the option's own form takes it."""
    try:
        parse({option.name: word})
    except UsageFailure as refused:
        raise UsageFailure(f"{where}: {refused}", refused.way_out) from None
    return word


def variable_of(name: str) -> str:
    """The environment variable of an option, by the option's name."""
    return f"GRADPROBE_{name.upper()}"


def options_of(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The case options that the environment gives, as words of the command line. An empty variable gives none.

    Raises:
        UsageFailure: a variable's value is invalid for its option.
    """
    found = {}
    for option in OPTIONS:
        if text := environment.get(variable_of(option.name), ""):
            where = f"the environment variable {variable_of(option.name)}"
            value: Any = text.split() if option.kind is list else text
            value = _TRUTH.get(text.strip().lower()) if option.kind is bool else value
            word = word_of(option, value)
            if word is None:
                kind = "1 or 0" if option.kind is bool else option.expected
                raise UsageFailure(f"{where} must be {kind}, got {text!r}")
            found[option.name] = _parsed(option, word, where)
    return found


def timeout_of(environment: Mapping[str, str] = os.environ) -> float | None:
    """GRADPROBE_TIMEOUT, in seconds; None where it is not set. Raises UsageFailure: it is not a number of seconds."""
    variable = variable_of("timeout")
    text, where = environment.get(variable, ""), f"the environment variable {variable}"
    try:
        return seconds(float(text), where) if text else None
    except ValueError:
        raise UsageFailure(f"{where} must be seconds, got {text!r}") from None
