"""Numbers in JSON and in sentences; and how far roundings may add up."""

import math
import re
from collections.abc import Iterable, Sequence

WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


# Roundings are at most u each, about u / sqrt(3) in the mean square, so four bounds in quadrature stand near seven
# standard deviations: over 10^9 elements none is expected outside.
LAMBDA = 4.0


class Number(float):
    """One NaN equals another, so that equal reports are equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if math.isnan(self):
            return isinstance(other, float) and math.isnan(other)
        return float.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return 0 if math.isnan(self) else float.__hash__(self)

    @property
    def plain(self) -> float | str:
        """As strict JSON holds it: "NaN", "Infinity" or "-Infinity" where it is not finite."""
        if math.isnan(self):
            return "NaN"
        return float(self) if math.isfinite(self) else f"{'-' if self < 0 else ''}Infinity"


def number_of(plain: object) -> Number:
    """Raises ValueError."""
    if isinstance(plain, str) and plain in WORDS:
        return Number(WORDS[plain])
    if isinstance(plain, (int, float)) and not isinstance(plain, bool):
        return Number(plain)
    raise ValueError(f"expected a number, NaN, Infinity or -Infinity, got {plain!r}")


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def in_words(ranges: Sequence[tuple[int, int]], most: int = 8) -> str:
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:most]]
    rest = len(ranges) - most
    return ", ".join(shown) + (f" and {rest} more ranges" if rest > 0 else "")


def plural(count: int, noun: str) -> str:
    if count != 1:
        noun = re.sub("(?<![aeiou])y$", "ie", noun)
        noun = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun}"


def listed(names: Sequence[str], word: str = "and") -> str:
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


def some(words: Iterable[str], most: int = 4) -> str:
    names = list(words)
    more = len(names) - most
    return listed(names if more <= 0 else [*names[: most - 1], f"{more + 1} more"])


def ratio(value: float) -> str:
    """In at most five characters."""
    if math.isnan(value) or value == math.inf:  # a Number that is NaN equals itself
        return "inf"
    if value < 9.995:
        return f"{value:.2f}"
    short = f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.0f}" if value < 99_999.5 else short
