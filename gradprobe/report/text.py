"""How numbers, heads and marks are written for people, in UTF-8 and in ASCII."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..locate import Location
from ..tally import INHERITED, MISMATCH


@dataclass(frozen=True)
class Marks:
    """The signs that carry meaning without colour."""

    mismatch: str
    inherited: str
    times: str
    dash: str


UTF8 = Marks(mismatch="✗", inherited="↳", times="×", dash="·")
ASCII = Marks(mismatch="!", inherited="~", times="x", dash="-")

STYLES = {MISMATCH: "bold red", INHERITED: "yellow"}


def ratio(value: float) -> str:
    """A multiple of the budget in at most five characters."""
    if value != value or value == float("inf"):
        return "inf"
    if value < 9.95:
        return f"{value:.2f}" if value < 0.995 else f"{value:.1f}"
    return f"{value:.0f}" if value < 99_999.5 else f"{value:.0e}".replace("e+0", "e")


def value(number: float) -> str:
    """A tensor's element, four significant digits."""
    return f"{number:.4g}"


def ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return spans_text([(first, last) for first, last in spans])


def spans_text(spans: Sequence[tuple[int, int]], most: int = 8) -> str:
    """Inclusive ranges in words, the first `most` of them."""
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in spans[:most]]
    rest = len(spans) - most
    return ", ".join(shown) + (f" and {rest} more ranges" if rest > 0 else "")


def first_mismatch_line(location: Location) -> str:
    """The one greppable line; its form never changes."""
    place = location.place
    at = " ".join(
        f"{axis}={'-' if where is None else where}"
        for axis, where in (("batch", place.batch), ("head", place.head), ("row", place.row), ("col", place.col))
    )
    tile = ",".join("-" if index is None else str(index) for index in location.tile)
    return (
        f"FIRST MISMATCH {location.intermediate} {at} tile={tile} actual={value(place.actual)} "
        f"expected={value(place.expected)} ratio={ratio(place.ratio)}x"
    )


def plural(count: int, noun: str) -> str:
    """`1 head`, `2 heads`, `2 batches`."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "x")) else "s"
    return f"{count:,} {noun}{ending}"
