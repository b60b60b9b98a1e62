"""Number: a float that JSON can hold and that equals itself; and how far roundings may add up."""

from __future__ import annotations

import math

WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


# Roundings are at most u each, about u / sqrt(3) in the mean square, so four bounds in quadrature stand near seven
# standard deviations: over 10^9 elements none is expected outside.
LAMBDA = 4.0


class Number(float):
    """A float; one NaN equals another, so that reports that hold the same are equal."""

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
    """The inverse of `Number.plain`.

    Raises:
        ValueError: it is no number.
    """
    if isinstance(plain, str) and plain in WORDS:
        return Number(WORDS[plain])
    if isinstance(plain, (int, float)) and not isinstance(plain, bool):
        return Number(plain)
    raise ValueError(f"expected a number, NaN, Infinity or -Infinity, got {plain!r}")
