"""Stray: what a run did to memory that is not its own, or did not do to memory that is, or how it holds a result."""

from __future__ import annotations

from dataclasses import dataclass

from ..severity import ERROR

OUTSIDE, GUARD, UNWRITTEN, RACE, BARRIER = "outside", "guard", "unwritten", "race", "barrier"
MISALIGNED = "misaligned"
CHANGED, SHARED, DTYPE = "changed", "shared", "dtype"


@dataclass(frozen=True)
class Stray:
    """One finding about memory, or about how a result is held there."""

    kind: str
    """OUTSIDE (an access), GUARD (a band that was written), UNWRITTEN (what was never written), RACE, BARRIER,
    MISALIGNED, CHANGED (an input), SHARED (a result in the memory of another tensor) or DTYPE (a coarser one)."""
    tensor: str
    sentence: str
    kernel: str = ""
    """What follows is "" or None where no line is known."""
    file: str = ""
    line: int | None = None
    code: str = ""
    severity: str = ERROR
    """WARNING of what is shown and changes no verdict."""
    access: str = ""
    """"load", "store" or "atomic"."""
    lanes: int = 0
    """How many elements were accessed so; 0 where nobody counted."""
    place: tuple[int | None, ...] = (None,) * 4
    """Batch, head, row and column of the first element, where it has one."""
    actual: str = "-"
    """What came there."""
    expected: str = "-"
    """What was due."""
    wraps: bool = False
    """Whether the offset of an element of the tensor leads there when it is cut to 32 bits."""
    layout: str = ""
    """Where it is told of a whole survey: the layout in which it was seen."""

    @property
    def identity(self) -> tuple[str, str, str, str, int | None]:
        """The same for the same finding, in whichever layout it was seen."""
        return self.kind, *self.place_of_access

    @property
    def place_of_access(self) -> tuple[str, str, str, int | None]:
        """The same for whatever one line does to one tensor."""
        return self.tensor, self.kernel, self.file, self.line
