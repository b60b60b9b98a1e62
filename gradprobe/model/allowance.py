"""Allowance: how much work may go into what is beyond a check itself."""

from __future__ import annotations

from dataclasses import dataclass

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
