"""Allowance: what may go into more than the check itself; Client: who waits for the check."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Seconds after which work is left that counts should have ended long before.
LAST_RESORT = 600.0


@dataclass(frozen=True)
class Allowance:
    """Work is counted, so that the same is done, and told, however busy the machine is."""

    count: int = 0
    seconds: float = LAST_RESORT  # after these it is left, and that is told


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
