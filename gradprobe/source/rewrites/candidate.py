"""An edit of a file that may undo a fault."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from operator import attrgetter

from ..kernel_file import KernelFile
from ..syntax import Edits, edited

# What is seldom taken off by all of these together: what is that much likelier may come a little late.
SOONEST = 2.5


@dataclass(frozen=True)
class Fault:
    line: int
    # Whether it may be the number of programs.
    grid: bool = False
    of: str = ""  # the wrong intermediate
    is_turned: bool = False  # something has the other sign
    is_summed: bool = False  # another line leaves out what it sums


@dataclass(frozen=True)
class Candidate:
    file: KernelFile = field(repr=False)
    edits: Edits
    cost: float
    says: str = ""  # what is wrong where it helps
    # It has what its cause says of the right text.
    is_wanted: bool = False

    @property
    def text(self) -> str:
        return edited(self.file.text, self.edits)

    @cached_property
    def diff(self) -> str:
        name, texts = self.file.path.name, (self.file.text.splitlines(), self.text.splitlines())
        return "\n".join(difflib.unified_diff(*texts, name, name, lineterm="", n=1))

    @property
    def changes(self) -> list[str]:
        return [line for line in self.diff.splitlines()[2:] if line[0] in "+-"]

    @property
    def lines(self) -> list[int]:
        return sorted({self.file.text.count("\n", 0, edit.start) + 1 for edit in self.edits})

    @property
    def undone(self) -> Candidate:
        return Candidate(self.file, (), 0.0)


def joined(several: Iterable[Candidate]) -> Edits | None:
    ordered = sorted({*chain.from_iterable(map(attrgetter("edits"), several))})
    overlap = any(first.end > second.start for first, second in pairwise(ordered))
    return None if overlap else tuple(ordered)
