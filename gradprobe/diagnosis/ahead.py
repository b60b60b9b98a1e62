"""Ahead: a diagnosis begun while the target still runs. The first layout that fails is followed in a fork, and
hypotheses are tested against it meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from functools import partial

from ..model.mechanisms import is_on, note
from ..model.report import Diagnosis
from ..model.run import Visited
from ..numerics.evidence import LayoutRun, Watched
from ..probing.experiment import Experiment
from ..probing.runs import RunRecord
from ..processes.forks import ParallelWork, may_fork
from .apart import watched_of
from .layouts import failing_layouts
from .search import Tested, fitting
from .smaller import MOST_SCORES


class Ahead:
    """What is known of the first failing layout before its diagnosis; of others it is found out when asked for."""

    def __init__(self) -> None:
        self._layout = ""
        """The layout that a fork follows, "" before one does."""
        self._fork: ParallelWork[tuple[Watched, str]] | None = None
        self._watched: tuple[Watched, str] | None = None
        self._tested: list[Tested] | None = None
        self._visited: dict[str, tuple[Visited, ...]] = {}
        """By layout that was asked for."""

    def begin(self, experiment: Experiment, record: RunRecord) -> None:
        """Has a fork follow a run, where it is the first that fails and its kernels were interpreted."""
        if not self._layout and _is_followed(experiment, record) and may_fork():
            assert record.run is not None
            note("ahead", spoke=True)
            self._layout = record.run.layout
            self._fork = ParallelWork(partial(watched_of, experiment, record))

    def test(self, experiment: Experiment, records: Sequence[RunRecord]) -> None:
        """Tests hypotheses against that run. What goes wrong goes wrong in the diagnosis too, which tells it."""
        failing = [record.run for record in records if record.run is not None and record.run.layout == self._layout]
        for run in failing:
            experiment.tick(f"testing hypotheses against {run.layout}", 0.0)
            with experiment.stopwatch.timed("diagnose"), contextlib.suppress(Exception):
                (layout,) = failing_layouts(experiment, [run])
                self._tested = fitting(experiment, run.assigned, layout.seen)

    def watched(self, experiment: Experiment, record: RunRecord) -> tuple[Watched, str]:
        """What following a run shows, with a note where something could not be read."""
        if self._fork is None or record.run is None or record.run.layout != self._layout:
            return watched_of(experiment, record)
        self._watched = self._watched or self._fork.result()
        return self._watched

    def dataflow(self, experiment: Experiment, run: LayoutRun) -> tuple[list[Diagnosis], Collection[str]]:
        """What the dataflow of a run shows, and what kept operations from being followed."""
        watched = run.watched
        if watched is None and self.has(run):
            watched, _ = self.watched(experiment, RunRecord(run))
        if watched is None:
            # It imports Triton, which only a run in the interpreter has surely done already.
            from .dataflow import seen_in_dataflow

            watched = seen_in_dataflow(experiment, run)
        self._visited[run.layout] = watched.visited
        return list(watched.seen), watched.failures

    def visited(self, run: LayoutRun) -> tuple[Visited, ...]:
        """What each result of a run was summed over, where the diagnosis followed it."""
        return self._visited.get(run.layout, ())

    def has(self, run: LayoutRun) -> bool:
        """Whether a fork follows a run."""
        return self._fork is not None and run.layout == self._layout

    def tested(self, run: LayoutRun) -> list[Tested] | None:
        """The hypotheses that explain a run, where they were tested against it."""
        return self._tested if self.has(run) else None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fork is not None:
            self._fork.__exit__()


def _is_followed(experiment: Experiment, record: RunRecord) -> bool:
    """Whether the diagnosis follows a run, should it be the first that fails."""
    first, case, run = experiment.first, experiment.case, record.run
    return (
        is_on("ahead") and first is not None and first.interpreted and bool(first.launched) and not experiment.cuda
        and case.scores <= MOST_SCORES and not case.cu_seqlens_q
        and run is not None and run.is_plain and record.configuration is None
        and run.measured is not None and not run.measured.comparison.matches
    )  # fmt: skip
