"""Result: what one trial came to, as plain values that any process can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..judging.locate import Location
from ..judging.strays import Stray
from .trials import Trial

BITS, BUDGET = "same bits", "within budget"


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


@dataclass(frozen=True)
class Plan:
    """What a target is to be tried under, and what a report says of it."""

    trials: tuple[Trial, ...]
    """The contiguous one first."""
    document: Mapping[str, Any]
    """The report of the contiguous run alone."""
    precision: str
    """The arithmetic that the target is held to, in words."""
