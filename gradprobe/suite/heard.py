"""What a check said before it ended, however it ended: what it was at, and what was measured by then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stage:
    """What a check is at."""

    words: str
    fraction: float
    layout: str
    """The layout that it is done for; "" where there is none yet."""


@dataclass(frozen=True)
class SoFar:
    """What a check has come to."""

    document: Mapping[str, Any]
    """gradprobe.report/1 of the layouts that were measured."""
    lines: tuple[str, ...]
    """What a person reads of it: the whole where something is wrong, else a line for each layout."""
    layouts: tuple[str, ...]
    """The line of each layout."""
    mismatch: bool


@dataclass
class Heard:
    """All that was said of one check, the latest of each."""

    stage: Stage | None = None
    so_far: SoFar | None = None

    def take(self, value: Stage | SoFar) -> None:
        if isinstance(value, Stage):
            self.stage = value
        else:
            self.so_far = value

    @property
    def mismatch(self) -> bool:
        """Whether one was seen."""
        return self.so_far is not None and self.so_far.mismatch
