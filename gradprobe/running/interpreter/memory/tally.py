"""Tally: what was seen, counted by kind, tensor and line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .findings import MISALIGNED, NAMED, OUTSIDE, RACE, UNWRITTEN, Earlier, Finding, Program, Spot
from .frames import Line, places
from .views import View

_ORDER = (OUTSIDE, MISALIGNED, RACE, UNWRITTEN)
_ACCESSES = ("store", "atomic", "load")


@dataclass(frozen=True)
class Seen:
    """One access of many lanes."""

    kind: str
    access: str
    view: View
    kernel: str
    lines: tuple[Line, ...]
    launch: int
    program: Program
    lanes: int
    width: int
    """In bytes, of a lane."""


@dataclass
class _Count:
    first: Seen
    spot: Spot
    earlier: Earlier | None
    lanes: int = 0
    programs: dict[tuple[int, Program], None] = field(default_factory=dict)

    def finding(self) -> Finding:
        seen, view = self.first, self.first.view
        named = tuple(dict.fromkeys(program for _, program in self.programs))[:NAMED]
        return Finding(
            seen.kind, seen.access, view.name, view.parameter, view.known is not None, seen.kernel, places(seen.lines),
            seen.program, self.spot, self.earlier, self.lanes, seen.width,
            len(self.programs), named,
        )  # fmt: skip


class Tally:
    """Counts; each with what was seen first."""

    def __init__(self) -> None:
        self._counts: dict[tuple[object, ...], _Count] = {}

    def add(self, seen: Seen, describe: Callable[[], tuple[Spot, Earlier | None]]) -> None:
        """Counts lanes. `describe` is asked only about what is seen for the first time."""
        key = (seen.kind, seen.access, seen.view.name, seen.kernel, seen.lines)
        if key not in self._counts:
            self._counts[key] = _Count(seen, *describe())
        count = self._counts[key]
        count.lanes += seen.lanes
        count.programs[seen.launch, seen.program] = None

    def findings(self) -> tuple[Finding, ...]:
        """By kind, stores before loads; among these in the order in which they were first seen."""
        found = [count.finding() for count in self._counts.values()]
        return tuple(sorted(found, key=lambda one: (_ORDER.index(one.kind), _ACCESSES.index(one.access))))
