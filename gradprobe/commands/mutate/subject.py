"""The file and the function that a target's word names, asked in a process of its own: an import may crash."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path

from ...model.failures import Failure, TargetFailure, UsageFailure
from ...processes import run_each

_FACTORY = f"{__name__}:Locator"


@dataclass(frozen=True)
class Subject:
    """Where faults are planted."""

    file: Path
    function: str | None
    """Whose kernels are meant; None for all of the file's."""


@dataclass(frozen=True)
class Word:
    """What names a target."""

    target: str
    family: str | None
    device: str


class Locator:
    """`Locator(device)(word)` is the target's Subject. Torch is imported first, outside any timeout."""

    def __init__(self, device: str) -> None:
        from ...runtime.backend import prepare_backend

        prepare_backend(device)

    def __call__(self, word: Word) -> Subject:
        from ...targets.find import find_target

        with contextlib.redirect_stdout(sys.stderr):
            source = find_target(word.target, word.family).source
        if not source.file:
            raise UsageFailure(f"target {word.target!r} has no Python source", "name a file: --file KERNELS.py")
        return Subject(Path(source.file), source.name)


def subject_of(word: Word, file: str | None) -> Subject:
    """The file that faults are planted in.

    Args:
        file: named on the command line; the whole of it is meant, unless the target's function lies in it.

    Raises:
        UsageFailure, TargetFailure: the target is not there, or cannot be imported.
    """
    if word.target.endswith(".py"):  # a file alone
        return Subject(Path(file or word.target), None)
    (ended,) = run_each(_FACTORY, word.device, [word])
    if ended.raised is not None:
        kind = UsageFailure if ended.raised.exit_code == UsageFailure.exit_code else TargetFailure
        raise kind(ended.raised.message, ended.raised.way_out)
    if ended.crash is not None:
        raise Failure(f"target {word.target!r} was {ended.crash.words} at its import{ended.crash.where}")
    found: Subject = ended.result  # type: ignore[assignment]
    if file is None or _is_same(Path(file), found.file):
        return found
    return Subject(Path(file), None)


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
