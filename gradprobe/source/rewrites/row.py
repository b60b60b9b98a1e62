"""Row: what people get wrong in a kernel, each with what plants it and what undoes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..kernel_file import Change, KernelFile
from .spots import Edits, Spot, Undone


@dataclass(frozen=True)
class Row:
    """One kind of fault."""

    name: str
    says: str
    """What is wrong, in one sentence: {old} is what the edit that undoes it takes away, {new} what it puts in."""
    plants: Callable[[KernelFile], Iterator[Change]] | None = None
    """Every change of a file that makes it; None of what mutate does not plant."""
    undoes: tuple[Callable[[Spot], Undone], ...] = ()
    """What gives the edits of a statement that may undo it."""
    again: float | None = None
    """How far it is, in the ranks of the edits, that what plants it undoes it too; None where it never does."""
    of_hosts: bool = False
    """Whether host code is edited so too: sizes, grids, allocations and what launches pass."""

    def says_of(self, file: KernelFile, edits: Edits) -> str:
        """What is wrong where an edit helps."""
        first = edits[0]
        texts = (" ".join(text.split()) for text in (file.text[first.start : first.end], first.text))
        old, new = (text or "nothing" for text in texts)
        return self.says.format(old=old, new=new)
