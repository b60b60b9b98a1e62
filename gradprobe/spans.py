"""Runs of neighbouring whole numbers, as inclusive ranges and in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as inclusive ranges: 0, 1, 2, 5 as (0, 2), (5, 5)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def in_words(ranges: Sequence[tuple[int, int]], most: int = 8) -> str:
    """The first `most` ranges, as "0-2, 5"."""
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:most]]
    rest = len(ranges) - most
    return ", ".join(shown) + (f" and {rest} more ranges" if rest > 0 else "")
