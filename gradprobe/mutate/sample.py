"""Which mutants of many are tried: as many of each class as there is room for, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from .mutant import CLASSES, Mutant


def sampled(mutants: Sequence[Mutant], most: int | None, seed: int) -> list[Mutant]:
    """A number of mutants. Classes take turns, and so do the operators of a class.

    Args:
        most: None for all.

    Returns:
        The mutants, in the order of the file.
    """
    if most is None or most >= len(mutants):
        return _in_order(mutants)
    draw = random.Random(seed)
    classes = [[mutant for mutant in mutants if mutant.fault_class == name] for name in CLASSES]
    by_class = [_in_turn(_by_operator(those, draw)) for those in classes]
    return _in_order(_in_turn(by_class)[:most])


def operator_of(mutant: Mutant) -> str:
    """The operator that made it, by its name without the number."""
    return mutant.name.rpartition("-")[0]


def _by_operator(mutants: Sequence[Mutant], draw: random.Random) -> list[list[Mutant]]:
    found: dict[str, list[Mutant]] = {}
    for mutant in draw.sample(mutants, len(mutants)):
        found.setdefault(operator_of(mutant), []).append(mutant)
    return list(found.values())


def _in_turn(lists: Sequence[Sequence[Mutant]]) -> list[Mutant]:
    """The first of each, then the second of each, and so on."""
    longest = max(map(len, lists), default=0)
    return [each[at] for at in range(longest) for each in lists if at < len(each)]


def _in_order(mutants: Sequence[Mutant]) -> list[Mutant]:
    return sorted(mutants, key=lambda mutant: (mutant.line, mutant.edits[0].start, mutant.name))
