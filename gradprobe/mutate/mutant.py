"""A mutant: one fault planted in one file, as edits of its text."""

from __future__ import annotations

from dataclasses import dataclass

from ..source.edits import Edit, edited

# The classes of faults that are planted, in the order in which they are told.
CLASSES = {
    "S1": "another tensor's stride",
    "S3": "index, offset or head map",
    "I64": "32-bit offsets",
    "M1": "which keys are seen",
    "M2": "range of tiles",
    "M3": "partial tiles and bounds",
    "N1": "rows that see nothing",
    "N2": "memory that nobody wrote",
    "A": "algebra",
    "ACC": "accumulation",
    "RACE": "order of threads",
    "PREC": "precision",
}


@dataclass(frozen=True)
class Mutant:
    """One fault that a file can be given."""

    name: str
    """Of its kind, with a number among those of the file: "another-stride-12"."""
    fault_class: str
    """One of CLASSES."""
    function: str
    """In which it lies."""
    file: str
    line: int
    """The only line that differs."""
    before: str
    """That line as it stands, without its indent."""
    after: str
    """And with the fault."""
    edits: tuple[Edit, ...]
    diff: str
    """Unified, without lines around."""
    statement: tuple[int, int] | None
    """The first and last line of the statement that is changed; None for what no statement runs."""

    def plant(self, text: str) -> str:
        """The file's text with the fault in it."""
        return edited(text, self.edits)


def changed_line(before: str, after: str) -> int | None:
    """The number of the only line in which two texts differ; None where there are more, or none."""
    ours, theirs = before.split("\n"), after.split("\n")
    if len(ours) != len(theirs):
        return None
    differing = [number for number, pair in enumerate(zip(ours, theirs, strict=True), 1) if pair[0] != pair[1]]
    return differing[0] if len(differing) == 1 else None


def unified(file: str, line: int, before: str, after: str) -> str:
    """The difference of two texts in one line, as `diff -U0` writes it."""
    return f"--- {file}\n+++ {file}\n@@ -{line} +{line} @@\n-{before}\n+{after}"
