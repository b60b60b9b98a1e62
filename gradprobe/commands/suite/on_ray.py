"""Checks on Ray: each is one of its tasks, which it places, and places again where a worker or a machine is lost."""

import functools
import importlib.util
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ... import __version__
from ...model.failures import Failure, UsageFailure
from ...processes import Crash
from ...processes import resource_limits as limits
from ...processes.ended import CRASH
from .checking import Checks, Setting
from .outcome import CheckMessages, CheckOutcome, of_crash
from .plan import PlannedCheck

EMBEDDED = "local"
"""The address of a cluster that is started for one sweep, on this machine alone."""
_SECONDS_TO_ANSWER = 10.0
_HERE = "--ray local starts a cluster here"


@dataclass(frozen=True)
class RayCluster:
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
                socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
        except (OSError, ValueError) as error:
            words = f"--ray {self.address}: nothing answers there ({error})"
            raise UsageFailure(words, _HERE) from error


def check_each_on_ray(
    planned: Sequence[PlannedCheck], setting: Setting, on: RayCluster
) -> Iterator[CheckOutcome]:
    """Each check as it is made, as `check_each` has it; the list may grow behind its end.

    A target that crashes ends a process of its worker's alone. A worker of Ray's that is lost costs its one check,
    once every retry was lost. UsageFailure: there is no cluster at the address; Failure: nothing can run there.
    """
    # Ray tells its makers of each cluster that is started, unless this says no.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if not planned:
        return
    where: dict[str, Any] = {"address": on.address}
    if on.address == EMBEDDED:
        where = {"num_cpus": setting.workers, "include_dashboard": False}
    try:
        ray.init(**where, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        words = " ".join(str(error).split())
        raise UsageFailure(f"--ray {on.address}: {words}", _HERE) from error
    try:
        is_on_cpu = planned[0].request.options.get("device") == "cpu"
        gpus = 0 if is_on_cpu else min(1, int(ray.cluster_resources().get("GPU", 0)))
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=on.retries)(made_in_task)
        how, waiting, seen = replace(setting, workers=1), dict[Any, int](), 0
        while waiting or seen < len(planned):
            # Ray holds what has no place yet, so all that is planned is handed to it at once.
            for number in range(seen, len(planned)):
                waiting[task.remote(__version__, planned[number], how, os.getcwd())] = number
            seen = len(planned)
            (over,), _ = ray.wait(list(waiting), num_returns=1)
            number = waiting.pop(over)
            yield _result(ray, over, planned[number], on).with_report(number=number)
    finally:
        ray.shutdown()


def _result(ray: Any, over: Any, planned: PlannedCheck, on: RayCluster) -> CheckOutcome:
    """What a task came to; raises Failure where it could not begin."""
    try:
        checked: CheckOutcome = ray.get(over)
    except ray.exceptions.RayTaskError as error:
        words = f"Ray: {' '.join(str(error.cause or error).split())}"
        raise Failure(words, "every machine needs this gradprobe, and this folder") from error
    except ray.exceptions.RayError as error:
        times = f", {on.retries + 1} times" if on.retries else ""
        words = f"the worker of Ray that made it was lost ({type(error).__name__}{times})"
        return of_crash(planned, Crash(CRASH, words, "", 0.0), CheckMessages())
    return checked


@functools.lru_cache(maxsize=1)
def _checks(setting: Setting, shared: object, visible: str | None) -> Checks:
    """Of this worker: its process goes on for what may share it, and ends with the first that may not."""
    return Checks(setting)


def made_in_task(
    version: str, planned: PlannedCheck, setting: Setting, folder: str
) -> CheckOutcome:
    """A check that is made in a folder. Raises OSError where that is not here, Failure where another gradprobe is."""
    if version != __version__:
        node = os.uname().nodename
        raise Failure(f"gradprobe {__version__} is installed on {node}, and {version} asks")
    os.chdir(folder)
    if limits.SHARE not in os.environ:
        # A check has one core, and that share of what is free here.
        cores = os.cpu_count() or 1
        os.environ[limits.SHARE] = str(max(limits.LEAST, limits.limit() // cores))
        os.environ[limits.SHARED_BY] = str(cores)
    # Ray may give a worker another GPU for each task.
    return _checks(setting, planned.shared, os.environ.get(limits.VISIBLE)).make(planned)
