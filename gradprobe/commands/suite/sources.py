"""Sources of a report: the files that made it what it is, each with the hash of what stood there."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...inputs.history import CheckRequest, digest_of
from ...model.report import Report
from ...processes.ended import is_edited

# What is compiled, and may be included by what is.
_COMPILED = {".cu", ".cuh", ".h", ".hpp", ".c", ".cc", ".cpp", ".hip"}
# Of this process: what a file held when it was first seen is what was imported of it.
_FIRST_SEEN: dict[str, str] = {}


def sources_of(report: Report, request: CheckRequest) -> dict[str, str]:
    """By file the hash of its bytes: the target, its kernels, the reference and the inputs, and all that they import.

    Modules that are installed, Python's and this tool's are left out: their versions stand in the report's environment.
    What a program reads otherwise is not known, but every source that is compiled and stands beside a module counts.
    """
    target = report.target
    ran = {target.file: target.sha256, **{kernel.file: kernel.sha256 for kernel in target.kernels}}
    ran.pop("", None)
    files = {*_imported(), *map(os.path.abspath, _named(request))}
    files |= {*_beside({*files, *ran})}
    seen = {file: _FIRST_SEEN.setdefault(file, digest_of(file)) for file in files}
    # The target's own file is read anew for each check: what ran of it is what was hashed then.
    return dict(sorted((seen | ran).items()))


def _imported() -> Iterator[str]:
    """The files of the modules here that are neither Python's, nor installed, nor this tool's."""
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return (file for file in files if os.path.isabs(file) and is_edited(file))


def _named(request: CheckRequest) -> Iterator[str]:
    """The files that the words of a check name."""
    options = request.options
    words = (request.target, request.reference or "", str(options.get("shards", "")), str(options.get("inputs", "")))
    places = (word if os.path.isfile(word) else word.rpartition(":")[0] for word in words)
    return (place for place in places if os.path.isfile(place))


def _beside(files: Iterable[str]) -> Iterator[str]:
    """What is compiled in the folders of some files."""
    for folder in {os.path.dirname(file) for file in files}:
        with contextlib.suppress(OSError):
            yield from (entry.path for entry in os.scandir(folder) if Path(entry.name).suffix in _COMPILED)
