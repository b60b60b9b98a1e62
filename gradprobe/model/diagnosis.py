"""Diagnosis: why a target is wrong, as a hypothesis that was tested, with the lines that it names."""

from __future__ import annotations

from msgspec import Struct

# The share of wrong elements that a hypothesis must reproduce to be named as the cause; with less it is consistent with
# what came, and below the second nothing is said of it.
NAMED, CONSISTENT = 0.9, 0.5


class Where(Struct, frozen=True):
    """A line of source that a diagnosis names."""

    file: str
    line: int
    code: str
    """The line, stripped."""
    column: int | None = None
    """Of what is wrong in the stripped line, from 0."""
    length: int = 0
    """How much of it is wrong, in characters."""
    kernel: str = ""
    note: str = ""
    """What stands there: "q.stride(1)"."""
    around: tuple[str, str] = ("", "")
    """The lines before and after it, without what all three are indented by; "" for none."""
    margin: int = 0
    """How far the line is indented beyond that."""


class Diagnosis(Struct, frozen=True, rename={"fault_class": "class"}):
    """One hypothesis, tested."""

    fault: str
    """What it says, for scripts: "stride/do-head"."""
    fault_class: str
    """The class of faults that it belongs to: "S1"."""
    summary: str
    """One sentence."""
    explained: float
    """The share of wrong elements that it reproduces within budget, less what it spoils of the right ones."""
    evidence: tuple[str, ...] = ()
    where: tuple[Where, ...] = ()
    fix: str = ""
    """The edit, in words; "" where none is known."""
    also: bool = False
    """Whether it stands beside the one before it, and not in its place: two faults at once."""

    @property
    def is_named(self) -> bool:
        """Whether it explains enough to be called the cause."""
        return self.explained >= NAMED
