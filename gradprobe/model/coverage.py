"""Coverage: which combinations of properties the cases of a battery hold, as a value."""

from __future__ import annotations

from msgspec import Struct

PAIRS, TRIPLES = 2, 3
"""How many properties are combined."""
AUTO, QUICK = "auto", "quick"
"""A battery without a word, by the device; and the table of some thirty cases."""
BATTERIES = {"pairs": PAIRS, "triples": TRIPLES, QUICK: 0, AUTO: 0}
"""What --battery takes, with how many properties are combined."""


class Coverage(Struct, frozen=True, kw_only=True):
    """What of all combinations stands in a case that the target takes."""

    strength: int
    """PAIRS or TRIPLES."""
    properties: int
    """How many there are; 0 where nothing was combined, since the case without any is not right."""
    held: int = 0
    """The combinations that stand in a case."""
    missing: int = 0
    """Those that stand in none although nothing shows that the target does not take them."""
    wrong_alone: tuple[str, ...] = ()
    """The cases with one property that are wrong, so that it stands in no other case."""
    wrong_together: tuple[str, ...] = ()
    """The simplest cases of combinations that are wrong, likewise."""
