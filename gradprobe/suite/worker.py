"""The worker of a process of its own: one check after another."""

from __future__ import annotations

import functools
import json
import os
import shlex
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..answer import answer
from ..failures import TargetFailure
from ..isolation import tell
from ..sanitizer import strays_under, with_strays, with_words
from ..screen import Look, painted, rendered
from .checked import Checked, Planned
from .documents import of_error, titled
from .heard import Heard, SoFar, Stage

if TYPE_CHECKING:
    from rich.text import Text

    from ..probing.experiment import Tick
    from ..verdict import Report

# Seconds between two words of how far one stage is: a comparison has hundreds.
_BETWEEN = 0.1
FACTORY = "gradprobe.suite.worker:Checker"


@dataclass(frozen=True)
class Setting:
    """What the process that shows the results says to those that make them."""

    look: Look
    tracebacks: bool = False
    workers: int = 1
    """How many share the cores."""
    isolate: bool = True
    """Whether they are processes of their own."""
    timeout: float | None = None
    """Seconds for one check, not counting the imports of the tool; None for no limit."""


class Checker:
    """`Checker(setting)(planned)` makes a check. What takes long to import is imported first, outside any timeout."""

    def __init__(self, setting: Setting) -> None:
        import torch

        from ..probe import probe  # noqa: F401

        self._setting = setting
        if setting.workers > 1:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // setting.workers))

    def __call__(self, planned: Planned) -> Checked:
        start, heard = time.perf_counter(), Heard()

        def say(value: Stage | SoFar) -> None:
            heard.take(value)
            tell(value)

        try:
            return self._made(planned, report_on(planned, _Ticks(say), lambda so_far: say(self._so_far(so_far))))
        except BaseException as error:
            if not (self._setting.isolate or isinstance(error, Exception)):
                raise  # by who sits before this process
            left = tuple(traceback.format_exc().splitlines()) if self._setting.tracebacks else ()
            return replace(of_error(planned, error, heard, time.perf_counter() - start), left=left)

    def _made(self, planned: Planned, report: Report) -> Checked:
        document, lines = _document(report), rendered(report, self._setting.look)
        if planned.close_up is not None:
            document, lines = self._close_up(report, *planned.close_up)
        code = 1 if report.failing else 0
        return Checked(planned.title, planned.asked, titled(document, planned.title), self._painted(lines), code)

    def _close_up(self, report: Report, name: str, at: tuple[int, int] | None) -> tuple[dict[str, Any], list[Text]]:
        """One intermediate, in the first layout in which it is wrong."""
        from rich.text import Text

        from ..judging.closeup import close_up_of
        from ..report.closeup import close_up_as_json, render_close_up

        look, (layout, view) = self._setting.look, close_up_of(report, name, at)
        document = _document(report) | {"close_up": {"layout": layout} | close_up_as_json(view)}
        return document, [Text(f"layout {layout}", "dim"), *render_close_up(view, look.columns, utf8=look.utf8)]

    def _so_far(self, report: Report) -> SoFar:
        from ..report.console import render_layouts

        look, mismatch = self._setting.look, report.failing is not None
        layouts = self._painted(list(render_layouts(report, look.columns, utf8=look.utf8)))
        lines = self._painted(rendered(report, look)) if mismatch else layouts
        return SoFar(_document(report), lines, layouts, mismatch)

    def _painted(self, lines: list[Text]) -> tuple[str, ...]:
        return tuple(painted(lines, self._setting.look).splitlines())


def report_on(planned: Planned, tick: Tick, told: Callable[[Report], object]) -> Report:
    """The report of a check, with what a tool of compute-sanitizer found in it; also where the check came to no end."""
    make = functools.partial(answer, planned.asked, planned.again, tick=tick, told=told)
    if planned.sanitizer is None:
        return make()
    program, tool = planned.sanitizer
    words = shlex.split(replace(planned, sanitizer=None).again)[1:]
    try:
        report = make()
    except TargetFailure as failure:
        raise with_words(failure, tool, strays_under(program, tool, words)) from failure
    kernels = [kernel.name for kernel in report.provenance.kernels]
    return with_strays(report, tool, strays_under(program, tool, words, kernels))


def _document(report: Report) -> dict[str, Any]:
    """Some of a report's strings are of classes of torch, which the process that shows them need not import."""
    from ..report.as_json import as_json

    document: dict[str, Any] = json.loads(json.dumps(as_json(report), allow_nan=False))
    return document


class _Ticks:
    """Says how far a check is: each stage and layout at once, and of each stage no more than is seen."""

    def __init__(self, say: Callable[[Stage], None]) -> None:
        self._say, self._last, self._at = say, ("", ""), 0.0

    def __call__(self, stage: str, fraction: float, layout: str = "") -> None:
        now = time.monotonic()
        if (stage, layout) != self._last or now - self._at > _BETWEEN:
            self._last, self._at = (stage, layout), now
            self._say(Stage(stage, fraction, layout))
