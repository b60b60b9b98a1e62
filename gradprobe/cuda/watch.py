"""What launches are noted by: which kernels ran, where, and what was found of their memory."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..running.unwritten import Unwritten
from .findings import Finding
from .unit import Entry

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Watch:
    """The launches while it is open."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """What the caller knows by name; others are named after the kernel's parameter."""
    seed: int = 0
    """The order of threads and blocks on a CPU; 0: the natural one."""
    unwritten: Unwritten = field(default_factory=Unwritten)
    launches: list[Entry] = field(default_factory=list)
    backends: set[str] = field(default_factory=set)
    """"cuda", "cuda-on-cpu"."""
    given: list[Tensor] = field(default_factory=list)
    """The tensors that kernels were given."""
    findings: list[Finding] = field(default_factory=list)
    after: Callable[[str], None] = lambda kernel: None
    """Told of each kernel after its launch."""

    def launched(self, entry: Entry, backend: str, tensors: list[Tensor]) -> None:
        """Notes a launch."""
        self.launches.append(entry)
        self.backends.add(backend)
        self.given += tensors


_OPEN: ContextVar[tuple[Watch, ...]] = ContextVar("gradprobe_cuda_watches", default=())


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[Watch]:
    """While open, the innermost watch is told of every launch."""
    token = _OPEN.set((*_OPEN.get(), watch))
    try:
        yield watch
    finally:
        _OPEN.reset(token)


def watching() -> Watch:
    """The innermost watch; where none is open, one whose findings are warnings."""
    return _OPEN.get()[-1] if _OPEN.get() else Watch()


def told(watch: Watch, findings: list[Finding]) -> None:
    """Adds what a launch showed."""
    watch.findings += findings
    if not _OPEN.get():
        for finding in findings:
            warnings.warn(finding.sentence, RuntimeWarning, stacklevel=4)
