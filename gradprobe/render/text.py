"""How numbers, heads and marks are written for people, in UTF-8 and in ASCII."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.intermediates import lookup
from ..model.memory import MemoryFinding
from ..model.report import INHERITED, MISMATCH, Element, Identity, Run


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


def value(number: float | None) -> str:
    """A tensor's element, four significant digits."""
    if number is None:
        return "non-finite"
    return f"{number + 0.0:.4g}"  # -0.0 + 0.0 is 0.0


def greppable(run: Run, memory: Sequence[MemoryFinding] = ()) -> str:
    """The line of a run's first mismatch, else of the identity that is broken, else of what memory was touched."""
    if run.first_mismatch:
        return element_line(run.first_mismatch)
    return identity_line(run.broken[0]) if run.broken else stray_line(memory[0])


def element_line(element: Element) -> str:
    """The one greppable line; its form never changes."""
    where = (element.batch, element.head, element.row, element.col)
    return _line(element.intermediate, where, element.tile, element.actual, element.expected, element.ratio)


def identity_line(identity: Identity) -> str:
    """The same line where no element is wrong but an identity is broken: it has no place."""
    return _line(identity.key, (None,) * 4, (None, None), identity.residual, 0.0, identity.ratio)


def _line(
    name: str,
    where: Sequence[int | None],
    tile: Sequence[int | None],
    actual: float | None,
    expected: float | None,
    times: float,
) -> str:
    at = " ".join(f"{axis}={_index(index)}" for axis, index in zip(_AXES, where, strict=True))
    tiles = ",".join(_index(index) for index in tile)
    stood = f"actual={value(actual)} expected={value(expected)} ratio={ratio(times)}x"
    return f"FIRST MISMATCH {name} {at} tile={tiles} {stood}"


def _index(index: int | None) -> str:
    return "-" if index is None else str(index)


def stray_line(memory_finding: MemoryFinding) -> str:
    """The same line of a finding about memory: an input that was changed has a place, a dtype has its words."""
    row = lookup(memory_finding.tensor)
    name = (row.name if row else memory_finding.tensor) or memory_finding.kind
    at = " ".join(f"{axis}={_index(index)}" for axis, index in zip(_AXES, memory_finding.place, strict=True))
    return (
        f"FIRST MISMATCH {name} {at} tile=-,- actual={memory_finding.actual} expected={memory_finding.expected} ratio=-"
    )


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
