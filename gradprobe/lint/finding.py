"""Finding: a pointer of a kernel that is advanced wrongly, as the source alone and one caught launch show."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.report import Where
from ..source.text import SourceLine

FOREIGN, MISSING = "foreign", "missing"


@dataclass(frozen=True)
class LintFinding:
    """One wrong stride."""

    rule: str
    """FOREIGN or MISSING."""
    kernel: str
    """Whose pointer it is."""
    file: str
    line: int
    column: int
    """Of the wrong name in the stripped line, from 0."""
    length: int
    """Of the wrong name."""
    code: str
    """The line, stripped."""
    sentence: str
    fix: str
    """The edit, in words."""
    tensor: str
    """The tensor that is misread, as arguments are called: "do"."""
    other: str = ""
    """Whose stride is used in place of its own; "" where none is."""
    axis: int | None = None
    """Of `tensor`, from 0; None where it is not known."""
    kind: str = ""
    """What that axis is, one letter of the table of intermediates; "" where it is not known."""
    note: str = ""
    """What stands there: "q.stride(1)"."""
    by_name: bool = False
    """Whether the kernel was never launched, and its parameters are taken for what their names say."""

    @property
    def where(self) -> Where:
        """The line, as diagnoses hold it."""
        return Where(self.file, self.line, self.code, self.column, self.length, self.kernel, self.note)


def finding_at(at: SourceLine, rule: str, kernel: str, sentence: str, fix: str, tensor: str) -> LintFinding:
    """A finding at a piece of a line."""
    return LintFinding(rule, kernel, at.file, at.line, at.column, at.length, at.code, sentence, fix, tensor)
