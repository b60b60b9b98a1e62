"""Roundings: whether errors beyond the budget are those of a kernel that rounds more intermediates to 16 bits.

PyTorch's own eager attention in bfloat16 rounds S, P, dP and dS, each as often as an operation stores it. A budget that
allows for that is several times as wide, so it is given only where the errors are roundings: no head errs by more than
so many add up to, none more than another (`evenness`), and no element stands out of its head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..model.case import Case
from ..model.number import listed
from .compare import Comparison
from .evenness import Head, exceeds, excess
from .precision import ROUNDED, Precision, precision_of, with_roundings

TILES = (0, 64, 16)
"""Terms between two roundings of a sum in 16 bits, from none to the smallest tile in use."""
OFTEN = {"product": 5.0, "S": 4.0, "dP": 2.0, "delta": 2.0, "operand": 1.0, "stored": 1.0, "sums": 1 / min(TILES[1:])}
"""How often each part is rounded at most: dP - delta, P, their product, that scaled, and the operand; q k, that
scaled, with what is added, and less the row's maximum; dP, and what dropout makes of it; O and delta."""
# Multiples of what a head's elements err by at which one stands out, without and with sums in 16 bits: of 1,000 right
# heads the furthest are at 8 and 14. The budget of a kernel that rounds no more than its contract lies at 10 to 25.
FURTHEST, FURTHEST_OF_SUMS = 10.0, 16.0


@dataclass(frozen=True)
class Roundings:
    """What a kernel proves to round besides what its contract says."""

    names: tuple[str, ...]
    dtype: str
    tile: int
    """Terms between two roundings of its sums; 0 where they are float32."""

    @property
    def name(self) -> str:
        return listed(self.names)

    @property
    def words(self) -> str:
        """The finding in one sentence."""
        sums = f", and its sums every {self.tile} terms or less often" if self.tile else ""
        return (
            f"coarser than its contract: rounds {self.name} to {self.dtype}{sums} "
            f"(all heads err as that makes them, and no element stands out){self._growth}"
        )

    @property
    def _growth(self) -> str:
        """From which scores on one rounding of a score, u S, moves P by a tenth."""
        if "S" not in self.names:
            return ""
        tenth = 0.1 / precision_of(self.dtype, "ieee").matrix
        return f"; its errors grow with the scores: of scores of {tenth:.0f} and more, P is off by a tenth"


def rounded_besides(
    case: Case,
    plain: Comparison,
    heads: Mapping[str, Sequence[Head]],
    compared: Callable[[Precision], Comparison],
) -> tuple[Comparison, Roundings] | None:
    """The comparison with the narrowest budget that allows for more roundings; None where none does.

    Args:
        plain: the comparison by the contract.
        heads: how the heads of each result scatter.
        compared: compares the trace by another precision.
    """
    if (
        not heads
        or any(one.non_finite for one in plain.findings.values())
        or not all(map(_are_roundings, heads.values()))
    ):
        return None
    ways = [
        (names, tile)
        for tile in TILES
        for names in (("S",), ("P", "dP", "dS"), ROUNDED)
        if not tile or names == ROUNDED
    ]
    # The widest first: nearly all faults that come so far are beyond it.
    found = {ways[-1]: compared(with_roundings(plain.precision, *ways[-1]))}
    if not found[ways[-1]].matches:
        return None
    furthest = max((head.furthest for of_result in heads.values() for head in of_result), default=0.0)
    for names, tile in ways:
        if furthest <= (FURTHEST_OF_SUMS if tile else FURTHEST):
            comparison = found.get((names, tile)) or compared(with_roundings(plain.precision, names, tile))
            if comparison.matches:
                return comparison, Roundings(names, case.dtype, tile)
    return None


def _are_roundings(heads: Sequence[Head]) -> bool:
    """Whether the errors of a result are as large as roundings are, alike in all heads."""
    return not any(
        exceeds(head, OFTEN) or excess(head, [one for one in heads if one is not head]) > 1 for head in heads
    )
