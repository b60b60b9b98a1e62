"""What launches do wrong, and their accesses on a CPU."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from ...inputs.memory import Array, Unwritten
from ...model.memory_finding import (
    BARRIER,
    MISALIGNED,
    OUTSIDE,
    RACE,
    SHUFFLE,
    UNWRITTEN,
    MemoryFinding,
)
from ...source.text import SourceLine
from .. import OPEN, Language, Launches, Statements

if TYPE_CHECKING:
    from torch import Tensor

    from .source import KernelEntry

_ACCESSES = {"atomic": "atomic", "write": "store", "read": "load"}
_DID = {"read": "reads", "write": "writes", "atomic": "changes atomically", "ended": "has ended"}
# No fault: threads of several warps store one value to one place.
EQUAL = "equal"
# In the order of the runtime's numbers.
KINDS = (RACE, OUTSIDE, UNWRITTEN, BARRIER, MISALIGNED, EQUAL, SHUFFLE)
_SENTENCES = {
    RACE: "race on {array}: {now.who} {now.did} it at {now.place}, "
    "{before.who} {before.did} it at {before.place}, with no barrier between{times}",
    OUTSIDE: "{now.who} {now.did} outside {shared}, {where}, at {now.place}{times}",
    UNWRITTEN: "{now.who} {now.did} {array}, which nothing has written, at {now.place}{times}",
    MISALIGNED: "{now.who} {now.did} {array} by a type wider than its elements, "
    "at an address that is no multiple of that type's alignment, at {now.place}",
    EQUAL: "threads of several warps store the same value to {array} at {now.place}, "
    "with no barrier between; that is right as long as the values are equal",
    SHUFFLE: "{where} at {now.place}, in the warp of {now.who}{times}",
    BARRIER: "{now.who} waits at the barrier {now.place}, but {before.who} {before.did}",
}


@dataclass(frozen=True)
class CudaSite:
    line: SourceLine
    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    how: str
    """"read", "write" or "atomic"; at a barrier "waits" or "ended"; of a shuffle "read" or "left out"."""

    @property
    def who(self) -> str:
        return f"thread {self.thread} of block {self.block}"

    @property
    def did(self) -> str:
        return _DID.get(self.how) or f"{self.how} at {self.place}"

    @property
    def place(self) -> str:
        place = self.line.place if self.line.file else "?:0"
        return f"{place} `{self.line.code}`" if self.line.code else place


@dataclass(frozen=True)
class CudaFinding:
    """One fault at the same lines."""

    kind: str
    kernel: str
    array: str
    """"" for a barrier."""
    is_shared: bool
    where: str
    """Which element or lanes, or how far outside."""
    now: CudaSite
    before: CudaSite | None
    """The other access, or thread at a barrier."""
    count: int

    @property
    def lines(self) -> frozenset[SourceLine]:
        return frozenset({self.now.line, (self.before or self.now).line})

    @property
    def finding(self) -> MemoryFinding:
        line, access = self.now.line, _ACCESSES.get(self.now.how, "")
        about = (self.kind, self.array, self.sentence, self.kernel, line.file, line.line, line.code)
        return MemoryFinding(*about, access=access, lanes=self.count, in_block=self.is_shared)

    @property
    def sentence(self) -> str:
        shared = f"shared {self.array}" if self.is_shared else self.array
        words = _SENTENCES[self.kind].format(
            shared=shared,
            array=f"{shared}{self.where}",
            where=self.where,
            now=self.now,
            before=self.before,
            times=f" ({self.count:,} times)" if self.count > 1 else "",
        )
        return f"{self.kernel}: {words}"


@dataclass
class Watch:
    """What launches do while it is open."""

    of: Launches = field(default_factory=Launches)
    unwritten: Unwritten = field(default_factory=Unwritten)
    recording: Recording | None = None
    findings: list[CudaFinding] = field(default_factory=list)
    equal_stores: list[CudaFinding] = field(default_factory=list)
    """What is EQUAL, and no fault."""

    def add(self, findings: Sequence[CudaFinding]) -> None:
        """Each race once: either of its lines may have been the second."""
        found: dict[object, CudaFinding] = {}
        for finding in findings:
            if (
                finding.kind == BARRIER
                and len(finding.lines) == 1
                and finding.before
                and finding.before.how == "waits"
            ):
                continue  # of one barrier of the source the compiler has made two
            key = (finding.kind, finding.kernel, finding.array, finding.lines)
            before = found.get(key)
            found[key] = replace(before, count=before.count + finding.count) if before else finding
        for finding in found.values():
            if finding.kind == EQUAL:
                self.equal_stores.append(finding)
                self.of.notes.append(finding.sentence)
                continue
            self.findings.append(finding)
            self.of.findings.append(finding.finding)
            if _WATCH.get() is None and OPEN.get() is None:
                warnings.warn(finding.sentence, RuntimeWarning, stacklevel=5)


_WATCH: ContextVar[Watch | None] = ContextVar("gradprobe_cuda_watch", default=None)


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[Watch]:
    """While open, it sees every launch, unless another is opened."""
    token = _WATCH.set(watch)
    try:
        yield watch
    finally:
        _WATCH.reset(token)


class CudaLanguage(Language):
    suffixes = (".cu", ".cuh", ".h", ".hpp")

    def source(self, file: str) -> Statements:
        from .cuda_syntax import CudaStatements  # few checks read one

        return CudaStatements(file)


LANGUAGE = CudaLanguage()


def watching() -> Watch:
    """The one that is open, or that of the launches that are noted; else one whose findings are warnings."""
    found = OPEN.get()
    if _WATCH.get() is not None or found is None:
        return _WATCH.get() or Watch()
    found.watch = found.watch or Watch(found, found.unwritten or Unwritten())
    return cast("Watch", found.watch)


THREAD, WARP, BLOCK = range(3)


@dataclass(frozen=True)
class Recorded:
    """The accesses of one launch."""

    entry: KernelEntry
    lines: Callable[[Sequence[int]], Mapping[int, tuple[SourceLine, ...]]]
    """Of addresses of its code, the innermost first."""
    tensors: Sequence[tuple[str, Tensor]]
    """By the caller's names, else by its parameters'."""
    records: Array
    """gp_record of the runtime; of a thread's repeated ones perhaps one."""
    bases: Sequence[int]
    """Where each region begins."""
    together: int
    """Which gave each other values: none (THREAD), those of a WARP or a BLOCK."""
    one_of: int
    """Of how many threads one was recorded."""
    copies: Array | None
    """The reads of shared memory as those of what it holds copies of; None where threads give each other more."""


@dataclass
class Recording:
    before: Callable[[Mapping[str, Tensor]], None]
    """Told of the tensors of each launch before it."""
    launches: list[Recorded] = field(default_factory=list)


@contextlib.contextmanager
def recorded(recording: Recording) -> Iterator[None]:
    """From then on the innermost watch records."""
    watching().recording = recording
    yield
