"""Scale: the classes of tiles by how far they are off, one for all pictures of a page."""

from __future__ import annotations

from ...model.run import HIDDEN, LEVELS, UNMEASURED, WITHIN

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
