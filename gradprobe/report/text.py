"""How numbers, heads and marks are written for people, in UTF-8 and in ASCII."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..intermediates import lookup
from ..judging.tally import INHERITED, MISMATCH

if TYPE_CHECKING:
    from ..judging.invariants import Invariant
    from ..judging.locate import Location
    from ..judging.strays import Stray


@dataclass(frozen=True)
class Marks:
    """The signs that carry meaning without colour."""

    mismatch: str
    inherited: str
    times: str
    about: str
    improved: str


UTF8 = Marks(mismatch="✗", inherited="↳", times="×", about="≈", improved="↓")
ASCII = Marks(mismatch="!", inherited="~", times="x", about="~", improved="-")

_AXES = ("batch", "head", "row", "col")
# Legible on white and on black, with a contrast of 4.5 to each; a terminal's yellow has 1.7 to white.
CAUTION = "color(130)"
STYLES = {MISMATCH: "bold red", INHERITED: CAUTION}


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
    where = (place.batch, place.head, place.row, place.col)
    return greppable(location.intermediate, where, location.tile, place.actual, place.expected, place.ratio)


def greppable(
    name: str,
    where: Sequence[int | None],
    tile: Sequence[int | None],
    actual: float | None,
    expected: float | None,
    times: float,
) -> str:
    """The same from what a document holds, which for a number that is not finite is None.

    Args:
        where: batch, head, row and column.
        times: the error as a multiple of the budget.
    """
    at = " ".join(f"{axis}={_index(index)}" for axis, index in zip(_AXES, where, strict=True))
    stood, due = ("non-finite" if number is None else value(number) for number in (actual, expected))
    tiles = ",".join(_index(index) for index in tile)
    return f"FIRST MISMATCH {name} {at} tile={tiles} actual={stood} expected={due} ratio={ratio(times)}x"


def _index(index: int | None) -> str:
    return "-" if index is None else str(index)


def broken_identity_line(invariant: Invariant) -> str:
    """The same line where no element is wrong but an identity is broken: it has no place."""
    times = invariant.residual / invariant.budget if invariant.budget else float("inf")
    return greppable(invariant.key, (None,) * 4, (None, None), invariant.residual, 0.0, times)


def stray_line(stray: Stray) -> str:
    """The same line of a finding about memory: an input that was changed has a place, a dtype has its words."""
    row = lookup(stray.tensor)
    name = (row.name if row else stray.tensor) or stray.kind
    at = " ".join(f"{axis}={_index(index)}" for axis, index in zip(_AXES, stray.place, strict=True))
    stood, due = stray.stood
    return f"FIRST MISMATCH {name} {at} tile=-,- actual={stood} expected={due} ratio=-"


# What XML 1.0 cannot hold or advises against, and what else ends a line: controls but tab and newline, separators,
# halves of characters, and non-characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(1, 17))
    + "]"
)


def visible(text: str) -> str:
    """The text with what no file of text should hold written as Python writes it: `\\x1b`, `\\ud800`."""
    return _UNSEEN.sub(lambda found: repr(found[0])[1:-1], text)
