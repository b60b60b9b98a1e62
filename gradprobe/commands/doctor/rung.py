"""Rung: one step of a ladder, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..suite.checked import PlannedCheck

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
    planned: PlannedCheck | None = None
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
class RungResult:
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
