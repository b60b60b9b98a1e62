"""A command in a process of its own, so that a target that ends it ends no more."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..model.failures import Failure, TargetFailure
from ..processes import run_each, tell
from ..render.terminal import (
    Progress,
    Terminal,
    print_failure,
    terminal,
    write_as_is,
    write_stderr,
)

if TYPE_CHECKING:
    from .command import Call

T = TypeVar("T")


def apart(call: Call, body: Callable[..., T], *arguments: Any) -> T:
    """What a function returns, in a process of its own unless --no-isolate is given. Raises its Failure."""
    if not call.isolate:
        return body(*arguments)
    factory, items = f"{__name__}:ProcessBody", [(body, arguments)]
    with Progress() as tick:

        def show(_: int, text: str) -> None:
            tick.over(lambda: write_as_is(text))

        try:
            (ended,) = run_each(factory, terminal(), items, echo=sys.stderr.write, told=show)
        except KeyboardInterrupt:
            tick.over(lambda: print_failure(Failure("interrupted")))
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
