"""Compilation: a fork asks Triton's front end whether it takes the kernels that ran."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import Any

from ..frontends import INTERPRETED
from ..frontends.triton import architecture
from ..frontends.triton.launches import KernelCall
from ..model.mechanisms import is_on
from ..model.report import CompileError
from ..processes.forks import ParallelWork
from .runs import RunRecord, outcomes_of

# A last resort: a kernel takes some 50 ms.
_PATIENCE = 60.0
_ASKED: dict[Any, tuple[KernelCall, CompileError | None]] = {}
"""By its key: each launch that was asked about in this process, and what is wrong with it."""


class Compilation:
    """What the front end says of the launches of a check."""

    def __init__(self) -> None:
        self._calls: dict[Any, KernelCall] = {}
        self._forks: list[
            tuple[dict[Any, KernelCall], ParallelWork[list[CompileError | None]]]
        ] = []

    def begin(self, record: RunRecord) -> None:
        """Has a fork ask about the launches of a run that nobody asked about yet."""
        if sys.platform == "linux" and is_on("front-end"):
            calls = _calls(record)
            waiting = {
                key: call
                for key, call in calls.items()
                if key not in self._calls and key not in _ASKED
            }
            self._calls |= calls
            if waiting:
                self._forks.append((waiting, _asking(waiting)))

    def result(self) -> tuple[tuple[CompileError, ...], tuple[str, ...]]:
        """The errors, each line once; and a sentence where the front end came to no end."""
        for calls, fork in self._forks:
            answers = fork.answer(_PATIENCE)
            if (
                answers is None
            ):  # once more: a fork may end for want of memory, beside all that works meanwhile
                with _asking(calls) as again:
                    answers = again.answer(_PATIENCE)
            _keep(calls, answers or [])
        self._forks.clear()
        errors, unknown = dict[tuple[str, int], CompileError](), dict[str, None]()
        for key, call in self._calls.items():
            _, error = _ASKED.get(key, (None, None))
            if error is not None:
                errors.setdefault((error.file, error.line), error)
            elif key not in _ASKED:
                unknown[call.kernel.fn.__name__] = None
        words = f"whether {', '.join(unknown)} compiles is not known: Triton's front end ended without an answer"
        return tuple(errors.values()), (words,) if unknown else ()

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *_: object) -> None:
        for _calls, fork in self._forks:
            fork.__exit__()


def compiles(record: RunRecord) -> bool:
    """Whether the front end takes the launches, asked in this process, which interprets none afterwards."""
    waiting = {key: call for key, call in _calls(record).items() if key not in _ASKED}
    errors = _errors_of(list(waiting.values())) if waiting and is_on("front-end") else []
    _keep(waiting, errors)
    return not any(errors)


def _keep(calls: dict[Any, KernelCall], errors: list[CompileError | None]) -> None:
    for (key, call), error in zip(calls.items(), errors, strict=False):
        _ASKED[key] = (call, error)


def _calls(record: RunRecord) -> dict[Any, KernelCall]:
    """The launches of interpreted kernels, the latest first, by what each is compiled by."""
    arch, found = architecture(), dict[Any, KernelCall]()
    for outcome in outcomes_of([record]):
        for call in reversed(outcome.calls if INTERPRETED in outcome.backends else ()):
            with contextlib.suppress(Exception):  # of arguments of the user's own making
                found[arch, call.key] = call
    return found


def _asking(calls: dict[Any, KernelCall]) -> ParallelWork[list[CompileError | None]]:
    return ParallelWork(partial(_errors_of, list(calls.values())))


def _errors_of(calls: list[KernelCall]) -> list[CompileError | None]:
    from ..frontends.triton.lowering import compile_errors

    return compile_errors(calls)
