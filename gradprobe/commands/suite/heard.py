"""What a check said before it ended, however it ended: what it was at, and what was measured by then."""

from __future__ import annotations

from dataclasses import dataclass

from ...model.report import Report


@dataclass(frozen=True)
class Stage:
    """What a check is at."""

    words: str
    fraction: float
    layout: str
    """The layout that it is done for; "" where there is none yet."""


@dataclass
class Heard:
    """All that was said of one check, the latest of each."""

    stage: Stage | None = None
    so_far: Report | None = None
    """Of the layouts that were measured."""

    def take(self, value: Stage | Report) -> None:
        if isinstance(value, Stage):
            self.stage = value
        else:
            self.so_far = value
