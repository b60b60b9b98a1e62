"""What a kernel did to memory, or at a barrier, that it should not have: with the lines, threads and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

RACE, OUTSIDE, UNWRITTEN, BARRIER, MISALIGNED = "race", "outside", "unwritten", "barrier", "misaligned"
_DID = {"read": "reads", "write": "writes", "atomic": "changes atomically"}


@dataclass(frozen=True)
class Line:
    """A line of a source."""

    file: str
    line: int
    """0 where it is not known."""
    code: str
    """The text, without the blanks around it."""

    @property
    def words(self) -> str:
        name = self.file.rpartition("/")[2] or "?"
        return f"{name}:{self.line}" + (f" `{self.code}`" if self.code else "")


@dataclass(frozen=True)
class Site:
    """An access, or a wait: who, how, and where in the source."""

    line: Line
    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    how: str
    """"read", "write" or "atomic"; of a barrier "waits" or "ended"."""

    @property
    def who(self) -> str:
        return f"thread {_place(self.thread)} of block {_place(self.block)}"


@dataclass(frozen=True)
class Finding:
    """One fault, as often as it was seen at the same lines."""

    kind: str
    """RACE, OUTSIDE, UNWRITTEN, BARRIER or MISALIGNED."""
    kernel: str
    array: str
    """A tensor's or parameter's name, or that of a shared array; "" of a barrier."""
    is_shared: bool
    where: str
    """Which element: "[0, 1, 5, 3]", "[17]", or how far before or behind."""
    now: Site
    before: Site | None
    """The other access of a race, or where others stand that a barrier waits for."""
    count: int

    @property
    def sentence(self) -> str:
        """What is wrong, with every line and thread."""
        words = {
            RACE: self._race, OUTSIDE: self._outside, UNWRITTEN: self._unwritten, BARRIER: self._barrier,
            MISALIGNED: self._misaligned,
        }  # fmt: skip
        return words[self.kind]()

    @property
    def _array(self) -> str:
        return f"shared {self.array}" if self.is_shared else self.array

    @property
    def _times(self) -> str:
        return f" ({self.count:,} times)" if self.count > 1 else ""

    def _race(self) -> str:
        assert self.before is not None
        return (
            f"{self.kernel}: race on {self._array}{self.where}: {self.now.who} {_DID[self.now.how]} it at "
            f"{self.now.line.words}, {self.before.who} {_DID[self.before.how]} it at {self.before.line.words}, "
            f"with no barrier between{self._times}"
        )

    def _outside(self) -> str:
        return (
            f"{self.kernel}: {self.now.who} {_DID[self.now.how]} outside {self._array}, {self.where}, at "
            f"{self.now.line.words}{self._times}"
        )

    def _unwritten(self) -> str:
        return (
            f"{self.kernel}: {self.now.who} {_DID[self.now.how]} {self._array}{self.where}, which nothing has written, "
            f"at {self.now.line.words}{self._times}"
        )

    def _misaligned(self) -> str:
        return (
            f"{self.kernel}: {self.now.who} {_DID[self.now.how]} {self._array}{self.where} by a type wider than its "
            f"elements, at an address that is no multiple of that type's alignment, at {self.now.line.words}"
        )

    def _barrier(self) -> str:
        others = "others never come"
        if self.before is not None:
            ended = f"{self.before.who} has ended"
            others = ended if self.before.how == "ended" else f"{self.before.who} waits at {self.before.line.words}"
        return f"{self.kernel}: {self.now.who} waits at the barrier {self.now.line.words}, but {others}"


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, each race once: its two lines are told of whichever came second."""
    found: dict[object, Finding] = {}
    for finding in findings:
        lines = frozenset((finding.now.line, finding.before.line)) if finding.before else finding.now.line
        key = (finding.kind, finding.kernel, finding.array, lines)
        known = found.get(key)
        found[key] = replace(known, count=known.count + finding.count) if known else finding
    return list(found.values())


def _place(index: tuple[int, int, int]) -> str:
    return f"({', '.join(map(str, index))})"
