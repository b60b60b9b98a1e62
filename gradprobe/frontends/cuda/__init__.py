"""CUDA C++: what is known of it outside this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...inputs.memory import Unwritten
from .. import Language, Launches, Statements
from .watch import BLOCK, THREAD, WARP, CudaFinding, Recorded, Recording, Watch, recorded, watched

if TYPE_CHECKING:
    from .module import Kernel, Module, load
    from .source import KernelEntry

__all__ = [
    "BLOCK", "LANGUAGE", "THREAD", "WARP", "CudaFinding", "Kernel", "KernelEntry", "Module", "Recorded", "Recording",
    "Watch", "load", "recorded", "watched",
]  # fmt: skip


class CudaLanguage(Language):
    """What its threads load and store on a CPU is told in columns, by `recorded`."""

    suffixes = (".cu", ".cuh", ".h", ".hpp")

    @contextmanager
    def launches(self, found: Launches) -> Iterator[None]:
        watch = Watch(found.tensors, found.schedule, found.unwritten or Unwritten(), found.after, found.started)
        with watched(watch):
            yield
        found.findings += [each.finding for each in watch.findings]
        found.notes += [each.sentence for each in watch.equal_stores]

    def source(self, file: str) -> Statements:
        from .cuda_syntax import CudaStatements

        return CudaStatements(file)


LANGUAGE = CudaLanguage()


def __getattr__(name: str) -> Any:  # every run is watched, and few load a source
    if name not in ("Kernel", "KernelEntry", "Module", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import module

    return getattr(module, name)
