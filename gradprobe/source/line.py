"""A line of source, and the piece of it that is meant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SourceLine:
    """Where something stands. The whole line is meant where `length` is 0."""

    file: str
    line: int
    """From 1; 0 where it is not known."""
    code: str
    """The line, stripped."""
    column: int = 0
    """Of the piece in the stripped line, from 0."""
    length: int = 0
    """Of the piece, in characters."""
    function: str = ""
    """In which it stands."""

    @property
    def place(self) -> str:
        """`lazy.py:204`."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def text(self) -> str:
        """What stands there."""
        return self.code[self.column : self.column + self.length]
