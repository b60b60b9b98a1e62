"""One rank: a process that joins the others, and runs the target on its shard as often as it is asked to."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import functools
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch import Tensor

from ..inputs.tensor_layouts import place
from ..model.case import Case
from ..model.memory_finding import MemoryFinding
from ..probing.experiment import Experiment
from ..probing.observe import observe
from ..processes.child import WHERE, dies_with_parent
from ..processes.ended import WorkerException, raised_of
from ..runtime.backend import make_interpreter_right, prepare_backend
from ..runtime.run import Outcome
from ..targets.find import Target, find_target

# Seconds that the library allows a collective: the check is more patient with work, and less with waiting.
_OF_LIBRARY = 3600.0
# In the folder that a check and its ranks share: by the number of a rank where it is, and how they find one another.
STACK, STORE = "stack.{}", "store"


@dataclass(frozen=True)
class RankSetup:
    word: str
    """The target's."""
    family: str
    device: str
    arch: str | None
    path: tuple[str, ...]
    """Where modules are sought."""


@dataclass(frozen=True)
class Task:
    """A run of one shard."""

    case: Case
    """Of the shard."""
    values: Mapping[str, Tensor]
    assigned: tuple[tuple[str, str], ...]
    fill: str
    unwritten: float
    banded: bool
    copies: bool


@dataclass(frozen=True)
class Answer:
    outcome: Outcome | None = None
    """None where it raised. Its kernels are told by name."""
    memory: tuple[MemoryFinding, ...] = ()
    unwatched: tuple[str, ...] = ()
    raised: WorkerException | None = None


def serve(setup: RankSetup, rank: int, ranks: int, folder: str, connection: Connection) -> None:
    """Works until the other end of a connection is closed: a process of its own, made so by `World`."""
    dies_with_parent()
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
    sys.path[:] = [*setup.path, *(entry for entry in sys.path if entry not in setup.path)]
    with open(Path(folder, STACK.format(rank)), "w") as stack:
        faulthandler.enable(stack)
        faulthandler.register(WHERE, stack, all_threads=True)
        with contextlib.suppress(EOFError, ConnectionError):
            run = _answered(connection, lambda: _joined(setup, rank, ranks, folder))
            while run is not None:
                task = pickle.loads(connection.recv_bytes())
                _answered(connection, lambda: run(task))  # noqa: B023 - called at once
        os._exit(0)  # what the group's threads do then is nobody's concern


def _answered(connection: Connection, work: Callable[[], Any]) -> Any:
    """Answers with what some work gives, or raised; what it gave, None where it raised."""
    try:
        found = work()
        answer = found if isinstance(found, Answer) else Answer()
    except BaseException as error:
        found, answer = None, Answer(raised=raised_of(error))
    connection.send_bytes(pickle.dumps(answer))
    return found


def _joined(setup: RankSetup, rank: int, ranks: int, folder: str) -> Callable[[Task], Answer]:
    """Joins the group, and imports the target after it; gives what runs a task."""
    import torch
    import torch.distributed as dist

    on_gpu = prepare_backend(setup.device, setup.arch) == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo", init_method=f"file://{folder}/{STORE}", rank=rank, world_size=ranks,
        timeout=datetime.timedelta(seconds=_OF_LIBRARY),
    )  # fmt: skip
    target = find_target(setup.word, setup.family)
    world: dict[str, Any] = {"rank": rank, "world_size": ranks, "group": dist.group.WORLD}
    if "mesh" in target.takes:
        from torch.distributed.device_mesh import init_device_mesh

        world["mesh"] = init_device_mesh("cuda" if on_gpu else "cpu", (ranks,))
    return functools.partial(_run, replace(target, world=world))


def _run(target: Target, task: Task) -> Answer:
    case = task.case
    make_interpreter_right(case)
    values = {name: value.to(case.device) for name, value in task.values.items()}
    experiment = Experiment(case, target, None, values, fill=task.fill, unwritten=task.unwritten)
    inputs = place(values, task.assigned, None, task.fill, case.shapes)
    execution = observe(experiment, inputs, banded=task.banded, copies=task.copies)
    outcome, trace = execution.outcome, execution.outcome.trace
    if trace is not None:
        trace = replace(trace, values={name: value.cpu() for name, value in trace.values.items()})
    # Kernels, and what is about this process's memory, do not leave it.
    portable = Outcome(
        trace, outcome.refused, outcome.kernels, outcome.backends, outcome.taken, outcome.notes,
        warned=outcome.warned, dots=outcome.dots,
    )  # fmt: skip
    return Answer(portable, execution.memory, execution.unwatched)
