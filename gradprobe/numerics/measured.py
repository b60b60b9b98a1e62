"""Measured: one run of the target, compared. Inside: the same of a black box's answers to one-hot problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..reference import Attention
    from ..runtime.trace import Trace
    from .coarser import Coarser, Operand
    from .compare import Comparison
    from .identities import Invariant
    from .locate import Location


@dataclass(frozen=True)
class Measured:
    """One run of the target, compared."""

    x: Attention
    trace: Trace
    comparison: Comparison
    first: Location | None
    invariants: tuple[Invariant, ...]
    coarser: tuple[Coarser | Operand, ...] = ()
    """What proves to be rounded further than the contract says: sums, or an operand of the scores."""

    @property
    def matches(self) -> bool:
        return self.comparison.matches and not self.broken

    @property
    def broken(self) -> list[Invariant]:
        """The identities that the target breaks."""
        return [invariant for invariant in self.invariants if invariant.of == "target" and not invariant.holds]


@dataclass(frozen=True)
class Inside:
    """What a black box's answers to one-hot problems showed."""

    measured: Measured
    """Those problems, which are one, compared; what the target does not expose is recovered."""
    sentences: tuple[str, ...]
    """What their disagreements say; empty where everything is right."""
    shown: Measured
    """The ordinary run's results as they came, and what was recovered beside them."""
