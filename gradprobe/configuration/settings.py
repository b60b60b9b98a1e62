"""Settings: a project's targets and cases, read from its table and checked key by key."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..failures import UsageFailure, did_you_mean
from ..options import OPTIONS
from .table import Table
from .words import from_toml, seconds, told

_TABLE = "[tool.gradprobe]"
_BY_NAME = {option.name: option for option in OPTIONS if option.name != "runs"}
_LAYOUTS = next(option for option in OPTIONS if option.name == "runs")
_FAMILIES = ("softmax", "lazy")


@dataclass(frozen=True)
class Scope:
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
    top: Scope
    timeout: float | None
    """Seconds, for each check."""
    cases: Mapping[str, Scope]
    """By their names, in the order of the file."""

    @property
    def place(self) -> str:
        """The file, from the current folder where that is shorter."""
        return min(os.path.relpath(self.file), str(self.file), key=len)


def settings_of(table: Table) -> Settings:
    """A table, read.

    Raises:
        UsageFailure: a key is not known, or its value is not of its type; with the key and its table.
    """
    reader = _Reader(table.file)
    own = {"timeout": _timeout, "cases": _tables}
    found = reader.read(table.content, _TABLE, {**_OF_ALL, "strict": _strict, **own})
    top = reader.scope(found)
    cases = {
        name: reader.scope(reader.read(content, f"[tool.gradprobe.cases.{name}]", _OF_A_CASE))
        for name, content in found.get("cases", {}).items()
    }
    return Settings(table.file, top, found.get("timeout"), cases)


@dataclass(frozen=True)
class _Reader:
    file: Path

    def read(self, content: Mapping[str, Any], table: str, known: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        """The values of a table by their keys, with underscores."""
        found: dict[str, Any] = {}
        for key, value in content.items():
            name, place = key.replace("-", "_"), f"in {table} of {self.file}"
            if name not in known:
                raise UsageFailure(
                    f"unknown key {key!r} {place}", did_you_mean(name, known, "") or did_you_mean(name, known)
                )
            if name in found:
                raise UsageFailure(f"{key!r} stands twice {place}, once with - and once with _", "keep one of them")
            found[name] = known[name](name, value, f"{key} {place}")
        return found

    def scope(self, found: Mapping[str, Any]) -> Scope:
        options = {name: value for name, value in found.items() if name in _BY_NAME}
        options |= {"inputs": self._from_here(found["inputs"])} if "inputs" in found else {}
        options |= {"runs": found["layouts"]} if "layouts" in found else {}
        return Scope(
            tuple(self._target(word) for word in found.get("targets", ())),
            found.get("family"),
            self._target(found["reference"]) if "reference" in found else None,
            options,
        )

    def _target(self, word: str) -> str:
        """A target with its file from the current folder; a built-in or a module's as it is."""
        place, colon, name = word.rpartition(":")
        return f"{self._from_here(place)}:{name}" if colon and place.endswith(".py") else word

    def _from_here(self, file: str) -> str:
        return os.path.relpath(self.file.parent / file)


def _option(name: str, value: Any, where: str) -> Any:
    return from_toml(_BY_NAME[name], value, where)


def _strict(_: str, value: Any, where: str) -> Any:
    return from_toml(_BY_NAME["strict"], value, where)


def _layouts(_: str, value: Any, where: str) -> Any:
    return from_toml(_LAYOUTS, _words("", value, where), where)


def _words(_: str, value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        raise UsageFailure(f"{where} must be an array of at least one string, got {told(value)}")
    return value


def _word(_: str, value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UsageFailure(f"{where} must be a string, got {told(value)}")
    return value


def _family(_: str, value: Any, where: str) -> str:
    if value not in _FAMILIES:
        raise UsageFailure(f"{where} must be {' or '.join(_FAMILIES)}, got {told(value)}")
    return str(value)


def _timeout(_: str, value: Any, where: str) -> float:
    return seconds(value, where)


def _tables(_: str, value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(content, Mapping) for content in value.values()):
        raise UsageFailure(f"{where} must hold tables", "write [tool.gradprobe.cases.NAME] above a case's options")
    return value


_OF_ALL: Mapping[str, Callable[..., Any]] = {
    "targets": _words,
    "layouts": _layouts,
    "family": _family,
    "reference": _word,
}
_OF_A_CASE = {**_OF_ALL, **dict.fromkeys(_BY_NAME, _option)}
