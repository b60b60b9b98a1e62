"""What watches launches: their faults of memory, barriers and shuffles, and a record of every access on a CPU."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ...inputs.memory import Array, Unwritten
from ...model.memory_finding import BARRIER, MISALIGNED, OUTSIDE, RACE, SHUFFLE, UNWRITTEN, MemoryFinding
from ...source.text import SourceLine
from .. import Launch

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
    BARRIER: "{now.who} waits at the barrier {now.place}, but {others}",
}


@dataclass(frozen=True)
class CudaSite:
    """An access or a wait: its thread, its kind and its line."""

    line: SourceLine
    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    how: str
    """"read", "write" or "atomic"; at a barrier "waits" or "ended"; of a shuffle "read", or "left out" by its mask."""

    @property
    def who(self) -> str:
        return f"thread {self.thread} of block {self.block}"

    @property
    def did(self) -> str:
        """What it did, as a verb."""
        return _DID.get(self.how) or f"{self.how} at {self.place}"

    @property
    def place(self) -> str:
        """The line and its text; "?:0" where the compiler does not tell."""
        place = self.line.place if self.line.file else "?:0"
        return f"{place} `{self.line.code}`" if self.line.code else place


@dataclass(frozen=True)
class CudaFinding:
    """One fault, counted as often as it occurs at the same lines."""

    kind: str
    """One of KINDS."""
    kernel: str
    array: str
    """The name of a tensor, a parameter or a shared array; "" for a barrier."""
    is_shared: bool
    where: str
    """Which element: "[0, 1, 5, 3]", or how far before or behind; of a shuffle which lanes do what."""
    now: CudaSite
    before: CudaSite | None
    """The other access of a race, or the other thread that a barrier waits for."""
    count: int

    @property
    def lines(self) -> frozenset[SourceLine]:
        return frozenset({self.now.line, (self.before or self.now).line})

    @property
    def finding(self) -> MemoryFinding:
        """It as a report tells it."""
        line, access = self.now.line, _ACCESSES.get(self.now.how, "")
        about = (self.kind, self.array, self.sentence, self.kernel, line.file, line.line, line.code)
        return MemoryFinding(*about, access=access, lanes=self.count, in_block=self.is_shared)

    @property
    def sentence(self) -> str:
        """What is wrong, with every line and thread."""
        shared = f"shared {self.array}" if self.is_shared else self.array
        words = _SENTENCES[self.kind].format(
            shared=shared,
            array=f"{shared}{self.where}",
            where=self.where,
            now=self.now,
            before=self.before,
            others=f"{self.before.who} {self.before.did}" if self.before else "others never come",
            times=f" ({self.count:,} times)" if self.count > 1 else "",
        )
        return f"{self.kernel}: {words}"


# --- A watch


@dataclass
class Watch:
    """The launches while it is open."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """What the caller knows by name; others are named after the kernel's parameter."""
    seed: int = 0
    """The order of threads and blocks on a CPU; 0: the natural one."""
    unwritten: Unwritten = field(default_factory=Unwritten)
    after: Callable[[str], None] = lambda kernel: None
    """Told of each kernel after its launch."""
    launches: list[Launch] = field(default_factory=list)
    recording: Recording | None = None
    """Which keeps the accesses of launches on the CPU."""
    findings: list[CudaFinding] = field(default_factory=list)
    equal_stores: list[CudaFinding] = field(default_factory=list)
    """What is EQUAL, and no fault."""

    def add(self, findings: Sequence[CudaFinding]) -> None:
        """Adds what a launch showed, each race once: either of its two lines may have been the second access."""
        found: dict[object, CudaFinding] = {}
        for finding in findings:
            other = finding.before if len(finding.lines) == 1 else None
            if finding.kind == BARRIER and other is not None and other.how == "waits":
                continue  # of one barrier of the source the compiler has made two
            key = (finding.kind, finding.kernel, finding.array, finding.lines)
            before = found.get(key)
            count = finding.count + (before.count if before else 0)
            found[key] = replace(before or finding, count=count)
        for finding in found.values():
            if finding.kind == EQUAL:
                self.equal_stores.append(finding)
                continue
            self.findings.append(finding)
            if _OPEN.get() is None:
                warnings.warn(finding.sentence, RuntimeWarning, stacklevel=5)


_OPEN: ContextVar[Watch | None] = ContextVar("gradprobe_cuda_watch", default=None)


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[Watch]:
    """While open, the innermost watch is told of every launch."""
    token = _OPEN.set(watch)
    try:
        yield watch
    finally:
        _OPEN.reset(token)


def watching() -> Watch:
    """The innermost watch; where none is open, one whose findings are warnings."""
    return _OPEN.get() or Watch()


# --- A record


# gp_record of the runtime.
RECORD = np.dtype([
    ("address", "u8"), ("pc", "u4", 4), ("block", "u4"), ("epoch", "u4"), ("thread", "u2"), ("region", "u2"),
    ("bytes", "u2"), ("access", "u2"), ("is_copied", "u2"), ("unused", "u2", 3),
])  # fmt: skip
# Of one launch. One that makes more is not kept, but where each thread is apart a part of the threads is.
MOST_RECORDS = 1 << 20
THREAD, WARP, BLOCK = range(3)


@dataclass(frozen=True)
class Recorded:
    """One launch, whole."""

    entry: KernelEntry
    lines: Callable[[Sequence[int]], Mapping[int, tuple[SourceLine, ...]]]
    """Of addresses of its code: the innermost line first, then those of the functions it is inlined in."""
    tensors: Sequence[tuple[str, Tensor]]
    """What it was given, by the caller's names, else by its parameters'."""
    records: Array
    """Of RECORD, in the order of the accesses; one that a thread repeats between two barriers may stand there once."""
    bases: Sequence[int]
    """By region, the address where it begins."""
    together: int
    """Which threads gave each other values: none (THREAD), those of a warp, those of a block."""
    one_of: int
    """Of how many threads one was recorded; 1 where threads gave each other values."""
    copies: Array | None
    """The reads of shared memory, each as a read of the tensor's element that it holds a copy of: all that threads give
    each other. None where they give each other anything else."""


@dataclass
class Recording:
    """Launches, access by access."""

    before: Callable[[Mapping[str, Tensor]], None]
    """Called with the tensors of each launch before it runs."""
    launches: list[Recorded] = field(default_factory=list)


@contextlib.contextmanager
def recorded(recording: Recording) -> Iterator[None]:
    """From then on the launches on the CPU that the innermost watch sees are recorded."""
    watching().recording = recording
    yield
