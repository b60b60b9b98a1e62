"""The workers of a process of its own: one makes a trial for each number it is sent, one finds what is to blame."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..cases.draw import draw
from ..last import Asked
from ..probing.receipt import environment, notes_of, provenance
from ..probing.session import Session, dots_of
from ..problem import problem_of
from ..report.as_json import as_json
from ..running.taps import parse_tap
from ..verdict import Report, Run
from .bench import FIRST, Bench
from .culprits import Culprit, culprits
from .programs import programs_of
from .result import DEVICE_LOST, Plan, Result
from .trials import Trial, trials_of


@dataclass(frozen=True)
class Setup:
    """What a bench is made from."""

    asked: Asked
    again: str
    """The command line that repeats it."""
    fast: bool


class Trials:
    """Called with 0 it gives the Plan; with n the n-th trial's Result, None where there are fewer."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._bench = setup, bench_of(setup.asked)
        shapes = self._bench.shapes()
        programs = programs_of(shapes, fast=setup.fast)
        self._trials = (FIRST, *trials_of(shapes, programs, fast=setup.fast))

    def __call__(self, number: int) -> Plan | Result | None:
        if number == 0:
            return self._plan()
        if number > len(self._trials):
            return None
        result = self._bench.tried(self._trials[number - 1])
        if DEVICE_LOST in result.words:
            _end_with(result.words)
        return result

    def _plan(self) -> Plan:
        measured, session = self._bench.contiguous(), self._bench.session
        run = Run(FIRST.title, (), measured, None)
        report = Report(
            case=replace(session.case, dots=dots_of(session)),
            provenance=provenance(session),
            environment=environment(session.case.device),
            runs=(run,),
            notes=notes_of(session, [run]),
            reproduce=self._setup.again,
            seconds=session.seconds,
        )
        return Plan(self._trials, as_json(report), measured.comparison.precision.name)


def _end_with(words: str) -> None:
    """Ends this process: after an error of the device every further call of it fails, whatever it is."""
    print(f"{DEVICE_LOST}{words.partition(DEVICE_LOST)[2].splitlines()[0]}", file=sys.stderr, flush=True)
    os._exit(1)


class Blame:
    """Called with the trials that fail it, and those that it passes as they are, it gives what is to blame."""

    def __init__(self, setup: Setup) -> None:
        self._bench = bench_of(setup.asked)

    def __call__(self, came: tuple[Sequence[Trial], Sequence[Trial]]) -> tuple[Culprit, ...]:
        failing, right = came
        return culprits(self._bench, failing, right)


def bench_of(asked: Asked) -> Bench:
    """A bench for what was asked.

    Raises:
        Failure: whatever keeps it from being made.
    """
    problem = problem_of(asked)
    case = problem.case
    taps = tuple(parse_tap(word) for word in case.taps)
    session = Session(case, problem.target, problem.reference, lambda stage, fraction: None, taps)
    session.values = {name: value.to(case.device) for name, value in draw(case).items()}
    return Bench(session)
