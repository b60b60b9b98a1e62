"""Culprit: what the layouts that fail have in common, found by making one stride of one tensor longer at a time.

What that spoils is misread wherever it differs from another stride. Two strides that each spoil alone, and do not where
both are longer alike, are one mix-up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from .bench import Bench
from .trials import ALONE, CONTIGUOUS, Trial
from .wide import Stride, Wide

HUGE = "huge"


@dataclass(frozen=True)
class Culprit:
    """Why some layouts fail."""

    kind: str
    """ "mix-up" (strides that must be equal), "stride" (one alone), "contiguous" or "overflow"."""
    strides: tuple[Stride, ...]
    """(tensor, axis); of the last two kinds (tensor, -1): all its axes."""
    words: str


def culprits(bench: Bench, failing: Collection[Trial]) -> tuple[Culprit, ...]:
    """The reasons of the trials that fail; nothing where they fail whatever the layout."""
    layouts = {trial.layout for trial in failing}
    if CONTIGUOUS in layouts:
        return ()
    wide = Wide(bench.session.case, bench.shapes())
    found: list[Culprit] = []
    if layouts - {HUGE}:
        found += _assumed(bench, wide) if bench.is_wrong(wide.placements()) else _mixed_up(bench, wide)
    if HUGE in layouts:
        found += _overflowing(bench)
    return tuple(found)


def _assumed(bench: Bench, wide: Wide) -> Iterator[Culprit]:
    """The tensors that fail as soon as they are not contiguous, the others being so."""
    for name, place in wide.placements().items():
        if bench.is_wrong({name: place}):
            yield Culprit(CONTIGUOUS, ((name, -1),), f"wrong as soon as {name} is not contiguous")


def _mixed_up(bench: Bench, wide: Wide) -> list[Culprit]:
    spoiling = [stride for stride in wide.strides() if bench.is_wrong(wide.placements([stride]))]
    groups: list[tuple[Stride, ...]] = []
    while spoiling:
        group = _mixed_with(spoiling[0], spoiling[1:], bench, wide)
        spoiling = [stride for stride in spoiling if stride not in group]
        groups.append(group)
    return [_culprit(group, alone=len(groups) == 1) for group in groups]


def _mixed_with(first: Stride, others: Sequence[Stride], bench: Bench, wide: Wide) -> tuple[Stride, ...]:
    """The fewest strides, the first among them, that spoil nothing where all are longer alike; else itself."""
    like = [other for other in others if wide.kind(other) == wide.kind(first)]
    for count in range(1, len(like) + 1):
        for some in combinations(like, count):
            if not bench.is_wrong(wide.placements([first, *some])):
                return (first, *some)
    return (first,)


def _culprit(group: tuple[Stride, ...], *, alone: bool) -> Culprit:
    names = [f"{name}.stride({axis})" for name, axis in reversed(group)]
    only = "only " if alone else ""
    if len(group) == 1:
        return Culprit("stride", group, f"wrong {only}when {names[0]} is not what the other tensors' strides suggest")
    if len(group) == 2:
        return Culprit("mix-up", group, f"wrong {only}when {names[0]} != {names[1]}")
    return Culprit("mix-up", group, f"wrong {only}when {', '.join(names[:-1])} and {names[-1]} are not all equal")


def _overflowing(bench: Bench) -> list[Culprit]:
    """The tensors whose own offsets beyond 2^31 are too much, where as many different strides are not."""
    names = [name for name in bench.shapes() if _fails(bench, name, HUGE) and not _fails(bench, name, "distinct")]
    if not names:
        return []
    words = f"wrong once an offset into {any_of(names)} passes 2^31 elements: an index is held in 32 bits"
    return [Culprit("overflow", tuple((name, -1) for name in names), words)]


def _fails(bench: Bench, name: str, layout: str) -> bool:
    trial = Trial(f"{name}={layout}", ALONE, ((name, layout),), name, layout, thorough=False)
    return bench.tried(trial).verdict in ("mismatch", "error")


def any_of(names: Sequence[str]) -> str:
    """ "q", "q or k", "q, k or v"."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
