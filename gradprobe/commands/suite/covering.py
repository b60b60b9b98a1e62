"""Covering arrays: few rows in which every two levels of factors stand together, as far as constraints allow it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

# Rows that are drawn for each row that is kept: from there on more of them save under 2 % of the rows.
_DRAWN = 12
Place = tuple[int, int]
"""(factor, level), by number."""
Row = tuple[int, ...]
"""A level of each factor."""


@dataclass(frozen=True)
class Space:
    """Factors with their levels, and what must not stand: a level, or two together. Place 0 is the simplest."""

    counts: tuple[int, ...]
    """How many levels each factor has."""
    forbidden: frozenset[frozenset[Place]] = frozenset()

    def allows(self, level: Place, chosen: Iterable[Place]) -> bool:
        """Whether a level may stand beside others."""
        if frozenset([level]) in self.forbidden:
            return False
        return not any(frozenset([level, other]) in self.forbidden for other in chosen)

    def levels(self, factor: int) -> list[Place]:
        return [(factor, level) for level in range(self.counts[factor])]

    def pairs(self) -> Iterator[frozenset[Place]]:
        """Every two levels of two factors that may stand together."""
        for factor, other in itertools.combinations(range(len(self.counts)), 2):
            for pair in itertools.product(self.levels(factor), self.levels(other)):
                if self.allows(pair[0], ()) and self.allows(pair[1], pair[:1]):
                    yield frozenset(pair)


def standing(row: Row) -> set[frozenset[Place]]:
    """The pairs that stand in a row."""
    return set(map(frozenset, itertools.combinations(enumerate(row), 2)))


def covering(space: Space, given: Collection[Row] = (), seed: int = 0) -> list[Row]:
    """Rows without anything forbidden in which, with the given ones, every pair stands that a row can hold.

    Greedy, one row after another (Cohen, Dalal, Fredman and Patton, 1997), and the same for a seed on every machine.
    """
    rng, rows = random.Random(seed), list[Row]()
    wanted = dict.fromkeys(space.pairs())  # in this order, so that a seed gives one array
    for pair in itertools.chain.from_iterable(map(standing, given)):
        wanted.pop(pair, None)
    while wanted:
        first = next(iter(wanted))
        drawn = [_drawn(space, first, wanted, rng) for _ in range(_DRAWN)]
        best = max(drawn, key=lambda row: len(standing(row) & wanted.keys()) if row else -1)
        best = best or simplest(space, first)
        del wanted[first]
        if best is not None:
            rows.append(best)
            for pair in standing(best):
                wanted.pop(pair, None)
    return rows


def _drawn(
    space: Space,
    first: frozenset[Place],
    wanted: Collection[frozenset[Place]],
    rng: random.Random,
) -> Row | None:
    """A row, grown factor after factor in a drawn order, each with a level that covers most; None where stuck."""
    chosen = dict(first)
    left = [factor for factor in range(len(space.counts)) if factor not in chosen]
    rng.shuffle(left)
    for factor in left:
        gains = {}
        for level in space.levels(factor):
            if space.allows(level, chosen.items()):
                pairs = (frozenset([level, other]) for other in chosen.items())
                gains[level] = sum(pair in wanted for pair in pairs)
        if not gains:
            return None
        best = [level for level, gain in gains.items() if gain == max(gains.values())]
        chosen[factor] = rng.choice(best)[1]
    return tuple(chosen[factor] for factor in range(len(space.counts)))


def simplest(space: Space, held: frozenset[Place]) -> Row | None:
    """The row with the simplest levels beside some; None where no row can hold these."""
    fixed = dict(held)

    def grown(row: Row) -> Row | None:
        factor = len(row)
        if factor == len(space.counts):
            return row
        others = {**fixed, **dict(enumerate(row))}
        for level in [(factor, fixed[factor])] if factor in fixed else space.levels(factor):
            beside = [other for other in others.items() if other != level]
            if space.allows(level, beside) and (whole := grown((*row, level[1]))) is not None:
                return whole
        return None

    return grown(())
