"""Heads: what a file of `--evidence` says of itself, and where in it the values of a whole head are."""

from __future__ import annotations

from msgspec import Struct

from .number import plural

SCHEMA = "gradprobe.evidence/1"
ABOUT = "about"
"""The array that holds a KeptHeads as JSON."""
PARTS = ("actual", "expected", "budget", "wrong")
"""What is kept of each element: the target's value, the reference's, the error allowed, and whether it is wrong."""


class WholeHead(Struct, frozen=True, kw_only=True):
    """One head of an intermediate, of which all elements are kept, as arrays [rows, columns] of PARTS."""

    intermediate: str
    kernel: str | None = None
    batch: int | None
    head: int
    shape: tuple[int, int]
    """Rows and columns; a vector has one column."""
    rows: tuple[int, ...] = ()
    """The numbers of its rows, where not all were shown."""

    @property
    def key(self) -> str:
        """`dS.0.1`; the arrays are `dS.0.1.actual` and so on."""
        name = f"{self.intermediate}.{self.kernel.replace(' ', '-')}" if self.kernel else self.intermediate
        return f"{name}.{self.batch or 0}.{self.head}"


class KeptHeads(Struct, frozen=True, kw_only=True):
    """What a file holds."""

    schema: str = SCHEMA
    command: str
    """What repeats the check."""
    layout: str
    heads: tuple[WholeHead, ...]
    """What was wrong first comes first."""
    left_out: int = 0
    """How many there was no room for."""


class Evidence(Struct, frozen=True, kw_only=True):
    """What a report knows of the file that was written beside it."""

    file: str
    sha256: str
    heads: int
    """Heads of intermediates."""
    left_out: int = 0
    limit: int = 0
    """How many bytes of values it holds at most."""

    @property
    def sentence(self) -> str:
        """`12 whole heads; 3 more had no room in 320 MiB`."""
        left = f"; {self.left_out} more had no room in {self.limit >> 20} MiB" if self.left_out else ""
        return plural(self.heads, "whole head") + left
