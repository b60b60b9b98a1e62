"""Places in source that a document names, and how a path is written for others: relative, or as a URI."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote

from ..diagnosis import NAMED
from ..naming import is_named_after


@dataclass(frozen=True)
class Place:
    """A line of a file."""

    file: str
    line: int | None
    """From 1; None where the file alone is known."""
    name: str = ""
    """The function or kernel that is defined there, or the code that stands there."""


@dataclass(frozen=True)
class Base:
    """Against what paths are told; both absolute."""

    root: str
    """The folder that paths are relative to: a repository."""
    here: str
    """The current folder, which relative paths begin at."""

    def relative(self, file: str) -> str | None:
        """The file from the root, with slashes; None where it does not lie below."""
        path = self._whole(file)
        root = type(path)(os.path.normpath(self.root))
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else None

    def told(self, place: Place) -> str:
        """`kernels/lazy.py:120`."""
        file = self.relative(place.file) or place.file
        return f"{file}:{place.line}" if place.line else file

    def uri(self, file: str) -> tuple[str, bool]:
        """The file as a URI, and whether that is relative to the root."""
        below = self.relative(file)
        if below is not None:
            return quote(_bytes(below)), True
        path = self._whole(file)
        if isinstance(path, PureWindowsPath):
            return "file:///" + quote(_bytes(path.as_posix()), safe="/:"), False
        return "file://" + quote(_bytes(path.as_posix())), False

    def _whole(self, file: str) -> PurePath:
        if re.match(r"[A-Za-z]:[\\/]", file):
            return PureWindowsPath(file)
        return PurePosixPath(os.path.normpath(os.path.join(self.here, file)))


def _bytes(path: str) -> bytes:
    """What a URI quotes; names of files may hold bytes that are no text, which Python keeps as lone surrogates."""
    return path.encode("utf-8", "surrogateescape" if _decoded(path) else "surrogatepass")


def _decoded(path: str) -> bool:
    return all("\udc80" <= letter <= "\udcff" for letter in path if "\ud800" <= letter <= "\udfff")


def places_of(document: Mapping[str, Any], intermediate: str | None = None) -> tuple[Place, ...]:
    """Where to look, the best first: what a diagnosis names, kernels named after the intermediate, the target.

    Args:
        intermediate: one that is wrong by itself; None for what no kernel may be blamed for.
    """
    target = document.get("target") or {}
    kernels = [_place(kernel) for kernel in target.get("kernels", ())]
    found: list[Place] = []
    if intermediate is not None:
        found += [place for diagnosis in _named(document) for place in _wheres(diagnosis, intermediate)]
        found += [kernel for kernel in kernels if is_named_after(kernel.name, intermediate)]
    found += [*_function(target), *kernels]
    return tuple(dict.fromkeys(place for place in found if place.file))


def _function(target: Mapping[str, Any]) -> Iterator[Place]:
    """The target's own function; of a target that did not get as far as being found, the file that its name gives."""
    file, _, function = str(target.get("name", "")).rpartition(":")
    if target.get("file"):
        yield Place(target["file"], target.get("line") or None, function or file)
    elif file.endswith(".py"):
        yield Place(file, None, function)


def _named(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The cause, where one is named: what is merely consistent with the numbers accuses no line."""
    yield from (one for one in list(document.get("diagnoses") or ())[:1] if one.get("explained", 1.0) >= NAMED)


def _wheres(diagnosis: Mapping[str, Any], intermediate: str) -> Iterable[Place]:
    """Its lines, those in kernels that are named after the intermediate first."""
    lines = sorted(
        diagnosis.get("where") or (), key=lambda where: not is_named_after(where.get("kernel") or "", intermediate)
    )
    return (_place({"name": where.get("code", "")} | dict(where)) for where in lines)


def _place(source: Mapping[str, Any]) -> Place:
    return Place(source.get("file") or "", source.get("line") or None, source.get("name") or "")


def place_of_finding(finding: Mapping[str, Any]) -> Place:
    """The line of a kernel that a memory finding names."""
    code, kernel = finding.get("code") or "", finding.get("kernel") or ""
    return Place(finding.get("file") or "", finding.get("line") or None, code or kernel)
