"""Hazard: what shows only where an offset passes 2^31 elements, or where a vector of parameters is strided.

No program of ordinary size and habits comes to that, so that a kernel is right without; it is told, and an error only
where that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.assignment import TENSORS
from ...model.memory import OUTSIDE
from ...model.severity import HUGE, Warned
from .culprits import Culprit
from .trials import Result
from .wide import ALL_AXES, CONTIGUOUS, any_of

OVERFLOW = "overflow"


@dataclass(frozen=True)
class Hazard:
    """What several trials show."""

    kind: str
    """HUGE or VECTOR."""
    severity: str
    culprit: Culprit
    results: tuple[Result, ...]
    """Those that fail by it alone."""

    @property
    def warned(self) -> Warned:
        about = " ".join(name for name, _ in self.culprit.strides)
        layouts = tuple(result.trial.title for result in self.results)
        return Warned(self.kind, about, self.culprit.words, layouts)


def hazards(results: Sequence[Result]) -> tuple[Hazard, ...]:
    """The hazards that results came to: offsets are one, and so is each vector."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if result.hazard:
            about = "" if result.hazard == HUGE else result.trial.row
            groups.setdefault((result.hazard, about, result.severity), []).append(result)
    return tuple(
        Hazard(kind, severity, _overflow(found) if kind == HUGE else _strided(about), tuple(found))
        for (kind, about, severity), found in groups.items()
    )


def _overflow(results: Sequence[Result]) -> Culprit:
    """The tensors that fail alone; or those outside which an access was seen."""
    alone = [result.trial.row for result in results if result.trial.row != "all"]
    seen = [finding.tensor for result in results for finding in result.memory if finding.kind == OUTSIDE]
    names = sorted(set(alone or seen) & set(TENSORS), key=TENSORS.index)
    into = f" into {any_of(names)}" if names else ""
    words = f"wrong once an offset{into} passes 2^31 elements: an index is held in 32 bits"
    return Culprit(OVERFLOW, tuple((name, ALL_AXES) for name in names), words)


def _strided(name: str) -> Culprit:
    return Culprit(CONTIGUOUS, ((name, 0),), f"wrong when {name}.stride(0) != 1: it is taken for contiguous")
