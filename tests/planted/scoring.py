"""A planted fault, an equivalent edit or an uncovered fault probed, and what that says of the tool."""

import dataclasses
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gradprobe.model.layout_run import MATCH, MISMATCH
from gradprobe.model.report import NAMED, Diagnosis
from gradprobe.numerics.evidence import ProbeResult
from gradprobe.pipeline.reported import report_of
from tests.planted.planting import EQUIVALENT, UNCOVERED, Planted
from tests.planted.scored import TRIALS

FACTORY = "tests.planted.scoring:Prober"
KINDS = ("load/", "masked/", "store/", "value/", "stored/", "pairs/", "unstored/")
"""What the fault of a diagnosis begins with that no hypothesis gives, but the dataflow of the kernels."""


@dataclass(frozen=True)
class Outcome:
    """What came of one probe: its verdict, "" where there was no report, and the place of what is wrong first."""

    name: str
    verdict: str = ""
    first: str | None = None
    batch: int | None = None
    head: int | None = None
    row: int | None = None
    memory: frozenset[str] = frozenset()
    """The arrays that findings about memory name, in small letters."""
    diagnoses: tuple[Diagnosis, ...] = ()
    seconds: float = 0.0

    failure: str = ""
    """Why there was no report."""


class Prober:
    """Called with the name of a trial, it probes a copy in its folder. One lives in each process, for many trials.

    Args:
        rows: of a case that asks for no number of its own; None for those of the score.
    """

    def __init__(self, folder: str, rows: int | None = None) -> None:
        from gradprobe.runtime.backend import prepare_backend

        prepare_backend("auto")
        import torch

        torch.set_num_threads(1)
        self._folder = Path(folder)
        self._rows = rows

    def __call__(self, name: str) -> Outcome:
        start = time.perf_counter()
        try:
            report = TRIALS[name].probe(self._folder, rows=self._rows)
        except Exception as error:
            _end_if_the_device_is_lost(error)
            raise
        return _outcome(name, report, time.perf_counter() - start)


def _end_if_the_device_is_lost(error: Exception) -> None:
    """After an error of the device every further call of a process fails: its other trials go to another one."""
    if "CUDA error" in str(error) or "[CUDA]" in str(error):
        print(str(error).splitlines()[0], file=sys.stderr, flush=True)
        os._exit(1)


def _outcome(name: str, report: ProbeResult, seconds: float) -> Outcome:
    outcome = Outcome(
        name, report.verdict, diagnoses=tuple(report.diagnoses), seconds=seconds,
        memory=frozenset(stray.tensor.lower() for run in report.runs for stray in run.memory),
    )  # fmt: skip
    first = report.failing[1].first if report.failing else None
    if first is None:
        return outcome
    # The first mismatch is wrong by the order of the worst; what is wrong at all begins here.
    shown = next(run for run in report_of(report).runs if run.has_wrong_elements)
    of = next(
        head for one in shown.compares if (one.name, one.kernel) == (first.intermediate, first.kernel)
        for head in one.heads if (head.batch, head.head) == (first.batch, first.head)
    )  # fmt: skip
    row = of.rows[0][0] if of.rows else first.row
    place = {"batch": first.batch, "head": first.head, "row": row}
    return dataclasses.replace(outcome, first=first.intermediate, **place)


@dataclass(frozen=True)
class Judged:
    trial: Planted
    outcome: Outcome

    @property
    def found(self) -> bool:
        return self.outcome.verdict == MISMATCH

    @property
    def placed(self) -> bool:
        """Of a planted fault: whether the first wrong intermediate is right, and of its place what the record knows."""
        trial, outcome = self.trial, self.outcome
        first = trial.seen or trial.first
        if outcome.first is None:
            return any(first.lower() in array.split("_") for array in outcome.memory)
        known = [(getattr(trial, at), getattr(outcome, at)) for at in ("head", "batch", "row")]
        is_there = all(record in (None, came) for record, came in known)
        return outcome.first == first and is_there

    @property
    def named(self) -> bool:
        """Of a planted fault: whether its cause is named first."""
        return self.found and self._first in self.trial.causes

    @property
    def _first(self) -> str:
        return next((one.fault for one in self.outcome.diagnoses[:1] if one.is_named), "")

    @property
    def line(self) -> bool:
        """Whether one of the causes that are named stands at a line that was changed."""
        named = (each for each in self.outcome.diagnoses if each.is_named)
        return not self.trial.lines().isdisjoint(at.line for each in named for at in each.where)

    @property
    def right(self) -> bool:
        if self.trial.kind == EQUIVALENT:
            return self.outcome.verdict == MATCH and not self.outcome.diagnoses
        if self.trial.kind == UNCOVERED:
            best = max((each.explained for each in self.outcome.diagnoses), default=0.0)
            return self.found and (best < NAMED or (self._first.startswith(KINDS) and self.line))
        return self.found and self.placed and self.named

    @property
    def wrong(self) -> bool:
        return not self.right
