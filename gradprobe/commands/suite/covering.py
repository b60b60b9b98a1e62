"""Covering arrays: few rows in which every combination of so many levels stands, as far as constraints allow it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

# Rows that are drawn for each row that is kept: from there on more of them save under 2 % of the rows.
_DRAWN = 12
Combination = frozenset[tuple[int, int]]
"""Some (factor, level), by number."""


@dataclass(frozen=True)
class Space:
    """Factors with their levels, and what must not stand together. Level 0 of a factor is its simplest.

    Held as bits: a level is one bit, and a combination of levels is an int with several.
    """

    counts: tuple[int, ...]
    """How many levels each factor has."""
    forbidden: frozenset[Combination] = frozenset()

    def bit(self, factor: int, level: int) -> int:
        return 1 << (sum(self.counts[:factor]) + level)

    def bits(self, levels: Iterable[tuple[int, int]]) -> int:
        return sum(self.bit(*one) for one in levels)

    def combinations(self, strength: int) -> Iterator[Combination]:
        """All of so many factors that hold nothing forbidden; those of fewer factors where there are fewer."""
        forbidden = [self.bits(one) for one in self.forbidden]
        strength = min(strength, len(self.counts))
        for factors in itertools.combinations(range(len(self.counts)), strength):
            for levels in itertools.product(*(range(self.counts[factor]) for factor in factors)):
                found = frozenset(zip(factors, levels, strict=True))
                if not any(self.bits(found) & one == one for one in forbidden):
                    yield found


Row = tuple[int, ...]
"""A level of each factor."""


def covering(space: Space, strength: int, given: Collection[Row] = (), seed: int = 0) -> list[Row]:
    """Rows without anything forbidden in which, with the given ones, every combination stands that a row can hold.

    Greedy, one row after another (Cohen, Dalal, Fredman and Patton, 1997), and the same for a seed on every machine.
    """
    search = _CoveringSearch(space, strength, random.Random(seed))
    for row in given:
        search.cover(row)
    return list(search.rows())


def standing(row: Row, strength: int) -> Iterator[Combination]:
    """The combinations that stand in a row."""
    return map(frozenset, itertools.combinations(enumerate(row), min(strength, len(row))))


def simplest(space: Space, held: Combination) -> Row | None:
    """The row with the simplest levels beside a combination; None where no row can hold it."""
    forbidden = [space.bits(one) for one in space.forbidden]
    fixed, row = dict(held), list[int]()

    def grows(bits: int) -> bool:
        factor = len(row)
        if factor == len(space.counts):
            return True
        for level in [fixed[factor]] if factor in fixed else range(space.counts[factor]):
            more = bits | space.bit(factor, level)
            if not any(more & one == one for one in forbidden):
                row.append(level)
                if grows(more):
                    return True
                row.pop()
        return False

    return tuple(row) if grows(space.bits(held)) else None


class _CoveringSearch:
    def __init__(self, space: Space, strength: int, rng: random.Random) -> None:
        self._space, self._strength, self._rng = space, min(strength, len(space.counts)), rng
        self._levels = [
            [space.bit(factor, level) for level in range(count)] for factor, count in enumerate(space.counts)
        ]
        self._forbidden = [space.bits(one) for one in space.forbidden]
        # In this order, so that a seed gives one array.
        self._wanted = dict.fromkeys(space.bits(one) for one in space.combinations(strength))

    def cover(self, row: Row) -> None:
        for one in self._standing(row):
            self._wanted.pop(one, None)

    def rows(self) -> Iterator[Row]:
        """The best of some rows that hold the first combination still wanted, until none is that a row can hold."""
        while self._wanted:
            first = next(iter(self._wanted))
            drawn = [row for _ in range(_DRAWN) if (row := self._drawn(first)) is not None]
            row = max(drawn, key=self._gain) if drawn else simplest(self._space, self._named(first))
            self._wanted.pop(first)
            if row is not None:
                self.cover(row)
                yield row

    def _named(self, bits: int) -> Combination:
        return frozenset(
            (factor, level) for factor, own in enumerate(self._levels) for level, bit in enumerate(own) if bit & bits
        )

    def _gain(self, row: Row) -> int:
        return sum(one in self._wanted for one in self._standing(row))

    def _standing(self, row: Row) -> Iterator[int]:
        bits = (self._levels[factor][level] for factor, level in enumerate(row))
        return map(sum, itertools.combinations(bits, self._strength))

    def _drawn(self, first: int) -> Row | None:
        """A row, grown factor after factor in a drawn order, each with a level that covers most; None where stuck."""
        chosen = {factor: bit for factor, bits in enumerate(self._levels) for bit in bits if bit & first}
        parts = _Parts(self._strength - 1, chosen.values())
        left = [factor for factor in range(len(self._levels)) if factor not in chosen]
        self._rng.shuffle(left)
        for factor in left:
            held = sum(chosen.values())
            allowed = [bit for bit in self._levels[factor] if self._is_allowed(held | bit)]
            if not allowed:
                return None
            gains = [parts.gain(bit, self._wanted) for bit in allowed]
            best = [bit for bit, gain in zip(allowed, gains, strict=True) if gain == max(gains)]
            chosen[factor] = self._rng.choice(best)
            parts.add(chosen[factor])
        return tuple(own.index(chosen[factor]) for factor, own in enumerate(self._levels))

    def _is_allowed(self, held: int) -> bool:
        return not any(held & one == one for one in self._forbidden)


class _Parts:
    """The sums of up to so many levels of those that are chosen."""

    def __init__(self, most: int, chosen: Iterable[int]) -> None:
        self._of_size: list[list[int]] = [[0], *([] for _ in range(most))]
        for bit in chosen:
            self.add(bit)

    def add(self, bit: int) -> None:
        for size in range(len(self._of_size) - 1, 0, -1):
            self._of_size[size] += [part | bit for part in self._of_size[size - 1]]

    def gain(self, bit: int, wanted: Collection[int]) -> int:
        return sum((part | bit) in wanted for part in self._of_size[-1])
