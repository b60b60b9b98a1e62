"""Recording: every access that CUDA kernels on the CPU make to tensors, with its lines, thread and time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..inputs.memory import Array
from .kernel import KernelEntry

if TYPE_CHECKING:
    from torch import Tensor

# gp_record of the runtime.
RECORD = np.dtype(
    [
        ("address", "u8"), ("pc", "u4", 4), ("block", "u4"), ("epoch", "u4"), ("thread", "u2"), ("region", "u2"),
        ("bytes", "u2"), ("access", "u2"), ("is_copied", "u2"), ("unused", "u2", 3),
    ]
)  # fmt: skip
# Of one launch. One that makes more is not kept, but where each thread is apart a part of the threads is.
MOST_RECORDS = 1 << 20
THREAD, WARP, BLOCK = range(3)


@dataclass(frozen=True)
class Recorded:
    """One launch, whole."""

    entry: KernelEntry
    library: Path
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
    """The launches while it is open."""

    before: Callable[[Mapping[str, Tensor]], None]
    """Called with the tensors of each launch before it runs."""
    launches: list[Recorded] = field(default_factory=list)


_OPEN: ContextVar[Recording | None] = ContextVar("gradprobe_cuda_recording", default=None)


@contextlib.contextmanager
def recorded(recording: Recording) -> Iterator[None]:
    """While open, the launches on the CPU are recorded."""
    token = _OPEN.set(recording)
    try:
        yield
    finally:
        _OPEN.reset(token)


def recording_now() -> Recording | None:
    """The one that is open; None where none is."""
    return _OPEN.get()
