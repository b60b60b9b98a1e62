"""The worker of a process of its own: one check after another."""

from __future__ import annotations

import functools
import os
import shlex
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from ...model.failures import TargetFailure
from ...pipeline.run_check import run_check
from ...pipeline.sanitizer import strays_under, with_strays, with_words
from ...processes import tell
from .checked import Checked, Heard, Planned, Stage
from .unfinished import of_error

if TYPE_CHECKING:
    from ...model.report import Report
    from ...numerics.evidence import Probed
    from ...probing.experiment import Tick

# Seconds between two words of how far one stage is: a comparison has hundreds.
_BETWEEN = 0.1
FACTORY = "gradprobe.commands.suite.worker:Checker"


@dataclass(frozen=True)
class Setting:
    """What the process that shows the results says to those that make them."""

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

        from ...pipeline.probe import probe  # noqa: F401

        self._setting = setting
        if setting.workers > 1:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // setting.workers))

    def __call__(self, planned: Planned) -> Checked:
        from ...pipeline.reported import report_of

        start, heard = time.perf_counter(), Heard()

        def say(value: Stage | Report) -> None:
            heard.take(value)
            tell(value)

        try:
            return _made(planned, probed_as(planned, _Ticks(say), lambda so_far: say(report_of(so_far))))
        except BaseException as error:
            if not (self._setting.isolate or isinstance(error, Exception)):
                raise  # by who sits before this process
            stack = traceback.format_exc() if self._setting.tracebacks else ""
            return of_error(planned, error, heard, time.perf_counter() - start, stack)


def _made(planned: Planned, probed: Probed) -> Checked:
    from ...numerics.closeup import close_up_of, kept_close_ups
    from ...pipeline.reported import report_of

    report = structs.replace(report_of(probed, kept_close_ups(probed)), title=planned.title)
    if planned.close_up is not None:
        report = structs.replace(report, close_up=close_up_of(probed, *planned.close_up))
    return Checked(planned.request, report, 1 if probed.failing else 0)


def probed_as(planned: Planned, tick: Tick, told: Callable[[Probed], object]) -> Probed:
    """What a check came to, with what a tool of compute-sanitizer found in it; also where the check came to no end."""
    make = functools.partial(run_check, planned.request, planned.repro_command, tick=tick, told=told)
    if planned.sanitizer is None:
        return make()
    program, tool = planned.sanitizer
    words = shlex.split(replace(planned, sanitizer=None).repro_command)[1:]
    try:
        report = make()
    except TargetFailure as failure:
        raise with_words(failure, tool, strays_under(program, tool, words)) from failure
    kernels = [kernel.name for kernel in report.provenance.kernels]
    return with_strays(report, tool, strays_under(program, tool, words, kernels))


class _Ticks:
    """Says how far a check is: each stage and layout at once, and of each stage no more than is seen."""

    def __init__(self, say: Callable[[Stage], None]) -> None:
        self._say, self._last, self._at = say, ("", ""), 0.0

    def __call__(self, stage: str, fraction: float, layout: str = "") -> None:
        now = time.monotonic()
        if (stage, layout) != self._last or now - self._at > _BETWEEN:
            self._last, self._at = (stage, layout), now
            self._say(Stage(stage, fraction, layout))
