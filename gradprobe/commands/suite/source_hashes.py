"""Sources of a report: the files that made it what it is, each with the hash of what stood there."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator
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
    target = report.target
    ran = {
        target.file: target.sha256,
        **{kernel.file: kernel.sha256 for kernel in target.kernels},
    }
    ran.pop("", None)
    named = {*map(os.path.abspath, _named(request))}
    files = named | {*_imported(before, {*named, *ran})}
    files |= {*_beside({*files, *ran})}
    seen = {file: _FIRST_SEEN.setdefault(file, digest_of(file)) for file in files - {""}}
    # The target's own file is read anew for each check: what ran of it is what was hashed then.
    return dict(sorted((seen | ran).items()))


def _imported(before: Collection[str], roots: Collection[str]) -> Iterator[str]:
    """The files of the modules that came since, and of those that the modules of some files lead to."""
    modules = {
        name: getattr(module, "__file__", None) or ""
        for name, module in list(sys.modules.items())
    }
    since = (file for name, file in modules.items() if name not in before)
    yield from (file for file in since if os.path.isabs(file) and is_edited(file))
    yield from edited_modules(name for name, file in modules.items() if file in roots)


def _named(request: CheckRequest) -> Iterator[str]:
    """The files that the words of a check name."""
    options = request.options
    words = (
        request.target,
        request.reference or "",
        str(options.get("shards", "")),
        str(options.get("inputs", "")),
    )
    places = (word if os.path.isfile(word) else word.rpartition(":")[0] for word in words)
    return (place for place in places if os.path.isfile(place))


def _beside(files: Iterable[str]) -> Iterator[str]:
    """What is compiled in the folders of some files."""
    for folder in {os.path.dirname(file) for file in files}:
        with contextlib.suppress(OSError):
            yield from (
                entry.path for entry in os.scandir(folder) if Path(entry.name).suffix in _COMPILED
            )
