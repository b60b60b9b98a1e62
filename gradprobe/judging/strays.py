"""The order in which findings about memory are told, and which of them belong together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..model.memory import (
    BARRIER,
    CHANGED,
    DTYPE,
    GUARD,
    MISALIGNED,
    OUTSIDE,
    RACE,
    SHARED,
    UNWRITTEN,
    Stray,
)
from ..severity import ERROR

# What spoils memory before what only reads it, and what two programs leave to chance before what each does alone.
_ACCESSES = ("atomic", "store", "", "load")
_KINDS = (RACE, OUTSIDE, MISALIGNED, GUARD, CHANGED, BARRIER, UNWRITTEN, SHARED, DTYPE)


def worst_first(strays: Iterable[Stray]) -> list[Stray]:
    """Findings in the order of a report. A written guard band comes after the store that explains it."""
    strays = list(strays)
    explained = {stray.tensor.lower() for stray in strays if stray.kind == OUTSIDE and stray.access != "load"}
    return sorted(
        strays,
        key=lambda stray: (
            stray.severity != ERROR,
            stray.kind == GUARD and stray.tensor.lower() in explained,
            _ACCESSES.index(stray.access),
            _KINDS.index(stray.kind),
            -stray.lanes,
        ),
    )


@dataclass(frozen=True)
class Group:
    """What one kernel did to one tensor in one way."""

    layouts: tuple[str, ...]
    """Those of the runs in which it did."""
    strays: tuple[Stray, ...]
    """One of each line, the one of most lanes."""

    @property
    def sentence(self) -> str:
        """The worst of it, with its layouts."""
        return f"in {', '.join(self.layouts)}: {self.strays[0].sentence}"


def grouped(found: Iterable[tuple[str, Stray]]) -> list[Group]:
    """(layout, finding) of several runs, the worst first."""
    layouts: dict[object, dict[str, None]] = {}
    groups: dict[object, dict[object, Stray]] = {}
    for layout, stray in found:
        key = (stray.kind, stray.kernel, stray.tensor or stray.line, stray.access)
        layouts.setdefault(key, {})[layout] = None
        lines = groups.setdefault(key, {})
        lines[stray.identity] = max(lines.get(stray.identity, stray), stray, key=lambda one: one.lanes)
    made = {key: Group(tuple(layouts[key]), tuple(worst_first(lines.values()))) for key, lines in groups.items()}
    order = worst_first(group.strays[0] for group in made.values())
    return sorted(made.values(), key=lambda group: order.index(group.strays[0]))


def telling(strays: Iterable[Stray], non_finite: bool) -> tuple[Stray, ...]:
    """The findings of one run that count, worst first.

    What nothing has written holds NaN, so a read of it that shows in a result leaves something that is not finite; any
    other is masked later, as that of padded scratch is.
    """
    return tuple(worst_first(stray for stray in strays if stray.kind != UNWRITTEN or non_finite))
