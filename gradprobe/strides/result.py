"""The result of one trial, as plain values that any process can read."""

from __future__ import annotations

from dataclasses import dataclass

from ..last import Asked
from ..model.memory import Stray
from ..model.report import Element, Report, Run
from ..severity import ERROR, WARNING
from ..verdict import MISMATCH
from .trials import Trial

BITS, BUDGET = "same bits", "within budget"
NOT_RUN = "error"


@dataclass(frozen=True)
class Result:
    """The result of one trial, or of the contiguous run with which the others are compared."""

    trial: Trial
    verdict: str
    """match, mismatch, skipped or error."""
    how: str = ""
    """For a match: BITS (the same as when contiguous) or BUDGET."""
    words: str = ""
    """Why it was skipped or could not be run."""
    blame: str = ""
    """For a mismatch: which intermediates are wrong by themselves, and which inherit the error."""
    line: str = ""
    """For a mismatch: the line that scripts can search for."""
    first: Element | None = None
    strays: tuple[Stray, ...] = ()
    copied: tuple[str, ...] = ()
    """The tensors of which kernels got copies here, but not when all were contiguous."""
    run: Run | None = None
    """As in a report; None where there was none."""
    hazard: str = ""
    """For a failing trial: its hazard, where the same trial without the hazard is right."""
    severity: str = ERROR
    """WARNING for a trial that fails by a hazard and does not count."""

    @property
    def is_failing(self) -> bool:
        """Whether it is wrong, or could not be run."""
        return self.verdict in (MISMATCH, NOT_RUN)

    @property
    def is_warning(self) -> bool:
        """Whether it fails, is shown, and does not count."""
        return self.is_failing and self.severity == WARNING


@dataclass(frozen=True)
class Plan:
    """The trials of a target, and what a report says of it."""

    trials: tuple[Trial, ...]
    """The contiguous one first."""
    report: Report
    """Of the contiguous run alone."""
    precision: str
    """The arithmetic that the target is held to, in words."""
    more: str = ""
    """Options that were found to fit what the target takes, as words of the command line."""


@dataclass(frozen=True)
class Setup:
    """What a bench is made from."""

    asked: Asked
    again: str
    """The command line that repeats it."""
    fast: bool
    given: frozenset[str]
    """The options that the user gave. `strides` chooses the others by itself."""
