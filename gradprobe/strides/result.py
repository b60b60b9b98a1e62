"""Result: what one trial came to, as plain values that any process can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..judging.locate import Location
from ..judging.strays import Stray
from ..last import Asked
from ..severity import ERROR, WARNING
from ..verdict import MISMATCH
from .trials import Trial

BITS, BUDGET = "same bits", "within budget"
NOT_RUN = "error"


@dataclass(frozen=True)
class Result:
    """One trial, or the contiguous run that the others are held against."""

    trial: Trial
    verdict: str
    """match, mismatch, skipped or error."""
    how: str = ""
    """Of a match: BITS (as when contiguous) or BUDGET."""
    words: str = ""
    """Why it was skipped, or what kept it from being run."""
    blame: str = ""
    """Of a mismatch: which intermediates are wrong by themselves, and which inherit."""
    line: str = ""
    """Of a mismatch, the greppable one."""
    first: Location | None = None
    strays: tuple[Stray, ...] = ()
    copied: tuple[str, ...] = ()
    """The tensors of which the kernels were given copies, here and not when all lay contiguous."""
    document: Mapping[str, Any] | None = None
    """The run, as in a report; None where there was none."""
    hazard: str = ""
    """Of one that fails: the trial's hazard, where the same without it is right; so it is no fault of another kind."""
    severity: str = ERROR
    """WARNING of one that fails by such a hazard and is not to count."""

    @property
    def is_failing(self) -> bool:
        """Whether it is wrong, or could not be run."""
        return self.verdict in (MISMATCH, NOT_RUN)

    @property
    def is_warning(self) -> bool:
        """Whether it fails, and that is shown and does not count."""
        return self.is_failing and self.severity == WARNING


@dataclass(frozen=True)
class Plan:
    """What a target is to be tried under, and what a report says of it."""

    trials: tuple[Trial, ...]
    """The contiguous one first."""
    document: Mapping[str, Any]
    """The report of the contiguous run alone."""
    precision: str
    """The arithmetic that the target is held to, in words."""
    more: str = ""
    """What was found out of what the target takes, as words of the command line."""


@dataclass(frozen=True)
class Setup:
    """What a bench is made from."""

    asked: Asked
    again: str
    """The command line that repeats it."""
    fast: bool
    given: frozenset[str]
    """The options of it that were given; the others are what strides takes by itself."""
