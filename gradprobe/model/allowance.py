"""Allowance: how much work may go into what is beyond a check itself; Client: who waits for the check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Seconds after which work is left that counts should have ended long before: several times what it takes where others
# have most of the machine. Whatever is left out for it is told.
LAST_RESORT = 600.0


@dataclass(frozen=True)
class Allowance:
    """Work is counted, so that the same is done, and told, however busy the machine is."""

    count: int = 0
    """Edits that are tried; small cases that are run; ..."""
    seconds: float = LAST_RESORT
    """After these it is left, and that is told."""


NOTHING = Allowance()


@dataclass(frozen=True)
class Client:
    """Who waits for a check: is told what goes on, and says what more may be spent."""

    tick: Callable[..., object] = lambda stage, fraction, layout="": None
    """Told what is being done, which fraction of it is done, and for which layout."""
    told: Callable[[Any], object] = lambda so_far: None
    """Given what was Probed so far, again and again."""
    budget: Callable[[], Allowance] = lambda: NOTHING
    """How many edits of a target that is wrong are tried."""
