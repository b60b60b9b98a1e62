"""The table [tool.gradprobe]: which pyproject.toml has it, and what it holds; and what the environment says."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...inputs.options import FAMILIES, OPTIONS, Option, parse
from ...model.failures import UsageFailure, did_you_mean

# The names of tables below [tool], and how near to this tool's one must be: one letter left out, doubled or exchanged.
_TOOLS = re.compile(r"^\s*\[\s*tool\s*\.\s*[\"']?([\w-]+)", re.MULTILINE)
_NEARLY = 0.85
# What can only mean the table, for a file that cannot be read as TOML.
_MEANT = re.compile(r"tool[\s.\"']*gradprobe|^\s*gradprobe\b.*=", re.MULTILINE)


@dataclass(frozen=True)
class SettingsTable:
    """The nearest table."""

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
    """The table of one pyproject.toml; None where it has none.

    Raises:
        UsageFailure: from `nearest_table`.
    """
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
    return SettingsTable(file, tools["gradprobe"])


def misspelt_table(folder: Path) -> str:
    """The nearest table below [tool] whose name is nearly this tool's, in a sentence; "" where there is none."""
    for file in (above / "pyproject.toml" for above in (folder, *folder.parents)):
        with contextlib.suppress(OSError):
            text = file.read_text(encoding="utf-8", errors="replace")
            if close := difflib.get_close_matches(
                "gradprobe", _TOOLS.findall(text), cutoff=_NEARLY
            ):
                return f"{file}: [tool.{close[0]}] is no table of gradprobe's"
    return ""


def _content(file: Path, text: str) -> dict[str, Any] | None:
    """All of a file; None where it cannot be read and says nothing about this tool."""
    toml = _reader()
    if toml is None:
        if not _MEANT.search(text):
            return None
        raise UsageFailure(
            f"{file}: this Python has no TOML reader",
            "pip install tomli, or use Python 3.11 or newer",
        )
    try:
        return dict(toml.loads(text))
    except (toml.TOMLDecodeError, RecursionError) as error:
        if not _MEANT.search(text):
            return None
        if isinstance(error, RecursionError):
            way_out = "3 levels are enough for any option"
            raise UsageFailure(
                f"{file}: its values are nested too deeply to be read", way_out
            ) from None
        raise UsageFailure(f"{file} is not valid TOML: {error}") from None


def _reader() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


_TABLE = "[tool.gradprobe]"
_BY_NAME = {option.name: option for option in OPTIONS if option.name != "runs"}
_LAYOUTS = next(option for option in OPTIONS if option.name == "runs")
Readers = Mapping[str, Callable[[Any, str], Any]]
"""By key, what makes a value of what stands there and where it stands."""


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
    """One project's table."""

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


def settings_of(table: SettingsTable) -> Settings:
    """A table, read.

    Raises:
        UsageFailure: a key is not known, or its value is not of its type; with the key and its table.
    """
    reader = _Reader(table.file)
    found = reader.read(table.content, _TABLE, _AT_THE_TOP)
    top = reader.scope(found)
    cases = {
        name: reader.scope(reader.read(content, f"[tool.gradprobe.cases.{name}]", _OF_A_CASE))
        for name, content in found.get("cases", {}).items()
    }
    return Settings(table.file, top, found.get("timeout"), cases)


@dataclass(frozen=True)
class _Reader:
    file: Path

    def read(self, content: Mapping[str, Any], table: str, known: Readers) -> dict[str, Any]:
        """The values of a table by their keys, with underscores."""
        found: dict[str, Any] = {}
        for key, value in content.items():
            name, place = key.replace("-", "_"), f"in {table} of {self.file}"
            if name not in known:
                way_out = did_you_mean(name, known, "") or did_you_mean(name, known)
                raise UsageFailure(f"unknown key {key!r} {place}", way_out)
            if name in found:
                raise UsageFailure(
                    f"{key!r} is set twice {place}, with - and with _", "keep one of them"
                )
            found[name] = known[name](value, f"{key} {place}")
        return found

    def scope(self, found: Mapping[str, Any]) -> CaseSettings:
        options = {name: value for name, value in found.items() if name in _BY_NAME}
        options |= {"inputs": self._from_here(found["inputs"])} if "inputs" in found else {}
        options |= {"runs": found["layouts"]} if "layouts" in found else {}
        return CaseSettings(
            tuple(self._target(word) for word in found.get("targets", ())),
            found.get("family"),
            self._target(found["reference"]) if "reference" in found else None,
            options,
        )

    def _target(self, word: str) -> str:
        """A target with its file from the current folder; a built-in or a module's as it is."""
        place, colon, name = word.rpartition(":")
        return (
            f"{self._from_here(place)}:{name}"
            if colon and place.endswith((".py", ".cu"))
            else word
        )

    def _from_here(self, file: str) -> str:
        return os.path.relpath(self.file.parent / file)


def _layouts(value: Any, where: str) -> Any:
    return from_toml(_LAYOUTS, _as_strings(value, where), where)


def _as_strings(value: Any, where: str) -> list[str]:
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(word, str) for word in value)
    ):
        raise UsageFailure(
            f"{where} must be an array of at least one string, got {value_in_words(value)}"
        )
    return value


def _word(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UsageFailure(f"{where} must be a string, got {value_in_words(value)}")
    return value


def _family(value: Any, where: str) -> str:
    if value not in FAMILIES:
        raise UsageFailure(
            f"{where} must be {' or '.join(FAMILIES)}, got {value_in_words(value)}"
        )
    return str(value)


def _tables(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(
        isinstance(content, Mapping) for content in value.values()
    ):
        raise UsageFailure(
            f"{where} must hold tables",
            "write [tool.gradprobe.cases.NAME] above a case's options",
        )
    return value


# Seconds of a year: what the system's clocks take without overflow.
_LONGEST = 31_536_000.0
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "an array of strings",
}
_TRUTH = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def from_toml(option: Option, value: Any, where: str) -> Any:
    """What `CheckRequest.options` holds for a TOML value of the option's type, or for the command line's string.

    Args:
        where: the key and its table, for messages.

    Raises:
        UsageFailure: it has another type, or is invalid.
    """
    word = word_of(option, value)
    if word is None:
        raise UsageFailure(f"{where} must be {expected(option)}, got {value_in_words(value)}")
    return _parsed(option, word, where)


def from_environment(option: Option, text: str, variable: str) -> Any:
    """The same of an environment variable; several words of one are separated by blanks."""
    value: Any = _TRUTH.get(text.strip().lower()) if option.kind is bool else text
    value = text.split() if option.kind is list else value
    word = word_of(option, value)
    if word is None:
        kind = "1 or 0" if option.kind is bool else expected(option)
        raise UsageFailure(f"the environment variable {variable} must be {kind}, got {text!r}")
    return _parsed(option, word, f"the environment variable {variable}")


def seconds(value: Any, where: str) -> float:
    """A timeout. Raises UsageFailure where it is not a number of seconds from 0 to a year."""
    if not is_number(value) or not 0 < value <= _LONGEST:
        raise UsageFailure(
            f"{where} must be seconds above 0, and at most {_LONGEST:.0f}, got {value_in_words(value)}"
        )
    return float(value)


def value_in_words(value: Any) -> str:
    """A value of TOML in a message: its type and itself."""
    kinds = {
        bool: "the boolean",
        int: "the number",
        float: "the number",
        str: "the string",
        list: "the array",
    }
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    if isinstance(value, Mapping):
        return "a table"
    return f"{kinds.get(type(value), type(value).__name__)} {shown}"


def is_number(value: Any) -> bool:
    """Whether it is a number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def expected(option: Option) -> str:
    """What an option takes, in words."""
    return "an array of numbers" if option.numbers else _KINDS[option.kind]


def word_of(option: Option, value: Any) -> Any:
    """What the command line would hold for a plain value; None where it has no type that the option takes."""
    if option.kind is bool:
        return value if isinstance(value, bool) else None
    if option.kind is list:
        items = [value] if isinstance(value, str) else value
        return (
            items
            if isinstance(items, list) and all(isinstance(item, str) for item in items)
            else None
        )
    if option.numbers and not isinstance(value, str):
        items = value if isinstance(value, list) else [value]
        return (
            ",".join(map(str, items))
            if items and all(is_number(item) for item in items)
            else None
        )
    if option.kind is str:
        return value if isinstance(value, str) else None
    return _number(option.kind, value)


def _number(kind: Any, value: Any) -> Any:
    if isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            return None
    fits = is_number(value) and (kind is float or isinstance(value, int))
    return kind(value) if fits else None


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
    given = ((option, environment.get(variable_of(option.name), "")) for option in OPTIONS)
    return {
        option.name: from_environment(option, text, variable_of(option.name))
        for option, text in given
        if text
    }


def timeout_of(environment: Mapping[str, str] = os.environ) -> float | None:
    """GRADPROBE_TIMEOUT, in seconds; None where it is not set.

    Raises:
        UsageFailure: it is not a number of seconds.
    """
    text, where = (
        environment.get(variable_of("timeout"), ""),
        f"the environment variable {variable_of('timeout')}",
    )
    try:
        return seconds(float(text), where) if text else None
    except ValueError:
        raise UsageFailure(f"{where} must be seconds, got {text!r}") from None


_OPTIONS = {name: functools.partial(from_toml, option) for name, option in _BY_NAME.items()}
_OF_BOTH: Readers = {
    "targets": _as_strings,
    "layouts": _layouts,
    "family": _family,
    "reference": _word,
}
_AT_THE_TOP: Readers = {
    **_OF_BOTH,
    "strict": _OPTIONS["strict"],
    "timeout": seconds,
    "cases": _tables,
}
_OF_A_CASE: Readers = {**_OF_BOTH, **_OPTIONS}
