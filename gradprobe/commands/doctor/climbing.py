"""Climbing: rungs tried in processes of their own, so that one which crashes ends no other; and what was found."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...inputs.history import CheckRequest
from ...model.allowance import Client
from ...model.failures import Failure, NoRoom, Refusal, TargetFailure
from ...model.layout_run import FAILED, MATCH
from ...model.report import Report
from ...model.writing import visible
from ...processes import TaskResult, run_each
from ...processes.child import fresh_caches
from ...processes.ended import TIMEOUT
from ...render.console import first_line
from ...targets.builtin import has_driver
from ..suite.checking import Checker, Setting
from ..suite.outcome import CheckOutcome
from .ladder import (
    COMPILED,
    CUDA,
    FAILS,
    GREEN,
    INTERPRETED,
    NOT_RUN,
    RED,
    REFUSED,
    Rung,
    RungResult,
    machine_rungs,
    target_rungs,
)
from .machine_survey import MachineSurvey, survey_machine, survey_target, variables_here
from .primitives import run_primitive

# Seconds for one rung of a machine, its compilers included; some hang for ever on a machine that is at fault.
_LONGEST = 120.0
# Each process imports torch, a second or more of a core.
_WORKERS = 2
FRESH = "with every cache empty"
Tick = Callable[[str, float | None], object]


@dataclass(frozen=True)
class Examination:
    target: str
    """"" of the machine alone."""
    survey: MachineSurvey
    climbed: tuple[RungResult, ...]
    """Of a target up to the first that is bad, and those above it, which were not run."""
    closer: tuple[RungResult, ...]
    """The first that is bad once more, with every cache empty."""
    left_out: tuple[str, ...]
    """Which ways there are not here, and why."""
    seconds: float
    command: str

    @property
    def first_bad(self) -> RungResult | None:
        return next((one for one in self.climbed if one.is_bad), None)

    @property
    def stale(self) -> tuple[str, ...]:
        """What certainly runs otherwise than its file stands there."""
        found = [words for file in self.survey.files for words in file.stale]
        if any(one.rung.title == FRESH and one.state == GREEN for one in self.closer):
            found.append(f"a cache of compiled kernels is stale: {FRESH} it is green")
        return tuple(found)

    @property
    def exit_code(self) -> int:
        """0 where all is green, 1 where numbers are wrong or something stale runs, 3 where nothing came."""
        states = {one.state for one in self.climbed}
        if self.stale or RED in states:
            return 1
        return Failure.exit_code if FAILS in states or GREEN not in states else 0


class Climber:
    """`Climber(setup)(rung)` tries a rung, of a machine or of a target; None in its place asks for a survey.

    A target is imported once: some modules cannot be imported twice by one process.
    """

    def __init__(self, setup: tuple[CheckRequest | None, str]) -> None:
        request, device = setup
        if device == "cuda":
            # A compiled rung is compiled, whatever is in force.
            os.environ.pop("TRITON_INTERPRET", None)
        from ...pipeline.resolve import resolve_problem
        from ...runtime.backend import prepare_backend

        self._problem = None
        if request is None:
            self._device = prepare_backend(device)
        else:
            with contextlib.redirect_stdout(sys.stderr):
                self._problem = resolve_problem(request)

    def __call__(self, rung: Rung | None) -> RungResult | MachineSurvey:
        if rung is None and self._problem is not None:
            return survey_target(self._problem)
        if rung is None:
            return survey_machine(self._device)
        start = time.perf_counter()
        try:
            made = self._tried(rung)
        except Exception as error:
            state = REFUSED if isinstance(error, (Refusal, NoRoom)) else FAILS
            made = RungResult(rung, state, _first(error))
        return replace(made, seconds=time.perf_counter() - start)

    def _tried(self, rung: Rung) -> RungResult:
        if rung.planned is None:
            words = run_primitive(rung.primitive, rung.how == CUDA, self._device)
            return RungResult(rung, RED if words else GREEN, words)
        if self._problem is None:
            return _of_check(rung, Checker(Setting())(rung.planned))
        from ...pipeline.probe import probed
        from ...pipeline.reported import report_of

        options = rung.planned.request.options
        problem = replace(self._problem.with_options(options), fixed=frozenset(options))
        with contextlib.redirect_stdout(sys.stderr):
            found, _ = probed(problem, rung.planned.repro_command, Client())
        return _measured(rung, report_of(found))


def _of_check(rung: Rung, checked: CheckOutcome) -> RungResult:
    report = checked.report
    if checked.verdict != FAILED:
        return _measured(rung, report)
    words = visible(report.error.message if report.error else "")
    return RungResult(rung, REFUSED if checked.is_refused else FAILS, words, report=report)


def _measured(rung: Rung, report: Report) -> RungResult:
    if report.verdict == MATCH:
        return RungResult(rung, GREEN, report=report)
    return RungResult(rung, RED, visible(first_line(report)), report=report)


def _first(error: Exception) -> str:
    """The first line of what was raised."""
    words = str(error).strip().partition("\n")[0]
    return visible(words if isinstance(error, Failure) else f"{type(error).__name__}: {words}")


def _climb(
    request: CheckRequest | None,
    device: str,
    items: Sequence[Rung | None],
    *,
    workers: int = 1,
    timeout: float | None = _LONGEST,
) -> Iterator[RungResult | MachineSurvey]:
    """Each rung, or survey, as it comes.

    Args:
        items: what is appended meanwhile is tried too.
        timeout: seconds for one.

    Raises:
        Failure: no survey can be made, as where torch or the target cannot be imported.
    """
    setup = (request, device)
    for ended in run_each(f"{__name__}:Climber", setup, items, workers=workers, timeout=timeout):
        if ended.item is None and ended.result is None:
            raise _failure("torch" if request is None else f"target {request.target!r}", ended)
        yield _died(ended) if ended.result is None else ended.result


def _failure(subject: str, ended: TaskResult) -> Failure:
    if ended.raised is not None:
        return ended.raised.failure
    how = f": {ended.crash.words}{ended.crash.where}" if ended.crash is not None else ""
    return TargetFailure(f"{subject} crashed while it was imported{how}")


def _died(ended: TaskResult) -> RungResult:
    if (crash := ended.crash) is None:
        return RungResult(ended.item, FAILS, ended.why)
    how = "" if crash.kind == TIMEOUT else "it ended its process: "
    return RungResult(ended.item, FAILS, f"{how}{crash.words}{crash.where}", crash.seconds)


def examine_machine(command: str, tick: Tick) -> Examination:
    """Climbs the ladder of this machine in every way that there is here."""
    start = time.perf_counter()
    tick("importing torch", None)
    ways, left_out = _ways()
    rungs = [(device, rung) for how, device in ways for rung in machine_rungs(how, device)]
    found, surveys = dict[tuple[str, str], RungResult](), dict[str, MachineSurvey]()
    for device in dict.fromkeys(device for _, device in ways):
        here = [rung for where, rung in rungs if where == device]
        # The first in CUDA C++ compiles for others: it begins at once, so that none of them does so beside it.
        here.sort(key=lambda rung: rung.how != CUDA or rung.primitive != "add_one")
        # Programs of several processes on one GPU wait for one another.
        workers = min(len(os.sched_getaffinity(0)), _WORKERS) if device == "cpu" else 1
        for outcome in _climb(None, device, [None, *here], workers=workers):
            if isinstance(outcome, MachineSurvey):
                surveys[device] = outcome
            else:
                found[outcome.rung.key] = outcome
                words = f"rung {len(found)} of {len(rungs)}: {outcome.rung.title}"
                tick(words, len(found) / len(rungs))
    climbed = tuple(found[rung.key] for _, rung in rungs)
    survey = replace(surveys[ways[0][1]], variables=variables_here())
    made = Examination("", survey, climbed, (), left_out, 0.0, command)
    return replace(made, closer=_closer(made), seconds=time.perf_counter() - start)


def _ways() -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """The ways in which kernels run here, each with its device; and why there are no others."""
    backend = "cpu"
    if has_driver():
        (survey,) = _climb(None, "auto", [None])
        assert isinstance(survey, MachineSurvey)
        backend = survey.backend
    if backend == "cpu":
        left_out = ("compiled: torch sees no GPU",)
        if shutil.which(os.environ.get("CXX", "g++")) or shutil.which("g++"):
            return [(INTERPRETED, "cpu"), (CUDA, "cpu")], left_out
        why = "CUDA: neither a GPU nor g++, which runs CUDA kernels on the CPU"
        return [(INTERPRETED, "cpu")], (*left_out, why)
    ways = [(COMPILED, "cuda"), (CUDA, "cuda"), (INTERPRETED, "cpu")]
    if importlib.util.find_spec("cuda") is not None:
        return ways, ()
    why = "CUDA: cuda-core is not installed (pip install 'gradprobe[cuda]')"
    return [ways[0], ways[2]], (why,)


def examine_target(
    request: CheckRequest, command: str, timeout: float | None, tick: Tick
) -> Examination:
    """Climbs with the user's own kernel, to the first rung that is bad.

    Raises:
        Failure: the target is not there or cannot be imported.
    """
    start, climbed = time.perf_counter(), list[RungResult]()
    tick("importing torch and the target", None)
    items: list[Rung | None] = [None]
    rungs: list[Rung] = []
    for outcome in _climb(request, "", items, timeout=timeout):
        if isinstance(outcome, MachineSurvey):
            survey = replace(outcome, variables=variables_here())
            assert survey.built is not None
            rungs = target_rungs(request, survey.built)
            items += rungs
        else:
            climbed.append(outcome)
            if outcome.is_bad:
                break
        if (done := len(climbed)) < len(rungs):
            tick(f"rung {done + 1} of {len(rungs)}: {rungs[done].title}", done / len(rungs))
    climbed += [RungResult(rung, NOT_RUN) for rung in rungs[len(climbed) :]]
    made = Examination(request.target, survey, tuple(climbed), (), (), 0.0, command)
    return replace(made, closer=_closer(made), seconds=time.perf_counter() - start)


def _closer(made: Examination) -> tuple[RungResult, ...]:
    """The first bad rung with empty caches, where it is compiled, in a process that no other shares."""
    bad, device = made.first_bad, made.survey.backend
    if bad is None or bad.rung.how == INTERPRETED:
        return ()
    has_cuda = any(not file.file.endswith(".py") for file in made.survey.files)
    if device == "cpu" and bad.rung.how != CUDA and not has_cuda:
        return ()
    with fresh_caches():
        (climbed,) = _climb(None, device, [replace(bad.rung, title=FRESH)])
    assert isinstance(climbed, RungResult)
    return (climbed,)
