"""What may go into more than the check itself, and who waits for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Seconds after which work is left that counts should have ended long before.
LAST_RESORT = 600.0


@dataclass(frozen=True)
class Allowance:
    """Work is counted, so that the same is done however busy the machine is."""

    count: int = 0
    seconds: float = LAST_RESORT


NOTHING = Allowance()


@dataclass(frozen=True)
class Client:
    tick: Callable[..., object] = lambda stage, fraction, layout="": None
    """Told what is done, the fraction that is done, and the layout."""
    told: Callable[[Any], object] = lambda so_far: None
    """Given what was Probed so far."""
    budget: Callable[[], Allowance] = lambda: NOTHING
