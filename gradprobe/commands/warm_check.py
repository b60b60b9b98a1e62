"""What `watch` keeps warm, which files it waits for, and which layout it tries first."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import pkgutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..inputs.history import CheckRequest
from ..model.assignment import parse_run
from ..model.failures import Failure, UsageFailure
from ..model.report import Report
from ..processes import forks
from ..processes.warm import warm_process
from ..targets.builtin import BUILTINS, FILES, has_driver
from ..targets.find import parts_of
from .configuration.settings import table_of
from .suite.outcome import CheckOutcome
from .suite.plan import PlannedCheck

# What a kernel is written in, and may include.
_SETTINGS = "pyproject.toml"
_SOURCES = {".py", ".cu", ".cuh", ".h", ".hpp"}
# Seconds that a file must stay as it is before it is taken to be saved; for which one that an editor is about to put in
# its place may be missing; and in milliseconds, after which the files are looked at though nobody told of a change.
_STILL, _MISSING, _LOOK = 0.03, 1.0, 1000
_AT_ONCE: dict[str, Any] = {
    "watch_filter": None, "recursive": False, "rust_timeout": _LOOK, "yield_on_timeout": True, "step": 5,
}  # fmt: skip


def refuse_without_watchfiles() -> None:
    """Does nothing where saves can be waited for.

    Raises:
        Failure: the package that tells of them is missing.
    """
    if importlib.util.find_spec("watchfiles") is None:
        raise Failure(
            "watch needs watchfiles, which is not installed", "pip install 'gradprobe[watch]'"
        )


# What is warm


@contextlib.contextmanager
def warm(options: Mapping[str, Any]) -> Iterator[int]:
    """While open, checks with such options run in forks of a process that has torch, Triton and gradprobe."""
    with warm_process(f"{__name__}:prepare", json.dumps(dict(options))) as number:
        yield number


# Of each family one kernel. Its types are those of the case, and what it computes is small.
_REHEARSED = ("lazy", "flash")
_OF_TYPES = {"dtype", "head_dim", "head_dim_v", "block_m", "block_n"}
_SMALL = {"device": "cpu", "batch": 1, "heads": 1, "seqlen": 40}
# Of gradprobe itself: what is a target, what runs in other programs, and what no check imports.
_APART = {"kernels", "reference", "adapters", "templates", "testing", "startup", "cli", "on_ray"}


def prepare(words: str) -> None:
    """Imports what checks with some options need, with Triton in the mode that they choose; uses no device, no thread.

    Where Triton interprets it also runs kernels.

    Args:
        words: JSON of the options.
    """
    import torch
    import torch.fx.experimental.symbolic_shapes  # noqa: F401 - which torch imports at the first gradient

    from ..processes.forks import ParallelWork

    case = json.loads(words)
    device, is_there = case.get("device", "auto"), False
    if device != "cpu" and has_driver():
        with ParallelWork(
            torch.cuda.is_available
        ) as asked:  # not here: it would begin to use the device
            is_there = asked.answer(seconds=60.0) or False
    is_interpreted = not is_there and device != "cuda"
    if is_interpreted:
        os.environ["TRITON_INTERPRET"] = "1"
        importlib.import_module("triton.runtime.interpreter")
    importlib.import_module("triton.language")
    import gradprobe

    for module in pkgutil.walk_packages(
        gradprobe.__path__, "gradprobe.", onerror=lambda name: None
    ):
        if _APART.isdisjoint(module.name.split(".")):
            importlib.import_module(module.name)
    if is_interpreted:
        _rehearse({name: word for name, word in case.items() if name in _OF_TYPES})


def _rehearse(options: Mapping[str, Any]) -> None:
    """Runs kernels of this tool's own once: what the interpreter works out once of each operation, forks find noted."""
    from ..pipeline.resolve import resolve_problem
    from ..probing.experiment import experiment_of
    from ..probing.runs import records_of
    from ..targets.surroundings import ordinary_torch

    forks.CROWDED.add(os.getpid())
    for name in _REHEARSED:
        with contextlib.suppress(Failure), ordinary_torch():
            problem = resolve_problem(CheckRequest(name, None, None, {**options, **_SMALL}))
            next(records_of(experiment_of(problem.case, problem.target)))


# What is waited for


@dataclass(frozen=True)
class Sources:
    """Files and folders, and what stood in them."""

    digests: Mapping[str, str]
    """The hash of each; "" of one that is missing."""

    @classmethod
    def of(cls, files: Iterable[str]) -> Sources:
        return cls({file: _digest(file) for file in sorted(files)})

    @property
    def changed(self) -> list[str]:
        """Those that hold something else by now."""
        return [file for file, digest in self.digests.items() if _digest(file) != digest]

    def settled(self) -> list[str]:
        """The same, once nobody writes any more: an editor may save in several steps, with no file there in between."""
        until, seen = time.monotonic() + _MISSING, None
        while (now := Sources.of(self.digests)) != seen or (
            _lacks(now, self) and time.monotonic() < until
        ):
            seen = now
            time.sleep(_STILL)
        return self.changed

    def wait(self) -> list[str]:
        """Those that were saved, as soon as one holds something else."""
        from watchfiles import watch

        while not self.changed:
            folders = {
                folder for path in self.digests if os.path.isdir(folder := os.path.dirname(path))
            }
            with contextlib.suppress(FileNotFoundError):  # a folder that has gone since
                for _ in watch(*folders, **_AT_ONCE):
                    if self.changed:
                        break
        return self.settled()


def _digest(path: str) -> str:
    """Of a file what stands in it, of a folder which sources are there, of pyproject.toml what it says to this tool."""
    try:
        if os.path.basename(path) == _SETTINGS:
            with contextlib.suppress(UsageFailure):
                return str(table_of(Path(path)) or "")
        held = (
            "\n".join(sorted(_beside(path))).encode()
            if os.path.isdir(path)
            else Path(path).read_bytes()
        )
        return hashlib.sha256(held).hexdigest()
    except OSError:
        return ""


def _lacks(now: Sources, before: Sources) -> bool:
    return any(before.digests[file] and not digest for file, digest in now.digests.items())


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
        yield from (
            entry.path for entry in os.scandir(folder) if Path(entry.name).suffix in _SOURCES
        )


def of_settings(planned: PlannedCheck) -> set[str]:
    """The files of its inputs and settings, also where the nearest is not there yet."""
    folder, inputs = Path.cwd(), planned.request.options.get("inputs")
    files = {above / _SETTINGS for above in folder.parents if (above / _SETTINGS).is_file()} | {
        folder / _SETTINGS
    }
    return {str(file) for file in files} | ({os.path.abspath(inputs)} if inputs else set())


def imported(planned: PlannedCheck, checked: CheckOutcome) -> set[str]:
    """The files that made a check what it is; empty where it did not come to its results."""
    report = checked.report
    if report.error is not None or not report.runs:
        return set()
    word = os.path.abspath(
        _file(planned.request.target) or report.target.file
    )  # which may be a link
    return {*report.sources, word} - {""}


# What comes first


def failing_layout(report: Report) -> str:
    """The layout that is shown as wrong; "" where none is."""
    return "" if report.failing is None else report.failing.layout.partition(", ")[0]


def in_layout(planned: PlannedCheck, layout: str) -> PlannedCheck | None:
    """The same check in one layout alone; None where it begins there anyway."""
    options = {name: word for name, word in planned.request.options.items() if name != "layout"}
    if not layout or layout == planned.layouts[0]:
        return None
    try:
        parse_run(layout)
    except UsageFailure:
        return None
    return replace(
        planned, request=replace(planned.request, options={**options, "runs": [layout]})
    )


def told_files(paths: Sequence[str]) -> str:
    """`my_lazy.py and 2 more`; `a file in kernels` where one has come."""
    files = [os.path.relpath(path) for path in paths if not os.path.isdir(path)]
    first = files[0] if files else f"a file in {os.path.relpath(paths[0])}"
    return f"{first} and {len(files) - 1} more" if len(files) > 1 else first


def told_change(paths: Sequence[str]) -> str:
    """`my_lazy.py saved`, or `removed` where nothing of it is there any more."""
    if not paths:
        return "the same again saved"
    return f"{told_files(paths)} {'saved' if any(map(os.path.exists, paths)) else 'removed'}"
