"""Rung: one step of a ladder, run in a process of its own kind; and what came of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...model.failures import Failure
from ...model.run import FAILED, MATCH
from ...processes import Crash, TaskResult, run_each
from ...render.console import first_line
from ...render.text import visible
from ..suite.checked import Checked, Planned
from ..suite.checking import Checker, Setting
from .primitives import run_primitive

if TYPE_CHECKING:
    from ...model.report import Report

GREEN, RED, FAILS, REFUSED, NOT_RUN = "green", "red", "fails", "refused", "not run"
COMPILED, INTERPRETED, CUDA = "compiled", "interpreted", "CUDA"


@dataclass(frozen=True)
class Rung:
    """One step."""

    title: str
    blames: str
    """What is at fault where it is red and all below it is green; what it rules out where it is green."""
    how: str
    """COMPILED, INTERPRETED or CUDA; "" of a user's own kernel."""
    planned: Planned | None = None
    """The check that it is; None where it is a primitive."""
    primitive: str = ""
    """FUNCTION or FUNCTION:DTYPE:PRECISION of `primitives`."""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others of its ladder."""
        return self.how, self.title

    @property
    def in_full(self) -> str:
        """The command that shows all of its check; "" of a primitive."""
        if self.planned is None:
            return ""
        request = self.planned.request
        options = {name: word for name, word in request.options.items() if name != "recover"}
        return replace(self.planned, request=replace(request, options=options)).repro_command


@dataclass(frozen=True)
class Climbed:
    """A rung that was tried."""

    rung: Rung
    state: str
    """GREEN; RED where numbers are wrong, FAILS where it came to none; REFUSED by the target, or NOT_RUN."""
    words: str = ""
    """What was wrong, or why it was not run."""
    seconds: float = 0.0
    report: Report | None = None
    """Of a rung that is a check."""

    @property
    def is_bad(self) -> bool:
        """Whether it is at fault, or what is below it."""
        return self.state in (RED, FAILS)


class Climber:
    """`Climber(device)(rung)` tries a rung on "cpu" or "cuda"."""

    def __init__(self, device: str) -> None:
        if device == "cuda":
            os.environ.pop("TRITON_INTERPRET", None)  # a compiled rung is compiled, whatever is in force
        from ...runtime.backend import prepare_backend

        self._device = prepare_backend(device)
        self._check = Checker(Setting())

    def __call__(self, rung: Rung) -> Climbed:
        start = time.perf_counter()
        if rung.planned is not None:
            return _of_check(rung, self._check(rung.planned))
        try:
            words = run_primitive(rung.primitive, rung.how == CUDA, self._device)
            state = RED if words else GREEN
        except Exception as error:
            state, words = FAILS, _first(error)
        return Climbed(rung, state, words, time.perf_counter() - start)


FACTORY = f"{__name__}:Climber"


def climb(
    rungs: Sequence[Rung],
    device: str,
    *,
    workers: int = 1,
    timeout: float | None = None,
    echo: Callable[[str], object] | None = None,
) -> Iterator[Climbed]:
    """Each rung as it comes, with one worker in order; one that ends its process ends no other."""
    for ended in run_each(FACTORY, device, rungs, workers=workers, timeout=timeout, echo=echo):
        yield _ended(ended)


def _ended(ended: TaskResult) -> Climbed:
    rung: Rung = ended.item
    if isinstance(ended.result, Climbed):
        return ended.result
    if isinstance(crash := ended.crash, Crash):
        return Climbed(rung, FAILS, f"it ended its process: {crash.words}{crash.where}", crash.seconds)
    return Climbed(rung, FAILS, ended.raised.message if ended.raised else "it gave nothing")


def _of_check(rung: Rung, checked: Checked) -> Climbed:
    report, seconds = checked.report, checked.report.seconds.get("total", 0.0)
    climbed = Climbed(rung, GREEN, "", seconds, report)
    if checked.verdict == MATCH:
        return climbed
    if checked.verdict == FAILED:
        words = report.error.message if report.error else ""
        return replace(climbed, state=REFUSED if checked.is_refused else FAILS, words=visible(words))
    return replace(climbed, state=RED, words=visible(first_line(report)))


def _first(error: Exception) -> str:
    """The first line of what was raised."""
    words = str(error).strip().partition("\n")[0]
    return visible(words if isinstance(error, Failure) else f"{type(error).__name__}: {words}")
