"""Checks on Ray: each is one of its tasks, which it places, and places again where a worker or a machine is lost."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ... import __version__
from ...model.documents import dump, load
from ...model.failures import Failure, UsageFailure
from ...processes import Crash
from ...processes import resource_limits as limits
from ...processes.ended import CRASH
from .checking import Setting, check_each, shares
from .outcome import CheckMessages, CheckOutcome, of_crash
from .plan import PlannedCheck

EMBEDDED = "local"
"""The address of a cluster that is started for one sweep, on this machine alone."""
# What a target may import from the folder of its file.
_SOURCES = {".py", ".cu", ".cuh", ".h", ".hpp"}
# Bytes of these that travel at most: a folder with more holds other things.
_MOST = 50 << 20
# Seconds for a machine to answer.
_PATIENCE = 10.0
_HERE = "--ray alone starts a cluster here"


@dataclass(frozen=True)
class RayCluster:
    """Where checks are made."""

    address: str
    """EMBEDDED, or as Ray takes it: auto, HOST:PORT, ray://HOST:PORT."""
    retries: int
    """How often a check is made again whose worker or machine was lost."""

    def refuse_unusable(self) -> None:
        """Raises UsageFailure where there is no Ray, or nothing listens there: Ray itself would wait for minutes."""
        if importlib.util.find_spec("ray") is None:
            way_out = "pip install 'gradprobe[cluster]'"
            raise UsageFailure("--ray: Ray is not installed here", way_out)
        host, colon, port = self.address.removeprefix("ray://").rpartition(":")
        try:
            if colon:
                socket.create_connection((host, int(port)), _PATIENCE).close()
        except (OSError, ValueError) as error:
            words = f"--ray {self.address}: nothing answers there ({error})"
            raise UsageFailure(words, _HERE) from error


def check_each_on_ray(
    planned: Sequence[PlannedCheck], setting: Setting, on: RayCluster
) -> Iterator[CheckOutcome]:
    """Each check as it is made, as `check_each` has it.

    A target that crashes ends a process of its worker's alone. A worker of Ray's that is lost costs its one check,
    once every retry was lost.

    Args:
        planned: a list that may grow behind its end whenever a check was yielded.

    Raises:
        UsageFailure: there is no cluster at the address.
        Failure: nothing can run there.
    """
    # Ray tells its makers of each cluster that is started, unless this says no.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if not planned:
        return
    with _connected(ray, planned, setting, on) as folder:
        is_on_cpu = planned[0].request.options.get("device") == "cpu"
        gpus = 0 if is_on_cpu else min(1, int(ray.cluster_resources().get("GPU", 0)))
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=on.retries)(made_in_task)
        how, waiting, seen = replace(setting, workers=1), dict[Any, int](), 0
        while waiting or seen < len(planned):
            # Ray holds what has no place yet, so all that is planned is handed to it at once.
            for number in range(seen, len(planned)):
                waiting[task.remote(__version__, planned[number], how, folder)] = number
            seen = len(planned)
            (over,), _ = ray.wait(list(waiting), num_returns=1)
            number = waiting.pop(over)
            yield _result(ray, over, planned[number], on).numbered(number)


@contextlib.contextmanager
def _connected(
    ray: Any, planned: Sequence[PlannedCheck], setting: Setting, on: RayCluster
) -> Iterator[str]:
    """While open, tasks run there. The folder that each runs in; "" of one that Ray makes of what travels."""
    with tempfile.TemporaryDirectory() as staged:
        where: dict[str, Any] = {"num_cpus": setting.workers, "include_dashboard": False}
        if on.address != EMBEDDED:
            _stage(planned, Path(staged))
            where = {"address": on.address, "runtime_env": {"working_dir": staged}}
        try:
            ray.init(**where, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            words = " ".join(str(error).split())
            raise UsageFailure(f"--ray {on.address}: {words}", _HERE) from error
        try:
            yield os.getcwd() if on.address == EMBEDDED else ""
        finally:
            ray.shutdown()


def _stage(planned: Sequence[PlannedCheck], staged: Path) -> None:
    """Copies what travels: the sources in the folders of targets and references that lie below this one, and inputs.

    Raises:
        UsageFailure: that is more than sources.
    """
    here, found = Path.cwd(), set[Path]()
    for request in (check.request for check in planned):
        for word in (request.target, request.reference or ""):
            file = Path(word.partition(":")[0]).absolute()
            if file.is_file() and file.is_relative_to(here):
                found.update(_sources(file.parent))
        inputs = Path(str(request.options.get("inputs", ""))).absolute()
        if inputs.is_file() and inputs.is_relative_to(here):
            found.add(inputs)
    size = sum(path.stat().st_size for path in found)
    if size > _MOST:
        words = f"--ray: the sources below the target's folder take {size >> 20} MiB, more than {_MOST >> 20}"
        raise UsageFailure(words, "put the target into a folder of its own")
    for path in found:
        copy = staged / path.relative_to(here)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def _sources(folder: Path) -> Iterator[Path]:
    """The sources in a folder and below it, without hidden folders and environments."""
    for name, below, files in os.walk(folder):
        for sub in list(below):
            if sub.startswith(".") or os.path.exists(f"{name}/{sub}/pyvenv.cfg"):
                below.remove(sub)
        yield from (Path(name, file) for file in files if Path(file).suffix in _SOURCES)


def _result(ray: Any, over: Any, planned: PlannedCheck, on: RayCluster) -> CheckOutcome:
    """What a task came to, with the paths of this machine; raises Failure where it could not begin."""
    checked: CheckOutcome
    try:
        folder, checked = ray.get(over)
    except ray.exceptions.RayTaskError as error:
        words = f"Ray: {' '.join(str(error.cause or error).split())}"
        raise Failure(words, "every machine needs this gradprobe") from error
    except ray.exceptions.RuntimeEnvSetupError as error:
        raise Failure(f"Ray: what the target needs could not travel: {error}") from error
    except ray.exceptions.RayError as error:
        times = f", {on.retries + 1} times" if on.retries else ""
        words = f"the worker of Ray that made it was lost ({type(error).__name__}{times})"
        return of_crash(planned, Crash(CRASH, words, "", 0.0), CheckMessages())
    if folder == os.getcwd():
        return checked
    return replace(checked, report=load(dump(checked.report).replace(folder, os.getcwd())))


class _Bench:
    """The checks of one worker, which go on in the process that is warm."""

    def __init__(self) -> None:
        self._plan: list[PlannedCheck] = []
        self._kind: object = None
        self._ends = check_each((), Setting())

    def check(self, planned: PlannedCheck, setting: Setting) -> CheckOutcome:
        # Ray may give a worker another GPU for each task.
        kind = setting, shares(planned), os.environ.get(limits.VISIBLE)
        if kind != self._kind:
            self._ends.close()
            self._plan, self._kind = [], kind
            self._ends = check_each(self._plan, setting)
        self._plan.append(planned)
        return next(self._ends)


# Of this worker.
_bench = _Bench()


def made_in_task(
    version: str, planned: PlannedCheck, setting: Setting, folder: str
) -> tuple[str, CheckOutcome]:
    """The folder that this worker runs in, and a check.

    Args:
        version: of the gradprobe that asks.
        folder: the folder to run in; "" for Ray's.

    Raises:
        Failure: another gradprobe is here.
    """
    if version != __version__:
        node = os.uname().nodename
        raise Failure(f"gradprobe {__version__} is installed on {node}, and {version} asks")
    if folder:
        os.chdir(folder)
    if (
        limits.SHARE not in os.environ
    ):  # a check has one core, and that share of what is free here
        cores = os.cpu_count() or 1
        os.environ[limits.SHARE] = str(max(limits.LEAST, limits.limit() // cores))
        os.environ[limits.SHARED_BY] = str(cores)
    return os.getcwd(), _bench.check(planned, setting)
