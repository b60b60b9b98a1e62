"""Ranges of neighbouring integers, counted nouns and lists, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Turns ascending numbers into inclusive ranges: 0, 1, 2, 5 into (0, 2), (5, 5)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def in_words(ranges: Sequence[tuple[int, int]], most: int = 8) -> str:
    """The first `most` ranges in words: "0-2, 5"."""
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:most]]
    rest = len(ranges) - most
    return ", ".join(shown) + (f" and {rest} more ranges" if rest > 0 else "")


def plural(count: int, noun: str) -> str:
    """`1 head`, `2 heads`, `2 batches`, `2 entries`."""
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun}"


def listed(names: Sequence[str]) -> str:
    """`dQ`, `dQ and dK`, `P, dP and delta`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
