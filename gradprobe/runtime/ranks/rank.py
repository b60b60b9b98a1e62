"""One rank: a process that joins the others, and runs the target on its shard as often as it is asked to."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.case import Case
from ...model.memory_finding import MemoryFinding
from ...processes.child import WHERE, worker_of
from ...processes.ended import WorkerException, raised_of

if TYPE_CHECKING:
    from torch import Tensor

    from ...targets.find import Target
    from ..run import Outcome

_PR_SET_PDEATHSIG = 1
_AGAIN = 0.1  # seconds between two attempts to reach the check
# Seconds that the library allows a collective: the check is more patient with work, and less with waiting.
_OF_LIBRARY = 3600.0
FOLDER = "_GRADPROBE_RANKS"
"""The variable that holds the folder of ranks which somebody else has started."""
# In the folder that a check and its ranks share.
SOCKET, CODE, PARENT, TAKEN, STACK, CALLS = "socket", "code", "parent", "taken", "stack.{}", "calls.{}"


@dataclass(frozen=True)
class RankSetup:
    """What a rank needs to know before the first run."""

    word: str
    """The target's."""
    family: str
    device: str
    arch: str | None
    path: tuple[str, ...]
    """Where modules are sought."""
    worker: str
    """`package.module:Class`: made of the target, it answers tasks."""


@dataclass(frozen=True)
class Task:
    """A run of one shard."""

    case: Case
    """Of the shard."""
    keys: int | None
    """Those of the whole, where ranks hold a part of them."""
    values: Mapping[str, Tensor]
    assigned: tuple[tuple[str, str], ...]
    fill: str
    unwritten: float
    banded: bool
    copies: bool


@dataclass(frozen=True)
class Answer:
    """What came of it."""

    outcome: Outcome | None = None
    """None where it raised. Its kernels are told by name."""
    matrices: Mapping[str, Tensor] = field(default_factory=dict)
    """P, dP and dS of the shard's rows and all keys, where the target returned any."""
    memory: tuple[MemoryFinding, ...] = ()
    unwatched: tuple[str, ...] = ()
    raised: WorkerException | None = None


def started(folder: str) -> None:
    """`serve` in a rank that this tool started: where another one ends, the launcher ends it; the check does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(folder)


def serve(folder: str) -> None:
    """Works for one check after another, until it is told to end, or the process that shows their results has.

    Ranks that this tool started work for one check.
    """
    die_with_parent()
    rank = int(os.environ["RANK"])
    calls = os.open(Path(folder, CALLS.format(rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(Path(folder, STACK.format(rank)), "w+") as stack:
        faulthandler.enable(stack)
        faulthandler.register(WHERE, stack, all_threads=True)
        while not Path(folder, CODE).exists():
            try:
                connection = Client(str(Path(folder, SOCKET)), "AF_UNIX")
            except OSError:
                if not is_led(folder):
                    return
                time.sleep(_AGAIN)
                continue
            with connection, contextlib.suppress(EOFError, ConnectionError):
                _answer(connection, rank, calls)
            return


def die_with_parent() -> None:
    """Has the kernel end this process with the one that started it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_led(folder: str) -> bool:
    """Whether the process that shows the results is there."""
    try:
        os.kill(int(Path(folder, PARENT).read_text()), 0)
    except (ValueError, OSError):
        return False
    return True


def _answer(connection: Connection, rank: int, calls: int) -> None:
    """Answers until an empty message comes.

    Args:
        calls: the descriptor that calls of torch.distributed are written to.
    """
    connection.send_bytes(pickle.dumps((rank, os.getpid())))
    setup: RankSetup = pickle.loads(connection.recv_bytes())
    sys.path[:] = [*setup.path, *(entry for entry in sys.path if entry not in setup.path)]
    try:
        run = _prepared(setup, rank, calls)
        connection.send_bytes(pickle.dumps(Answer()))
    except BaseException as error:
        connection.send_bytes(pickle.dumps(Answer(raised=raised_of(error))))
        return
    while message := connection.recv_bytes():
        task = pickle.loads(message)
        try:
            answer = run(task)
        except BaseException as error:
            answer = Answer(raised=raised_of(error))
        connection.send_bytes(pickle.dumps(answer))
    _leave()


def _leave() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def _prepared(setup: RankSetup, rank: int, calls: int) -> Callable[[Task], Answer]:
    """Joins the group of all ranks, and imports the target."""
    import datetime

    import torch
    import torch.distributed as dist

    from ...targets.find import find_target
    from ..backend import prepare_backend
    from .collective_calls import record

    on_gpu = prepare_backend(setup.device, setup.arch) == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    else:
        torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=_OF_LIBRARY)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=timeout)
    begin = record(rank, calls)
    target = find_target(setup.word, setup.family)
    worker = worker_of(setup.worker, replace(target, world=_world(target, on_gpu=on_gpu)))

    def run(task: Task) -> Answer:
        begin()
        return worker(task)  # type: ignore[no-any-return]

    return run


def _world(target: Target, *, on_gpu: bool) -> dict[str, Any]:
    """What the target can be passed of the world that it works in."""
    import torch.distributed as dist

    world: dict[str, Any] = {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "group": dist.group.WORLD}
    if "mesh" in target.takes:
        from torch.distributed.device_mesh import init_device_mesh

        world["mesh"] = init_device_mesh("cuda" if on_gpu else "cpu", (dist.get_world_size(),))
    return world
