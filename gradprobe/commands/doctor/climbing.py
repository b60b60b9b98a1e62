"""Climbing: rungs tried in processes of their own, so that one which crashes ends no other."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...inputs.history import CheckRequest
from ...model.failures import Failure, NoRoom, Refusal, TargetFailure
from ...model.layout_run import FAILED, MATCH
from ...model.writing import visible
from ...processes import TaskResult, run_each, tell
from ...processes.ended import TIMEOUT
from ...render.console import first_line
from ..suite.checked import CheckOutcome
from ..suite.checking import Checker, Setting
from .ladder import narrower, target_rungs
from .machine_survey import MachineSurvey, survey_machine, survey_target
from .primitives import run_primitive
from .rung import CUDA, FAILS, GREEN, RED, REFUSED, Rung, RungResult

if TYPE_CHECKING:
    from ...model.report import Report
    from ...numerics.evidence import Probed

# Seconds for one rung of a machine, its compilers included; some hang for ever on a machine that is at fault.
_LONGEST = 120.0


class Climber:
    """`Climber(device)(rung)` tries a rung on "cpu" or "cuda"; None in its place asks for a survey."""

    def __init__(self, device: str) -> None:
        if device == "cuda":
            os.environ.pop("TRITON_INTERPRET", None)  # a compiled rung is compiled, whatever is in force
        from ...runtime.backend import prepare_backend

        self._device = prepare_backend(device)
        self._check = Checker(Setting())

    def __call__(self, rung: Rung | None) -> RungResult | MachineSurvey:
        return survey_machine(self._device) if rung is None else self.tried(rung)

    def tried(self, rung: Rung) -> RungResult:
        """What came of it."""
        start = time.perf_counter()
        if rung.planned is not None:
            return _of_check(rung, self._check(rung.planned))
        try:
            words = run_primitive(rung.primitive, rung.how == CUDA, self._device)
            state = RED if words else GREEN
        except Exception as error:
            state, words = FAILS, _first(error)
        return RungResult(rung, state, words, time.perf_counter() - start)


@dataclass(frozen=True)
class RungStep:
    """A rung of a target."""

    climbed: RungResult
    closer: RungResult | None
    """The same with one head, where it is bad and has several."""


class _VerdictKnown(Exception):
    """Whether a check is right is known: its argument is the report so far."""


class TargetClimber:
    """`TargetClimber(request)(number)` tries a rung of the target's ladder; None beyond its end.

    The survey that decides the ladder is told with the first rung. The target is imported once: some modules cannot be
    imported twice by one process.
    """

    def __init__(self, request: CheckRequest) -> None:
        from ...pipeline.probe import probed
        from ...pipeline.resolve import resolve_problem

        self._probed = probed
        with contextlib.redirect_stdout(sys.stderr):
            self._problem = resolve_problem(request)
        self._survey = survey_target(self._problem)
        assert self._survey.built is not None
        self._rungs = target_rungs(request, self._survey.built)

    def __call__(self, number: int) -> RungStep | None:
        tell(self._survey)
        if number >= len(self._rungs):
            return None
        climbed = self._tried(self._rungs[number], lambda so_far: None)
        small = narrower(climbed.rung, self._rungs) if climbed.is_bad else None
        return RungStep(climbed, None if small is None else self._tried(small, _stop))

    def _tried(self, rung: Rung, told: Callable[[Probed], object]) -> RungResult:
        start = time.perf_counter()
        try:
            state, words, report = self._checked(rung, told)
        except _VerdictKnown as seen:
            state, words, report = RED if seen.args[0].failing else GREEN, "", None
        except Exception as error:
            state, words, report = REFUSED if isinstance(error, (Refusal, NoRoom)) else FAILS, _first(error), None
        return RungResult(rung, state, words, time.perf_counter() - start, report)

    def _checked(self, rung: Rung, told: Callable[[Probed], object]) -> tuple[str, str, Report]:
        from ...pipeline.reported import report_of

        assert rung.planned is not None
        options = rung.planned.request.options
        problem = replace(self._problem.with_options(options), fixed=frozenset(options))
        with contextlib.redirect_stdout(sys.stderr):
            probed, _ = self._probed(problem, rung.planned.repro_command, _silent, told)
        report = report_of(probed)
        return (RED, visible(first_line(report)), report) if probed.failing else (GREEN, "", report)


def _stop(so_far: Probed) -> None:
    raise _VerdictKnown(so_far)


def _silent(stage: str, fraction: float, layout: str = "") -> None:
    """Tells nobody how far a check is."""


_MACHINE, _TARGET = f"{__name__}:Climber", f"{__name__}:TargetClimber"


def climb(
    rungs: Sequence[Rung | None], device: str, *, workers: int = 1, timeout: float | None = _LONGEST
) -> Iterator[RungResult | MachineSurvey]:
    """Each rung, or survey, as it comes.

    Args:
        timeout: seconds for one.

    Raises:
        Failure: no survey can be made, as where torch cannot be imported.
    """
    for ended in run_each(_MACHINE, device, rungs, workers=workers, timeout=timeout):
        if ended.item is None and ended.result is None:
            raise _failure("torch", ended)
        yield ended.result if isinstance(ended.result, MachineSurvey) else _ended(ended, ended.item, ended.result)


def climbed_alone(rung: Rung, device: str, timeout: float | None = _LONGEST) -> RungResult:
    """A rung in a process that no other shares."""
    (climbed,) = climb([rung], device, timeout=timeout)
    assert isinstance(climbed, RungResult)
    return climbed


def climb_target(
    request: CheckRequest, timeout: float | None, surveys: Callable[[MachineSurvey], object]
) -> Iterator[RungStep]:
    """The rungs of a target in order.

    Args:
        timeout: seconds for one.
        surveys: given the survey, before the first rung.

    Raises:
        Failure: the target is not there, or its process does not get as far as a survey.
    """
    found: list[MachineSurvey] = []

    def keep(_: int, survey: MachineSurvey) -> None:
        if not found:
            found.append(survey)
            surveys(survey)

    for ended in run_each(_TARGET, request, range(_MOST), timeout=timeout, told=keep):
        if not found:
            raise _failure(f"target {request.target!r}", ended)
        assert found[0].built is not None
        rungs = target_rungs(request, found[0].built)
        if ended.index >= len(rungs):
            return
        step = ended.result
        climbed = _ended(ended, rungs[ended.index], step.climbed if isinstance(step, RungStep) else None)
        yield RungStep(climbed, step.closer if isinstance(step, RungStep) else None)


# More rungs than any ladder has.
_MOST = 100


def _failure(subject: str, ended: TaskResult) -> Failure:
    if ended.raised is not None:
        return ended.raised.failure
    how = f": {ended.crash.words}{ended.crash.where}" if ended.crash is not None else ""
    return TargetFailure(f"{subject} crashed while it was imported{how}")


def _ended(ended: TaskResult, rung: Rung, climbed: object) -> RungResult:
    if isinstance(climbed, RungResult):
        return climbed
    if (crash := ended.crash) is not None:
        how = "" if crash.kind == TIMEOUT else "it ended its process: "
        return RungResult(rung, FAILS, f"{how}{crash.words}{crash.where}", crash.seconds)
    return RungResult(rung, FAILS, ended.raised.message if ended.raised else "it sent no answer")


def _of_check(rung: Rung, checked: CheckOutcome) -> RungResult:
    report, seconds = checked.report, checked.report.seconds.get("total", 0.0)
    climbed = RungResult(rung, GREEN, "", seconds, report)
    if checked.verdict == MATCH:
        return climbed
    if checked.verdict == FAILED:
        words = report.error.message if report.error else ""
        return replace(climbed, state=REFUSED if checked.is_refused else FAILS, words=visible(words))
    return replace(climbed, state=RED, words=visible(first_line(report)))


def _first(error: Exception) -> str:
    """The first line of what was raised."""
    words = str(error).strip().partition("\n")[0]
    return visible(words if isinstance(error, Failure) else f"{type(error).__name__}: {words}")
