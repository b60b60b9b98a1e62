"""What launches do wrong, and their accesses."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...inputs.memory import Array
from ...model import memory_finding as memory
from ...source.syntax import SourceLine

_ACCESSES = {"atomic": "atomic", "write": "store", "read": "load"}
_DID = {"read": "reads", "write": "writes", "atomic": "changes atomically", "ended": "has ended"}
# No fault: threads of several warps store one value to one place.
EQUAL = "equal"
# In the order of the runtime's kinds.
_SENTENCES = {
    memory.RACE: "race on {shared}{where}: {now.who} {now.did} it at {now.place}, "
    "{before.who} {before.did} it at {before.place}, with no barrier between{times}",
    memory.OUTSIDE: "{now.who} {now.did} outside {shared}, {where}, at {now.place}{times}",
    memory.UNWRITTEN: "{now.who} {now.did} {shared}{where}, which nothing has written, at {now.place}{times}",
    memory.BARRIER: "{now.who} waits at the barrier {now.place}, but {before.who} {before.did}",
    memory.MISALIGNED: "{now.who} {now.did} {shared}{where} by a type wider than its elements, "
    "at an address that is no multiple of its alignment, at {now.place}",
    EQUAL: "",
    memory.SHUFFLE: "{where} at {now.place}, in the warp of {now.who}{times}",
}
KINDS = (*_SENTENCES,)


@dataclass(frozen=True)
class CudaSite:
    line: SourceLine
    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    # "read", "write", "atomic"; "waits", "ended" at a barrier; "left out" of a shuffle.
    how: str

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
    kind: str
    kernel: str
    array: str
    is_shared: bool
    where: str
    now: CudaSite
    before: CudaSite | None
    count: int

    @property
    def finding(self) -> memory.MemoryFinding:
        line, access = self.now.line, _ACCESSES.get(self.now.how, "")
        at = (self.kernel, line.file, line.line, line.code)
        found = memory.MemoryFinding(self.kind, self.array, self.sentence, *at, access=access)
        return replace(found, in_block=self.is_shared, lanes=self.count)

    @property
    def sentence(self) -> str:
        shared = f"shared {self.array}" if self.is_shared else self.array
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        words = _SENTENCES[self.kind].format(shared=shared, times=times, **vars(self))
        return f"{self.kernel}: {words}"


def by_lines(findings: Iterable[CudaFinding]) -> Iterable[CudaFinding]:
    """One for each pair of lines: either may have been second."""
    found: dict[object, CudaFinding] = {}
    for finding in findings:
        lines = frozenset({finding.now.line, (finding.before or finding.now).line})
        if finding.before and finding.before.how == "waits" and len(lines) == 1:
            continue  # of one barrier of the source the compiler has made two
        key = (finding.kind, finding.array, lines)
        before = found.get(key)
        found[key] = replace(before, count=before.count + finding.count) if before else finding
    return found.values()


THREAD, WARP, BLOCK = range(3)


@dataclass(frozen=True)
class RecordedAccesses:
    entry: Any  # a KernelEntry
    # Of addresses of its code, the innermost first.
    lines: Callable[[Sequence[int]], Mapping[int, tuple[SourceLine, ...]]]
    tensors: Sequence[tuple[str, Any]]
    records: Array  # gp_record of the runtime; of a thread's repeated ones perhaps one
    bases: Sequence[int]
    # Which gave each other values: none (THREAD), those of a WARP or a BLOCK.
    together: int
    # Of how many threads one was recorded.
    one_of: int
    # Reads of shared memory as those of what it copies; None where threads give more.
    copies: Array | None
