"""A command in a process of its own: it shows and writes as in this one, and a target that ends it ends no more."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

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

if TYPE_CHECKING:
    from .command import Call

T = TypeVar("T")


@dataclass(frozen=True)
class ProgressNote:
    """How far the body of a command is; `tell(ProgressNote(...))` shows it."""

    words: str
    done: int
    of: int
    things: str
    kept: str = KEPT
    """What Ctrl-C leaves now, told with the count."""


def apart(call: Call, body: Callable[..., T], *arguments: Any) -> T:
    """What the body of a command, a function of a module, returns in a process of its own unless --no-isolate is given.

    Raises:
        Failure: what the command raised there, or how the target ended it.
    """
    step = ProgressNote("", 0, 0, "")
    with Progress() as tick:

        def show(_: int, value: str | ProgressNote) -> None:
            nonlocal step
            if isinstance(value, ProgressNote):
                step = value
                tick(value.words, value.done / value.of)
            else:
                tick.over(lambda: write_as_is(value))

        try:
            if not call.isolate:
                with heard_by(lambda value: show(0, value)):
                    return body(*arguments)
            factory, items = f"{__name__}:ProcessBody", [(body, arguments)]
            (ended,) = run_each(factory, terminal(), items, echo=sys.stderr.write, told=show)
        except KeyboardInterrupt:
            failure = interrupted(step.done, step.of, step.things, step.kept)
            tick.over(lambda: print_failure(failure))
            raise
    if ended.raised is not None:
        write_stderr(ended.raised.traceback if call.tracebacks else "")
        raise ended.raised.failure
    if ended.crash is not None:
        name = call.request.target
        what = f"target {name!r} crashed: {ended.crash.words}{ended.crash.where}"
        raise TargetFailure(what, "--no-isolate runs it in this process, for a debugger")
    result: T = ended.result  # type: ignore[assignment]
    return result


class ProcessBody:
    """The other end: `ProcessBody(look)((body, arguments))` gives what the body returns, and tells of stdout."""

    def __init__(self, on: Terminal) -> None:
        os.environ["COLUMNS"] = str(on.columns)
        if on.rows is not None:
            os.environ["LINES"] = str(on.rows)
        self._on = on

    def __call__(self, item: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
        body, arguments = item
        with contextlib.redirect_stdout(_Stdout(self._on)):
            return body(*arguments)


class _Stdout(io.TextIOBase):
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
