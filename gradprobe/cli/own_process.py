"""A command in a process of its own: it shows and writes as in this one, and a target that ends it ends no more."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..model.failures import TargetFailure
from ..processes import run_each, tell
from ..processes.child import heard_by
from ..render.terminal import (
    KEPT,
    Progress,
    Terminal,
    interrupted,
    print_failure,
    terminal,
    write_as_is,
    write_stderr,
)

T = TypeVar("T")


@dataclass(frozen=True)
class ProgressNote:
    """How far the body of a command is; `tell(ProgressNote(...))` shows it."""

    words: str
    """What is done now."""
    done: int
    of: int
    things: str
    """What is counted."""
    kept: str = KEPT
    """What Ctrl-C leaves now, told with the count."""


def apart(
    body: Callable[..., T],
    *arguments: Any,
    target: str,
    isolate: bool,
    show_traceback: bool = False,
) -> T:
    """What the body of a command returns, run in a process of its own.

    Args:
        body: a function of a module, since it is found there by its name.
        isolate: whether it is one; without, all is done in this process, for a debugger.

    Raises:
        Failure: what the command raised there, or how the target ended it.
    """
    last: list[ProgressNote] = []
    with Progress() as tick:
        tick("importing torch and the target", None)

        def show(_: int, value: str | ProgressNote) -> None:
            if isinstance(value, ProgressNote):
                last[:] = [value]
                tick(value.words, value.done / value.of)
            else:
                tick.over(lambda: write_as_is(value))

        try:
            if not isolate:
                with heard_by(lambda value: show(0, value)):
                    return body(*arguments)
            (ended,) = run_each(
                f"{__name__}:ProcessBody",
                terminal(),
                [(body, arguments)],
                echo=sys.stderr.write,
                told=show,
            )
        except KeyboardInterrupt:
            step = last[0] if last else ProgressNote("", 0, 0, "")
            tick.over(
                functools.partial(
                    print_failure, interrupted(step.done, step.of, step.things, step.kept)
                )
            )
            raise
    if ended.raised is not None and show_traceback:
        write_stderr(ended.raised.traceback)
    if ended.raised is not None:
        raise ended.raised.failure
    if ended.crash is not None:
        way_out = "--no-isolate runs it in this process, for a debugger"
        raise TargetFailure(
            f"target {target!r} crashed: {ended.crash.words}{ended.crash.where}", way_out
        )
    result: T = ended.result  # type: ignore[assignment]
    return result


class ProcessBody:
    """The other end: `ProcessBody(look)((body, arguments))` gives what the body returns, and tells of stdout."""

    def __init__(self, on: Terminal) -> None:
        os.environ |= {"COLUMNS": str(on.columns)} | (
            {} if on.rows is None else {"LINES": str(on.rows)}
        )
        self._on = on

    def __call__(self, item: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
        body, arguments = item
        with contextlib.redirect_stdout(_Stdout(self._on)):
            return body(*arguments)


class _Stdout(io.TextIOBase):
    """The stdout of the process that was typed."""

    def __init__(self, on: Terminal) -> None:
        self._on = on

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8" if self._on.utf8 else "ascii"

    def isatty(self) -> bool:
        return self._on.rows is not None

    def write(self, text: str) -> int:
        tell(text)
        return len(text)
