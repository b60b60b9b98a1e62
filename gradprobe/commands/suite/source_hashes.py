"""Sources of a report: the files that made it what it is, each with the hash of what stood there."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection
from pathlib import Path

from ...inputs.history import CheckRequest, digest_of
from ...model.report import Report
from ...processes.ended import is_edited
from ...targets.naming import edited_modules

# What is compiled, and may be included by what is.
_COMPILED = {".cu", ".cuh", ".h", ".hpp", ".c", ".cc", ".cpp", ".hip"}
# Of this process: what a file held when it was first seen is what was imported of it.
_FIRST_SEEN: dict[str, str] = {}


def sources_of(report: Report, request: CheckRequest, before: Collection[str]) -> dict[str, str]:
    """By file the hash of its bytes: the target, its kernels, the reference and the inputs, and all that they import.

    Modules that are installed, Python's and this tool's are left out: their versions stand in the report's environment.
    What a program reads otherwise is not known, but every source that is compiled and stands beside a module counts.

    Args:
        before: the names of modules that were here before any target: of these what the target leads to counts.
    """
    ran = {kernel.file: kernel.sha256 for kernel in report.target.kernels}
    ran[report.target.file] = report.target.sha256
    ran.pop("", None)
    files = _named(request)
    files |= _imported(before, files | ran.keys())
    for folder in {os.path.dirname(file) for file in files | ran.keys()}:
        with contextlib.suppress(OSError):
            entries = list(os.scandir(folder))
            files |= {entry.path for entry in entries if Path(entry.name).suffix in _COMPILED}
    seen = {file: _FIRST_SEEN.setdefault(file, digest_of(file)) for file in files - {""}}
    # The target's own file is read anew for each check: what ran of it is what was hashed then.
    return dict(sorted((seen | ran).items()))


def _imported(before: Collection[str], roots: Collection[str]) -> set[str]:
    """The files of the modules that came since, and of those that the modules of some files lead to."""
    found, leading = set[str](), list[str]()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name not in before and os.path.isabs(file) and is_edited(file):
            found.add(file)
        if file in roots:
            leading.append(name)
    return found | {*edited_modules(leading)}


def _named(request: CheckRequest) -> set[str]:
    """The files that the words of a check name."""
    words = [request.target, request.reference or ""]
    words += [str(request.options.get(name, "")) for name in ("shards", "inputs")]
    places = [word if os.path.isfile(word) else word.rpartition(":")[0] for word in words]
    return {os.path.abspath(place) for place in places if os.path.isfile(place)}
