"""A word on the command line -> the survey of the kernels that it means."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..failures import Failure, TargetFailure, UsageFailure
from ..options import parse
from .survey import Survey, surveyed, views_of

if TYPE_CHECKING:
    from types import ModuleType

    from ..cases.case import Case
    from ..targets.find import Target


@dataclass(frozen=True)
class Inquiry:
    """What was asked for, and what came of it."""

    word: str
    survey: Survey
    targets: tuple[str, ...]
    """The functions that were called."""
    refused: tuple[str, ...]
    """Those whose launches could not be caught."""


def inquire(word: str, family: str | None, options: Mapping[str, Any]) -> Inquiry:
    """Reads the kernels of a target, or of every function of FILE.py that can be called as one.

    Raises:
        UsageFailure: there is no such file or target, or an option that none of them takes.
        TargetFailure: it fails to import, or no kernel could be read.
    """
    given = parse(options)
    from ..cases.case import DEVICES
    from ..running.backend import prepare_backend

    device = given.get("device", "auto")
    if device not in DEVICES:
        raise UsageFailure(f"--device must be one of {', '.join(DEVICES)}, got {device!r}")
    given = {**given, "device": prepare_backend(device)}
    with contextlib.redirect_stdout(sys.stderr):
        module = _module(word)
        targets = list(_targets(module, family)) if module is not None else [_target(word, family)]
        return _inquiry(word, module, targets, given)


def _module(word: str) -> ModuleType | None:
    """The module of a file that stands alone; None where the word names a function."""
    if not word.endswith(".py"):
        return None
    from ..targets.find import load_file

    return load_file(Path(word), word)


def _target(word: str, family: str | None) -> Target:
    from ..targets.find import find_target

    return find_target(word, family)


def _targets(module: ModuleType, family: str | None) -> Iterator[Target]:
    """The functions of a module that can be called as a target."""
    from ..targets.find import callables, find_target

    for name in callables(module):
        with contextlib.suppress(UsageFailure):
            yield find_target(getattr(module, name), family)


def _inquiry(word: str, module: ModuleType | None, targets: list[Target], given: Mapping[str, Any]) -> Inquiry:
    views, refused = [], []
    for target in targets:
        found = views_of(target, _case(target, given, alone=len(targets) == 1))
        views += found
        refused += [] if found else [target.function.__name__]
    scopes = [(vars(module), str(Path(module.__file__ or "").resolve()))] if module is not None else []
    survey = surveyed(views, scopes)
    if not survey.read:
        raise _nothing_read(word, targets)
    return Inquiry(word, survey, tuple(target.function.__name__ for target in targets), tuple(refused))


def _case(target: Target, given: Mapping[str, Any], *, alone: bool) -> Case:
    """The case in which a target is called; without options that only its siblings in the file know."""
    from ..cases.case import resolve
    from ..running.backend import choose_threads, make_interpreter_right

    takes_bias = "bias" in target.takes
    try:
        case = resolve(given, target.family, takes_bias=takes_bias, packs=target.packs)
    except Failure:
        if alone:
            raise
        case = resolve({"device": given["device"]}, target.family, takes_bias=takes_bias, packs=target.packs)
    make_interpreter_right(case)
    choose_threads(case)
    return case


def _nothing_read(word: str, targets: list[Target]) -> TargetFailure:
    if not targets:
        return TargetFailure(f"{word} has no Triton kernel with pointers that could be read, and no target to call")
    names = ", ".join(target.function.__name__ for target in targets)
    return TargetFailure(
        f"no kernel of {word} was launched where {names} was called, so nothing was read",
        "gradprobe check runs it; lint reads Triton kernels, and --traceback shows what failed",
    )
