"""A mutant: one fault planted in one file, as edits of its text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ...source.text import Edit, edited

# The classes of faults that are planted, in the order in which they are told.
CLASSES = {
    "S1": "another tensor's stride",
    "S3": "index, offset or head map",
    "I64": "32-bit offsets",
    "M1": "which keys are seen",
    "M2": "range of tiles",
    "M3": "partial tiles and bounds",
    "N1": "rows that see nothing",
    "N2": "memory that nobody wrote",
    "A": "algebra",
    "ACC": "accumulation",
    "RACE": "order of threads",
    "PREC": "precision",
}


@dataclass(frozen=True)
class Mutant:
    """One fault that a file can be given."""

    name: str
    """Of its kind, with a number among those of the file: "another-stride-12"."""
    fault_class: str
    """One of CLASSES."""
    function: str
    """In which it lies."""
    file: str
    line: int
    """The only line that differs."""
    before: str
    """That line as it stands, without its indent."""
    after: str
    """And with the fault."""
    edits: tuple[Edit, ...]
    diff: str
    """Unified, without lines around."""
    statement: tuple[int, int] | None
    """The first and last line of the statement that is changed; None for what no statement runs."""

    def plant(self, text: str) -> str:
        """The file's text with the fault in it."""
        return edited(text, self.edits)


def changed_line(before: str, after: str) -> int | None:
    """The number of the only line in which two texts differ; None where there are more, or none."""
    ours, theirs = before.split("\n"), after.split("\n")
    if len(ours) != len(theirs):
        return None
    differing = [
        number
        for number, pair in enumerate(zip(ours, theirs, strict=True), 1)
        if pair[0] != pair[1]
    ]
    return differing[0] if len(differing) == 1 else None


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
    by_class = []
    for name in CLASSES:
        those = [mutant for mutant in mutants if mutant.fault_class == name]
        by_operator: dict[str, list[Mutant]] = {}
        for mutant in draw.sample(those, len(those)):
            by_operator.setdefault(operator_of(mutant), []).append(mutant)
        by_class.append(_in_turn(list(by_operator.values())))
    return _in_order(_in_turn(by_class)[:most])


def operator_of(mutant: Mutant) -> str:
    """The operator that made it, by its name without the number."""
    return mutant.name.rpartition("-")[0]


def _in_turn(lists: Sequence[Sequence[Mutant]]) -> list[Mutant]:
    """The first of each, then the second of each, and so on."""
    longest = max(map(len, lists), default=0)
    return [each[at] for at in range(longest) for each in lists if at < len(each)]


def _in_order(mutants: Sequence[Mutant]) -> list[Mutant]:
    return sorted(mutants, key=lambda mutant: (mutant.line, mutant.edits[0].start, mutant.name))
