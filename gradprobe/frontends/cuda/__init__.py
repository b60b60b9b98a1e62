"""CUDA C++: what is known of it outside this folder, beside `gradprobe.cuda`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...inputs.memory import Unwritten
from .. import Language, Launches, Statements
from .watch import BLOCK, THREAD, WARP, Recorded, Recording, Watch, recorded, watched

__all__ = ["BLOCK", "THREAD", "WARP", "Recorded", "Recording", "Watch", "recorded", "watched"]


class CudaLanguage(Language):
    suffixes = (".cu", ".cuh", ".h", ".hpp")

    @contextmanager
    def launches(self, found: Launches) -> Iterator[None]:
        with watched(Watch(found, found.unwritten or Unwritten())) as watch:
            yield
        found.findings += [finding.finding for finding in watch.findings]
        found.notes += [stores.sentence for stores in watch.equal_stores]

    def source(self, file: str) -> Statements:
        from .cuda_syntax import CudaStatements  # few checks read one

        return CudaStatements(file)


LANGUAGE = CudaLanguage()
