"""MemoryFinding: what a run did to memory that it should not have, or left undone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

ERROR, WARNING = "error", "warning"
HUGE, VECTOR, UNDECLARED = "huge", "vector", "undeclared"
COUNTED = "warnings change no verdict; with --strict they are errors"
# An access, a band that was written, what was never written, a race, barriers, an alignment, lanes of a warp, an input
# that changed, a result in the memory of another tensor, or in a coarser dtype.
OUTSIDE, GUARD, UNWRITTEN, RACE, BARRIER = "outside", "guard", "unwritten", "race", "barrier"
MISALIGNED, SHUFFLE = "misaligned", "shuffle"
CHANGED, SHARED, DTYPE = "changed", "shared", "dtype"
# The worst first.
ACCESSES = ("atomic", "store", "", "load")
KINDS = (RACE, OUTSIDE, MISALIGNED, GUARD, CHANGED, BARRIER, SHUFFLE, UNWRITTEN, SHARED, DTYPE)


@dataclass(frozen=True)
class WarningNote:
    """What is told and does not count."""

    kind: str
    """HUGE (an offset beyond 2^31 elements), VECTOR (of strided parameters), UNDECLARED (a case), or a finding's."""
    about: str
    """The tensors, or the case; the same whenever the same is told."""
    words: str
    layouts: tuple[str, ...]
    file: str = ""
    line: int | None = None
    code: str = ""


@dataclass(frozen=True)
class MemoryFinding:
    """One finding about memory, or about how a result is held there."""

    kind: Annotated[str, Meta(pattern=f"^({'|'.join(KINDS)})$")]
    tensor: str
    sentence: str
    kernel: str = ""
    file: str = ""
    line: int | None = None
    code: str = ""
    severity: str = ERROR
    access: Annotated[str, Meta(pattern=f"^({'|'.join(ACCESSES)})$")] = ""
    lanes: int = 0
    """Elements that were accessed so; 0 where nobody counted."""
    place: tuple[int | None, ...] = (None,) * 4
    """Batch, head, row and column of the first element, where it has one."""
    actual: str = "-"
    expected: str = "-"
    wraps: bool = False
    """Whether an offset of the tensor leads there when it is cut to 32 bits."""
    in_block: bool = False
    """Whether it is in the shared memory of one block."""
    layout: str = ""
    """Of a survey."""
    allocated: tuple[str, int] = ("", 0)
    """Of what nothing has written: the file and the line that allocated it."""
    runs_on: bool = False
    """Of accesses outside: whether each was so with every lane, after the same line was inside."""
    rest: tuple[str, str, int] = ("", "", 0)
    """Of what nothing has written: the kernel, the file and the line that stored the rest of it."""

    @property
    def is_read_without_value(self) -> bool:
        """Whether it reads memory or a lane without a value: a fault only where a result shows it."""
        return self.kind == UNWRITTEN or (self.kind == SHUFFLE and self.access == "load")

    @property
    def identity(self) -> tuple[str, str, str, str, int | None]:
        return self.kind, *self.place_of_access

    @property
    def place_of_access(self) -> tuple[str, str, str, int | None]:
        return self.tensor, self.kernel, self.file, self.line


def worst_first(memory: Iterable[MemoryFinding]) -> list[MemoryFinding]:
    """In the order of a report: a written guard band after the store that explains it."""
    memory = list(memory)
    explained = {
        one.tensor.lower() for one in memory if one.kind == OUTSIDE and one.access != "load"
    }

    def order(finding: MemoryFinding) -> tuple[bool, bool, int, int, int]:
        is_explained = finding.kind == GUARD and finding.tensor.lower() in explained
        kind, access = KINDS.index(finding.kind), ACCESSES.index(finding.access)
        return finding.severity != ERROR, is_explained, access, kind, -finding.lanes

    return sorted(memory, key=order)


@dataclass(frozen=True)
class Group:
    """What one kernel did to one tensor in one way."""

    layouts: tuple[str, ...]
    memory: tuple[MemoryFinding, ...]
    """One of each line, the one of most lanes."""

    @property
    def sentence(self) -> str:
        """The worst of it, with its layouts."""
        return f"in {', '.join(self.layouts)}: {self.memory[0].sentence}"


def grouped(findings: Iterable[tuple[str, MemoryFinding]]) -> list[Group]:
    """(layout, finding) of several runs, the worst first."""
    groups: dict[object, list[tuple[str, MemoryFinding]]] = {}
    for layout, finding in findings:
        key = (finding.kind, finding.kernel, finding.tensor or finding.line, finding.access)
        groups.setdefault(key, []).append((layout, finding))
    made = list(map(_group, groups.values()))
    order = worst_first(group.memory[0] for group in made)
    return sorted(made, key=lambda group: order.index(group.memory[0]))


def _group(findings: list[tuple[str, MemoryFinding]]) -> Group:
    lines: dict[object, MemoryFinding] = {}
    for _, finding in findings:
        known = lines.setdefault(finding.identity, finding)
        if finding.lanes > known.lanes:
            lines[finding.identity] = finding
    layouts = dict.fromkeys(layout for layout, _ in findings)
    return Group(tuple(layouts), tuple(worst_first(lines.values())))


def telling(memory: Iterable[MemoryFinding], non_finite: bool) -> tuple[MemoryFinding, ...]:
    """The findings of one run that count, worst first.

    What nothing has written holds NaN, and a lane without a value infinity: a read of it that shows in no result was
    masked later, as that of padded scratch is.
    """
    return tuple(
        worst_first(one for one in memory if non_finite or not one.is_read_without_value)
    )
