"""How numbers, heads and marks are written for people, in UTF-8 and in ASCII."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..judging.tally import INHERITED, MISMATCH

if TYPE_CHECKING:
    from ..judging.invariants import Invariant
    from ..judging.locate import Location


@dataclass(frozen=True)
class Marks:
    """The signs that carry meaning without colour."""

    mismatch: str
    inherited: str
    times: str
    improved: str


UTF8 = Marks(mismatch="✗", inherited="↳", times="×", improved="↓")
ASCII = Marks(mismatch="!", inherited="~", times="x", improved="-")

STYLES = {MISMATCH: "bold red", INHERITED: "yellow"}


def ratio(value: float) -> str:
    """A multiple of the budget in at most five characters."""
    if value != value or value == float("inf"):
        return "inf"
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.0f}" if value < 99_999.5 else f"{value:.0e}".replace("e+0", "e")


def value(number: float) -> str:
    """A tensor's element, four significant digits."""
    return f"{number + 0.0:.4g}"  # -0.0 + 0.0 is 0.0


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


def broken_identity_line(invariant: Invariant) -> str:
    """The same line where no element is wrong but an identity is broken: it has no place."""
    times = invariant.residual / invariant.budget if invariant.budget else float("inf")
    return (
        f"FIRST MISMATCH {invariant.key} batch=- head=- row=- col=- tile=-,- actual={value(invariant.residual)} "
        f"expected=0 ratio={ratio(times)}x"
    )


def plural(count: int, noun: str) -> str:
    """`1 head`, `2 heads`, `2 batches`, `2 entries`."""
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun}"
