"""How much a finding counts: an error makes a mismatch, a warning is shown and changes no verdict."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING = "error", "warning"
# Of warnings: an offset beyond 2^31 elements, a strided vector of parameters, a case that nobody said is taken.
HUGE, VECTOR, UNDECLARED = "huge", "vector", "undeclared"
COUNTED = "warnings change no verdict; with --strict they are errors"


@dataclass(frozen=True)
class Warned:
    """What is told and does not count, in plain values."""

    kind: str
    """HUGE, VECTOR or UNDECLARED."""
    about: str
    """The tensors, or the case of the battery; the same whenever the same is told."""
    words: str
    """One sentence."""
    layouts: tuple[str, ...]
    """Of which it is told."""
