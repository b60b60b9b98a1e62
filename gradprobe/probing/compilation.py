"""Compilation: a fork asks Triton's front end whether it takes the kernels that ran."""

import contextlib
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from ..frontends import INTERPRETED
from ..frontends.triton import architecture
from ..frontends.triton.launches import KernelCall
from ..model.report import CompileError
from ..processes.forks import ParallelWork
from .runs import RunRecord, outcomes_of

# A last resort: a kernel takes some 50 ms.
_PATIENCE = 60.0
# By its key: each launch that was asked about in this process, and what is wrong with it.
_ASKED: dict[Any, tuple[KernelCall, CompileError | None]] = {}


_Fork = ParallelWork[list[CompileError | None]]


class Compilation(contextlib.ExitStack):
    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[Any, KernelCall] = {}
        self._forks: list[tuple[dict[Any, KernelCall], _Fork]] = []

    def begin(self, record: RunRecord) -> None:
        """Has a fork ask about the launches of a run that nobody asked about yet."""
        if sys.platform == "linux":
            calls = _calls(record)
            waiting = _unasked(calls, self._calls)
            self._calls |= calls
            if waiting:
                fork = self.enter_context(_Fork(partial(_errors_of, waiting)))
                self._forks.append((waiting, fork))

    def result(self) -> tuple[tuple[CompileError, ...], tuple[str, ...]]:
        for calls, fork in self._forks:
            _keep(calls, fork.answer(_PATIENCE) or [])
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


def compiles(record: RunRecord) -> bool:
    """Whether the front end takes the launches; none is interpreted afterwards."""
    waiting = _unasked(_calls(record), {})
    errors = _errors_of(waiting) if waiting else []
    _keep(waiting, errors)
    return not any(errors)


def _unasked(
    calls: dict[Any, KernelCall], waiting: Mapping[Any, object]
) -> dict[Any, KernelCall]:
    return {key: calls[key] for key in calls if key not in waiting and key not in _ASKED}


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


def _errors_of(calls: dict[Any, KernelCall]) -> list[CompileError | None]:
    from ..frontends.triton.lowering import compile_errors

    return compile_errors(list(calls.values()))
