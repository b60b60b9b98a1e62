"""What a run did to memory that it should not have, or left undone."""

from collections.abc import Iterable
from dataclasses import dataclass

ERROR, WARNING = "error", "warning"
HUGE, VECTOR, UNDECLARED = "huge", "vector", "undeclared"
COUNTED = "warnings change no verdict; with --strict they are errors"
OUTSIDE, GUARD, UNWRITTEN, RACE, BARRIER = "outside", "guard", "unwritten", "race", "barrier"
MISALIGNED, SHUFFLE = "misaligned", "shuffle"
CHANGED, SHARED, DTYPE = "changed", "shared", "dtype"
# The worst first.
ACCESSES = ("atomic", "store", "", "load")
KINDS = (RACE, OUTSIDE, MISALIGNED, GUARD, CHANGED, BARRIER, SHUFFLE, UNWRITTEN, SHARED, DTYPE)


@dataclass(frozen=True)
class WarningNote:
    kind: str
    """HUGE (an offset beyond 2^31), VECTOR (of strided parameters), UNDECLARED (a case), or a finding's."""
    about: str
    words: str
    layouts: tuple[str, ...]
    file: str = ""
    line: int | None = None
    code: str = ""


@dataclass(frozen=True)
class MemoryFinding:
    kind: str  # one of KINDS
    tensor: str
    sentence: str
    kernel: str = ""
    file: str = ""
    line: int | None = None
    code: str = ""
    severity: str = ERROR
    access: str = ""
    lanes: int = 0  # 0 where nobody counted
    place: tuple[int | None, ...] = (None,) * 4
    """Batch, head, row and column."""
    actual: str = "-"
    expected: str = "-"
    wraps: bool = False
    in_block: bool = False
    layout: str = ""  # of a survey
    allocated: tuple[str, int] = ("", 0)  # file and line
    runs_on: bool = False
    """Whether each access was outside with every lane, after the same line was inside."""
    rest: tuple[str, str, int] = ("", "", 0)  # kernel, file and line

    @property
    def is_read_without_value(self) -> bool:
        return self.kind == UNWRITTEN or (self.kind == SHUFFLE and self.access == "load")

    @property
    def identity(self) -> tuple[str, str, str, str, int | None]:
        return self.kind, *self.place_of_access

    @property
    def place_of_access(self) -> tuple[str, str, str, int | None]:
        return self.tensor, self.kernel, self.file, self.line


def worst_first(memory: Iterable[MemoryFinding]) -> list[MemoryFinding]:
    """A written guard band after the store that explains it."""
    memory = list(memory)
    outside = [one for one in memory if one.kind == OUTSIDE and one.access != "load"]
    explained = {one.tensor.lower() for one in outside}

    def order(finding: MemoryFinding) -> tuple[bool, bool, int, int, int]:
        is_explained = finding.kind == GUARD and finding.tensor.lower() in explained
        kind, access = KINDS.index(finding.kind), ACCESSES.index(finding.access)
        return finding.severity != ERROR, is_explained, access, kind, -finding.lanes

    return sorted(memory, key=order)


@dataclass(frozen=True)
class Group:
    layouts: tuple[str, ...]
    memory: tuple[MemoryFinding, ...]  # one of each line

    @property
    def sentence(self) -> str:
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
    """A read without value that shows in no result was masked later."""
    return tuple(
        worst_first(one for one in memory if non_finite or not one.is_read_without_value)
    )
