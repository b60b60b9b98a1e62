"""Examination: all that the doctor found, of a machine or of a target on it; and how it is made."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...inputs.history import CheckRequest
from ...model.failures import Failure
from ...runtime.caches import fresh_caches
from ...targets.builtin import has_driver
from ...targets.naming import triton_folder
from ..suite.checked import PlannedCheck
from .climbing import RungStep, climb, climb_target, climbed_alone
from .ladder import machine_rungs, target_rungs
from .machine import Machine, machine
from .machine_survey import MachineSurvey
from .module_copies import LoadedFile
from .rung import COMPILED, CUDA, FAILS, GREEN, INTERPRETED, NOT_RUN, RED, Rung, RungResult

Tick = Callable[[str, float | None], object]


@dataclass(frozen=True)
class Examination:
    """What was found."""

    target: str
    """"" of the machine alone."""
    machine: Machine
    survey: MachineSurvey
    climbed: tuple[RungResult, ...]
    """Of a target up to the first that is bad, and those above it, which were not run."""
    closer: tuple[RungResult, ...]
    """The first that is bad once more, in other ways."""
    cache: str
    """The folder of Triton's compiled kernels."""
    left_out: tuple[str, ...]
    """Which ways there are not here, and why."""
    seconds: float
    command: str
    """The command line that repeats it."""

    @property
    def first_bad(self) -> RungResult | None:
        """The rung that is the story."""
        return next((one for one in self.climbed if one.is_bad), None)

    @property
    def stale(self) -> tuple[str, ...]:
        """What certainly runs otherwise than its file stands there."""
        of_files = [words for file in self.survey.files for words in file.stale]
        fresh = [one for one in self.closer if one.rung.title == FRESH and one.state == GREEN]
        return (*of_files, *(f"a cache of compiled kernels is stale: {FRESH} it is green" for _ in fresh))

    @property
    def other_copies(self) -> tuple[LoadedFile, ...]:
        """The files of which a copy lies elsewhere that holds another text."""
        return tuple(file for file in self.survey.files if any(not copy.same for copy in file.copies))

    @property
    def exit_code(self) -> int:
        """0 where all is green, 1 where numbers are wrong or something stale runs, 3 where nothing came."""
        if self.stale or any(one.state == RED for one in self.climbed):
            return 1
        failed = any(one.state == FAILS for one in self.climbed)
        return Failure.exit_code if failed or not any(one.state == GREEN for one in self.climbed) else 0


FRESH, AS_INTERPRETED = "with every cache empty", "in Triton's interpreter"


def examine_machine(command: str, tick: Tick) -> Examination:
    """Climbs the ladder of this machine in every way that there is here."""
    start = time.perf_counter()
    tick("importing torch", None)
    ways, left_out = _ways(_backend())
    rungs = [(device, rung) for how, device in ways for rung in machine_rungs(how, device)]
    found, surveys = _all_climbed(rungs, tick)
    survey = replace(surveys[ways[0][1]], mended=surveys["cpu"].mended)
    climbed = tuple(found[rung.key] for _, rung in rungs)
    made = Examination("", machine(), survey, climbed, (), str(triton_folder()), left_out, 0.0, command)
    return replace(made, closer=_closer(made), seconds=time.perf_counter() - start)


def _all_climbed(
    rungs: Sequence[tuple[str, Rung]], tick: Tick
) -> tuple[dict[tuple[str, str], RungResult], dict[str, MachineSurvey]]:
    """What came of each rung by its key, and a survey of each device."""
    found, surveys = dict[tuple[str, str], RungResult](), dict[str, MachineSurvey]()
    for device in dict.fromkeys(device for device, _ in rungs):
        here = [rung for where, rung in rungs if where == device]
        # The first in CUDA C++ compiles for others: it begins at once, so that none of them does so beside it.
        here.sort(key=lambda rung: rung.how != CUDA or rung.primitive != "add_one")
        # Programs of several processes on one GPU wait for one another.
        workers = min(len(os.sched_getaffinity(0)), _WORKERS) if device == "cpu" else 1
        for outcome in climb([None, *here], device, workers=workers):
            if isinstance(outcome, MachineSurvey):
                surveys[device] = outcome
            else:
                found[outcome.rung.key] = outcome
                tick(f"rung {len(found)} of {len(rungs)}: {outcome.rung.title}", len(found) / len(rungs))
    return found, surveys


# Each process imports torch, a second or more of a core.
_WORKERS = 2


def examine_target(request: CheckRequest, command: str, timeout: float | None, tick: Tick) -> Examination:
    """Climbs with the user's own kernel, to the first rung that is bad.

    Raises:
        Failure: the target is not there or cannot be imported.
    """
    start, steps, surveys = time.perf_counter(), list[RungStep](), list[MachineSurvey]()
    tick("importing torch and the target", None)
    rungs: list[Rung] = []

    def begin(survey: MachineSurvey) -> None:
        assert survey.built is not None
        surveys.append(survey)
        rungs.extend(target_rungs(request, survey.built))
        tick(f"rung 1 of {len(rungs)}: {rungs[0].title}", 0.0)

    for step in climb_target(request, timeout, begin):
        steps.append(step)
        if step.climbed.is_bad:
            break
        if (done := len(steps)) < len(rungs):
            tick(f"rung {done + 1} of {len(rungs)}: {rungs[done].title}", done / len(rungs))
    above = (RungResult(rung, NOT_RUN) for rung in rungs[len(steps) :])
    climbed = (*(step.climbed for step in steps), *above)
    closer = tuple(step.closer for step in steps if step.closer is not None)
    made = Examination(request.target, machine(), surveys[0], climbed, closer, str(triton_folder()), (), 0.0, command)
    return replace(made, closer=(*closer, *_closer(made)), seconds=time.perf_counter() - start)


def _backend() -> str:
    """Where torch runs, "cuda" or "cpu"; it is asked only where there is a driver."""
    if not has_driver():
        return "cpu"
    (survey,) = climb([None], "auto")
    assert isinstance(survey, MachineSurvey)
    return survey.backend


def _ways(backend: str) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """The ways in which kernels run here, each with its device; and why there are no others."""
    if backend == "cpu":
        left_out = ("compiled: torch sees no GPU",)
        if shutil.which(os.environ.get("CXX", "g++")) or shutil.which("g++"):
            return [(INTERPRETED, "cpu"), (CUDA, "cpu")], left_out
        return [(INTERPRETED, "cpu")], (*left_out, "CUDA: neither a GPU nor g++, which runs CUDA kernels on the CPU")
    ways = [(COMPILED, "cuda"), (CUDA, "cuda"), (INTERPRETED, "cpu")]
    if importlib.util.find_spec("cuda") is not None:
        return ways, ()
    return [ways[0], ways[2]], ("CUDA: cuda-core is not installed (pip install 'gradprobe[cuda]')",)


def _closer(made: Examination) -> tuple[RungResult, ...]:
    """The first bad rung in Triton's interpreter, and with empty caches, where it is compiled."""
    bad, device = made.first_bad, made.survey.backend
    has_cuda = any(not file.file.endswith(".py") for file in made.survey.files)
    if bad is None or bad.rung.how == INTERPRETED or (device == "cpu" and bad.rung.how != CUDA and not has_cuda):
        return ()
    rung, found = bad.rung, list[RungResult]()
    if made.target and rung.planned is not None and device == "cuda":
        options = {**rung.planned.request.options, "device": "cpu"}
        planned = PlannedCheck(AS_INTERPRETED, replace(rung.planned.request, options=options))
        found.append(climbed_alone(replace(rung, title=AS_INTERPRETED, planned=planned), "cpu"))
    with fresh_caches():
        return (*found, climbed_alone(replace(rung, title=FRESH), device))
