"""Examination: all that the doctor found, of a machine or of a target on it; and how it is made."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...inputs.history import CheckRequest
from ...model.failures import Failure, TargetFailure
from ...processes import run_each
from ...runtime.caches import TritonCache, fresh_caches, triton_cache
from ..suite.checked import Planned
from .files import LoadedFile
from .ladder import machine_rungs, narrower, target_rungs
from .machine import Machine, machine
from .rung import COMPILED, CUDA, FAILS, GREEN, INTERPRETED, NOT_RUN, RED, Climbed, Rung, climb
from .survey import FACTORY as SURVEYOR
from .survey import Survey

Tick = Callable[[str, float | None], object]


@dataclass(frozen=True)
class Examination:
    """What was found."""

    target: str
    """"" of the machine alone."""
    machine: Machine
    survey: Survey
    climbed: tuple[Climbed, ...]
    """Of a target up to the first that is bad, and those above it, which were not run."""
    closer: tuple[Climbed, ...]
    """The first that is bad once more, in other ways."""
    cache: TritonCache
    left_out: tuple[str, ...]
    """Which ways there are not here, and why."""
    seconds: float
    command: str
    """The command line that repeats it."""

    @property
    def first_bad(self) -> Climbed | None:
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
    survey = _surveyed(None, "auto", tick)
    ways, left_out = _ways(survey.backend)
    rungs = [(device, rung) for how, device in ways for rung in machine_rungs(how, device)]
    found: dict[tuple[str, str], Climbed] = {}
    for device in dict.fromkeys(device for device, _ in rungs):
        here = [rung for where, rung in rungs if where == device]
        # Programs of several processes on one GPU wait for one another.
        workers = len(os.sched_getaffinity(0)) if device == "cpu" else 1
        for one in climb(here, device, workers=min(workers, _MOST)):
            found[one.rung.key] = one
            tick(f"rung {len(found)} of {len(rungs)}: {one.rung.title}", len(found) / len(rungs))
    climbed = tuple(found[rung.key] for _, rung in rungs)
    made = Examination("", machine(), survey, climbed, (), triton_cache({}), left_out, 0.0, command)
    return replace(made, closer=_closer(made, [rung for _, rung in rungs]), seconds=time.perf_counter() - start)


# Each process imports torch, a second or more of a core.
_MOST = 2


def examine_target(request: CheckRequest, command: str, timeout: float | None, tick: Tick) -> Examination:
    """Climbs with the user's own kernel, to the first rung that is bad.

    Raises:
        Failure: the target is not there or cannot be imported.
    """
    start = time.perf_counter()
    survey = _surveyed(request, str(request.options.get("device", "auto")), tick)
    assert survey.built is not None
    rungs, climbed = target_rungs(request, survey.built), list[Climbed]()
    tick(f"rung 1 of {len(rungs)}: {rungs[0].title}", 0.0)
    for one in climb(rungs, survey.backend, timeout=timeout):
        climbed.append(one)
        if one.is_bad:
            break
        done = len(climbed)
        if done < len(rungs):
            tick(f"rung {done + 1} of {len(rungs)}: {rungs[done].title}", done / len(rungs))
    climbed += [Climbed(rung, NOT_RUN) for rung in rungs[len(climbed) :]]
    names = {file.file: file.kernels for file in survey.files}
    made = Examination(request.target, machine(), survey, tuple(climbed), (), triton_cache(names), (), 0.0, command)
    tick("the first rung that is bad, once more in other ways", None)
    return replace(made, closer=_closer(made, rungs), seconds=time.perf_counter() - start)


def _surveyed(request: CheckRequest | None, device: str, tick: Tick) -> Survey:
    tick("importing torch" if request is None else "importing torch and the target", None)
    (ended,) = run_each(SURVEYOR, device, [request])
    if ended.raised is not None:
        raise ended.raised.failure
    if ended.crash is not None:
        subject = f"target {request.target!r}" if request else "torch"
        raise TargetFailure(f"{subject} crashed while it was imported: {ended.crash.words}{ended.crash.where}")
    assert isinstance(ended.result, Survey)
    return ended.result


def _ways(backend: str) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """The ways in which kernels run here, each with its device; and why there are no others."""
    ways, left_out = [(INTERPRETED, "cpu")], []
    if backend == "cuda":
        ways.insert(0, (COMPILED, "cuda"))
    else:
        left_out.append("compiled: torch sees no GPU")
    if backend == "cuda" and importlib.util.find_spec("cuda") is not None:
        ways.append((CUDA, "cuda"))
    elif backend == "cuda":
        left_out.append("CUDA: cuda-core is not installed (pip install 'gradprobe[cuda]')")
    elif shutil.which(os.environ.get("CXX", "g++")) or shutil.which("g++"):
        ways.append((CUDA, "cpu"))
    else:
        left_out.append("CUDA: neither a GPU nor g++, which runs CUDA kernels on the CPU")
    return ways, tuple(left_out)


def _closer(made: Examination, rungs: Sequence[Rung]) -> tuple[Climbed, ...]:
    """The first bad rung with one head, in the interpreter, and with empty caches, as far as these differ from it."""
    bad = made.first_bad
    if bad is None:
        return ()
    rung, on_gpu = bad.rung, made.survey.backend == "cuda" and bad.rung.how != INTERPRETED
    found = list[Climbed]()
    if made.target and (small := narrower(rung, rungs)) is not None:
        found += climb([small], made.survey.backend)
    if made.target and on_gpu and rung.planned is not None:
        options = {**rung.planned.request.options, "device": "cpu"}
        planned = Planned(AS_INTERPRETED, replace(rung.planned.request, options=options))
        found += climb([replace(rung, title=AS_INTERPRETED, planned=planned)], "cpu")
    if on_gpu:
        with fresh_caches():
            found += climb([replace(rung, title=FRESH)], made.survey.backend)
    return tuple(found)
