"""Source as text: lines, and edits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SourceLine:
    """A line, and the piece of it that is meant; all of it where `length` is 0."""

    file: str
    line: int
    """From 1; 0 where unknown."""
    code: str
    column: int = 0
    """In `code`, from 0."""
    length: int = 0
    function: str = ""

    @property
    def place(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True, order=True)
class Edit:
    """Text in the place of a span of characters."""

    start: int
    end: int
    text: str

    def shifted(self, by: int) -> Edit:
        return Edit(self.start + by, self.end + by, self.text)


Edits = tuple[Edit, ...]


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Insertions at one place stand in the order given.

    Raises:
        ValueError: two edits overlap.
    """
    pieces, at = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < at:
            raise ValueError(
                f"two edits overlap at character {edit.start}: {edit.text!r} is the second"
            )
        pieces += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*pieces, text[at:]])
