"""Which files `watch` waits for."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.failures import Failure, UsageFailure
from ..targets.builtin import BUILTINS, FILES
from ..targets.find import parts_of
from .suite.outcome import CheckOutcome
from .suite.plan import PlannedCheck

# What a kernel is written in, and may include.
_SOURCES = {".py", ".cu", ".cuh", ".h", ".hpp"}
# Seconds that a file must stay as it is before it is taken to be saved; for which one that an editor is about to put in
# its place may be missing; and in milliseconds, after which the files are looked at though nobody told of a change.
_STILL, _MISSING, _LOOK = 0.03, 1.0, 1000
_AT_ONCE: dict[str, Any] = {
    "watch_filter": None, "recursive": False, "rust_timeout": _LOOK, "yield_on_timeout": True, "step": 5,
}  # fmt: skip


def refuse_without_watchfiles() -> None:
    """Raises Failure where the package that tells of saves is missing."""
    if importlib.util.find_spec("watchfiles") is None:
        way_out = "pip install 'gradprobe[watch]'"
        raise Failure("watch needs watchfiles, which is not installed", way_out)


@dataclass(frozen=True)
class Sources:
    digests: Mapping[str, str]
    """Of files and folders what stood in them; "" of one that is missing."""

    @classmethod
    def of(cls, files: Iterable[str]) -> Sources:
        return cls({file: digest(file) for file in sorted(files)})

    @property
    def changed(self) -> list[str]:
        """Those that hold something else by now."""
        return [file for file, before in self.digests.items() if digest(file) != before]

    def settled(self) -> list[str]:
        """The same, once nobody writes any more: an editor may save in several steps, with no file there in between."""
        until, last = time.monotonic() + _MISSING, None
        while (now := Sources.of(self.digests)) != last or (
            now._lacks(self) and time.monotonic() < until
        ):
            last = now
            time.sleep(_STILL)
        return self.changed

    def _lacks(self, before: Sources) -> bool:
        return any(before.digests[file] and not found for file, found in self.digests.items())

    def wait(self) -> list[str]:
        """Those that were saved, as soon as one holds something else."""
        from watchfiles import watch

        while not self.changed:
            folders = {os.path.dirname(path) for path in self.digests}
            with contextlib.suppress(FileNotFoundError):  # a folder that has gone since
                for _ in watch(*filter(os.path.isdir, folders), **_AT_ONCE):
                    if self.changed:
                        break
        return self.settled()


def digest(path: str) -> str:
    """Of a file what stands in it, of a folder which sources are there."""
    try:
        is_folder = os.path.isdir(path)
        names = "\n".join(sorted(_beside(path))) if is_folder else ""
        return hashlib.sha256(names.encode() or Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def at_first(planned: PlannedCheck) -> set[str]:
    """Files of which one is the target's, as far as its words say, and their folders: where nothing was imported."""
    words = (planned.request.target, planned.request.reference or "")
    files = {os.path.abspath(place) for word in words if (place := _file(word))}
    folders = {os.path.dirname(file) for file in files} or {os.getcwd()}
    return files.union(folders, *map(_beside, folders))


def _file(word: str) -> str:
    with contextlib.suppress(UsageFailure):
        place, _ = parts_of(word)
        return place if word not in BUILTINS and place.endswith(FILES) else ""
    return ""


def _beside(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if Path(entry.name).suffix in _SOURCES:
                yield entry.path


def imported(planned: PlannedCheck, checked: CheckOutcome) -> set[str]:
    report = checked.report
    if report.error is not None or not report.runs:
        return set()
    # The target's own may be a link.
    own = os.path.abspath(_file(planned.request.target) or report.target.file)
    return {*report.sources, own} - {""}


def listed_files(paths: Sequence[str]) -> str:
    """`my_lazy.py and 2 more`; `a file in kernels` where one has come."""
    files = [os.path.relpath(path) for path in paths if not os.path.isdir(path)]
    first = files[0] if files else f"a file in {os.path.relpath(paths[0])}"
    return f"{first} and {len(files) - 1} more" if len(files) > 1 else first
