"""What several checks come to together, as values: those that fail for one reason, and how many fail along an axis."""

from __future__ import annotations

from msgspec import Struct

from .layout_run import MISMATCH
from .report import Report


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Checks that fail for one reason."""

    verdict: str
    """mismatch or error."""
    cause: str
    """The fault that is named with its line, `stride/do-head at delta.py:19`; else what is first wrong, `dP first`."""
    summary: str = ""
    """The cause in a sentence; "" where none is named."""
    titles: tuple[str, ...]
    """Of its checks, the simplest first."""
    numbers: tuple[int, ...]
    """Their places among the checks."""
    common: tuple[str, ...] = ()
    """What they have in common, and what matches does not; sentences."""
    shrunk: Report | None = None
    """The smallest case that was found to fail in the same way as the simplest; None where none was sought or found."""

    @property
    def is_mismatch(self) -> bool:
        return self.verdict == MISMATCH


class AxisShare(Struct, frozen=True, kw_only=True):
    """The checks that have one value along an axis of their cases."""

    axis: str
    value: str
    failed: int
    made: int
