"""Scale: the classes of tiles by how far they are off, one for all pictures of a page."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, log10

from ...model.layout_run import HIDDEN, LEVELS, UNMEASURED, WITHIN
from ..notation import ratio

SCALE = (
    ("r0", "at most half of what is allowed"), ("r1", "all of it"), ("w1", "up to 16 times"), ("w2", "up to 256 times"),
    ("w3", "up to 4,096 times"), ("w4", "more, or not finite"), ("hidden", "masked"), ("zero", "0 is expected"),
)  # fmt: skip
"""The classes of tiles, with their words."""
_CLASSES = {"a": "r0", "b": "r0", "c": "r1", HIDDEN: "hidden", UNMEASURED: "r0"}


def class_of(sign: str) -> str:
    """The class of a tile, by its letter."""
    sign = sign.lower()
    return _CLASSES.get(sign) or f"w{min(4, 1 + (LEVELS.index(sign) - LEVELS.index('d')) // 4)}"


def sign_of(times: float | None) -> str:
    """The letter of a tile whose worst error is so many times the budget; None where all is masked."""
    if times is None:
        return HIDDEN
    beyond = (at for at, letter in enumerate(LEVELS) if times <= 2.0 ** (at - LEVELS.index(WITHIN)))
    return LEVELS[next(beyond, len(LEVELS) - 1)]


def figure_of(sign: str) -> str:
    """The bound that a letter stands for, written as ratios are: `≤0.25`, `≤16`, `≤2e5`; none where nothing is told."""
    if sign in (HIDDEN, UNMEASURED):
        return ""
    level = LEVELS.index(sign.lower())
    if level == len(LEVELS) - 1:
        return ">" + _rounded(2.0 ** (level - 1 - LEVELS.index(WITHIN)), floor)
    return "≤" + _rounded(2.0 ** (level - LEVELS.index(WITHIN)), ceil)


def _rounded(times: float, towards: Callable[[float], int]) -> str:
    """A ratio, of one digit where it has above five; rounded so that what it bounds stays bounded."""
    digit = 10.0 ** floor(log10(times)) if len(f"{times:.0f}") > 5 else 0.0
    return ratio(towards(times / digit) * digit if digit else times)
