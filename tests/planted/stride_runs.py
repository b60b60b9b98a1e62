"""Tries planted mix-ups of strides as `gradprobe strides --fast` does: contiguous, and with every stride distinct."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gradprobe.commands.strides.bench import FIRST
from gradprobe.commands.strides.trials import trials_of
from gradprobe.commands.strides.worker import bench_of
from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline.resolve import resolve_problem
from tests.planted.stride_mixups import Mixup

# All tensors of one shape, two of everything that has a stride, and one tile of 32 rows with a part of it unused.
SIZES = {
    "batch": 2,
    "heads": 2,
    "seqlen": 17,
    "head_dim": 16,
    "bias": False,
    "block_m": 32,
    "block_n": 32,
}


@dataclass(frozen=True)
class Found:
    """What came of one mix-up."""

    contiguous: str
    """The verdict."""
    distinct: str
    shown_by: tuple[str, ...]
    """The kinds of strays in `distinct`, and "values" where the reference or the bits tell."""
    seconds: float


class Mixups:
    """Called with a mix-up, or None for the kernels as they are, it tries them."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._folder = tempfile.TemporaryDirectory()

    def __call__(self, mixup: Mixup | None) -> Found:
        start = time.perf_counter()
        word = (
            self._file
            if mixup is None
            else f"{mixup.write(Path(self._folder.name))}:{self._file}_intermediates"
        )
        bench = bench_of(resolve_problem(CheckRequest(word, None, None, SIZES)))
        trials = {trial.title: trial for trial in trials_of(bench.shapes(), (), fast=True)}
        first, distinct = (
            bench.tried(FIRST),
            bench.tried(replace(trials["distinct"], thorough=False)),
        )
        values = distinct.run is not None and (distinct.run.first_mismatch or distinct.run.broken)
        shown_by = {stray.kind for stray in distinct.memory} | ({"values"} if values else set())
        return Found(
            first.verdict, distinct.verdict, tuple(sorted(shown_by)), time.perf_counter() - start
        )
