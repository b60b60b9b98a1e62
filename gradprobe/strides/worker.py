"""The workers of a process of its own: one makes a trial for each number it is sent, one finds what is to blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..cases.draw import draw
from ..last import Asked
from ..probing.receipt import environment, notes_of, provenance
from ..probing.session import Session, dots_of, silent
from ..problem import problem_of
from ..report.as_json import as_json
from ..running.taps import parse_tap
from ..verdict import Report, Run
from .bench import FIRST, Bench
from .culprits import Culprit, culprits
from .programs import programs_of
from .result import Plan, Result
from .trials import Trial, trials_of


@dataclass(frozen=True)
class Setup:
    """What a bench is made from."""

    asked: Asked
    again: str
    """The command line that repeats it."""
    fast: bool


class Trials:
    """Called with 0 it gives the Plan; with n the n-th trial's Result, None where there are fewer.

    Called with a Result that ended another process, it weighs that.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self._bench = setup, bench_of(setup.asked)
        self._trials = _trials_of(self._bench, fast=setup.fast)

    def __call__(self, number: int | Result) -> Plan | Result | None:
        if isinstance(number, Result):
            return self._bench.weighed(number)
        if number == 0:
            return self._plan()
        if number > len(self._trials):
            return None
        return self._bench.tried(self._trials[number - 1])

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


class Named:
    """Called with the title of a trial it gives the Result: as `Trials`, for another size of the same case."""

    def __init__(self, setup: Setup) -> None:
        self._bench = bench_of(setup.asked)
        self._trials = {trial.title: trial for trial in _trials_of(self._bench, fast=setup.fast)}

    def __call__(self, title: str) -> Result | None:
        return self._bench.tried(self._trials[title]) if title in self._trials else None


class Blame:
    """Called with the titles of trials that fail, and of those that pass as they are, it gives what is to blame."""

    def __init__(self, setup: Setup) -> None:
        self._bench = bench_of(setup.asked)
        self._trials = {trial.title: trial for trial in _trials_of(self._bench, fast=setup.fast)}

    def __call__(self, came: tuple[Sequence[str], Sequence[str]]) -> tuple[Culprit, ...]:
        failing, right = ([self._trials[title] for title in titles if title in self._trials] for titles in came)
        return culprits(self._bench, failing, right)


def _trials_of(bench: Bench, *, fast: bool) -> tuple[Trial, ...]:
    shapes = bench.shapes()
    return (FIRST, *trials_of(shapes, programs_of(shapes, fast=fast), fast=fast))


def bench_of(asked: Asked) -> Bench:
    """A bench for what was asked.

    Raises:
        Failure: whatever keeps it from being made.
    """
    problem = problem_of(asked)
    case = problem.case
    taps = tuple(parse_tap(word) for word in case.taps)
    session = Session(case, problem.target, problem.reference, silent, taps)
    session.values = {name: value.to(case.device) for name, value in draw(case).items()}
    return Bench(session)
