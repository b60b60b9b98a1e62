"""The ranks of one target: processes that are given their shards; and what they made of them, joined."""

import atexit
import datetime
import functools
import math
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..inputs.tensor_layouts import Inputs, place
from ..model.assignment import AS_SAVED
from ..model.case import Case
from ..model.failures import RanksFailure, TargetFailure, UsageFailure
from ..model.intermediates import MATRICES
from ..model.memory_finding import MemoryFinding
from ..model.number import listed, plural
from ..probing.experiment import Experiment
from ..probing.observe import Execution, observe
from ..processes.child import RAISED, Message
from ..processes.ended import Crash
from ..processes.process import Child
from ..processes.resource_limits import QuietTime, limit
from ..runtime.backend import make_interpreter_right, prepare_backend
from ..runtime.run import Outcome, Trace, expected_shapes
from ..targets.find import Target, find_target
from .shards import Shards, division, ranks_in_words

# Seconds: for all ranks to join, since an import may wait for a disk; without a sign of work; between two looks; and
# without a word from any rank on a GPU, where waiting for another keeps the processor as busy as work.
_JOIN, _QUIET, _LOOK, _LONGEST_ON_GPU = 180.0, 10.0, 0.1, 300.0
# What torch allows a collective: a check is more patient with work, and less with waiting.
_OF_LIBRARY = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class RankSetup:
    word: str  # the target's
    family: str
    device: str
    arch: str | None


@dataclass(frozen=True)
class Task:
    case: Case
    values: Mapping[str, Tensor]
    assigned: tuple[tuple[str, str], ...]
    fill: str
    unwritten: float
    banded: bool
    copies: bool


class RankWorker:
    """One rank: joins the others, and runs the target on its shard as often as it is asked to."""

    def __init__(self, setup: tuple[RankSetup, int, int, str]) -> None:
        """setup: with its number, that of all, and the folder in which they meet."""
        import torch.distributed as dist

        of, rank, ranks, folder = setup
        os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
        os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
        on_gpu = prepare_backend(of.device, of.arch) == "cuda"
        if on_gpu:
            torch.cuda.set_device(rank)
        else:
            torch.set_num_threads(1)
        backend, store = "cpu:gloo,cuda:nccl" if on_gpu else "gloo", f"file://{folder}/store"
        dist.init_process_group(
            backend, init_method=store, rank=rank, world_size=ranks, timeout=_OF_LIBRARY
        )
        target = find_target(of.word, of.family)
        world = {"rank": rank, "world_size": ranks, "group": dist.group.WORLD}
        self._target = replace(target, world=world)

    def __call__(self, task: Task) -> Execution:
        case, fill = task.case, task.fill
        make_interpreter_right(case)
        values = {name: value.to(case.device) for name, value in task.values.items()}
        of = Experiment(case, self._target, None, values, fill=fill, unwritten=task.unwritten)
        inputs = place(values, task.assigned, None, fill, case.shapes)
        execution = observe(of, inputs, banded=task.banded, copies=task.copies)
        trace = execution.outcome.trace
        if trace is not None:
            trace = Trace(
                {name: value.cpu() for name, value in trace.values.items()}, trace.sources
            )
        # Kernels, and what is about this process's memory, do not leave it.
        outcome = replace(execution.outcome, trace=trace, storages={}, findings=(), calls=())
        return replace(execution.without_tensors(), outcome=outcome)


class World:
    def __init__(self, setup: RankSetup, ranks: int) -> None:
        """Failure: there are too few GPUs, or a rank cannot join the others or import the target."""
        self._setup, self._on_gpu = setup, setup.device == "cuda"
        self.failed, self._is_over = "", False
        if self._on_gpu and torch.cuda.device_count() < ranks:
            there = plural(torch.cuda.device_count(), "GPU")
            words = f"--ranks {ranks}: each rank needs a GPU, and there is {there}"
            raise UsageFailure(words, "or --device cpu")
        self._folder, self._children = tempfile.mkdtemp(prefix="gradprobe-ranks-"), list[Child]()
        try:
            factory, setups = f"{__name__}:{RankWorker.__name__}", list[bytes]()
            for rank in range(ranks):
                own = pickle.dumps((setup, rank, ranks, self._folder))
                setups.append(pickle.dumps((factory, own, {})))
                self._children.append(Child())
            self._asked(setups, _JOIN)
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Sequence[Task]) -> list[Execution]:
        """RanksFailure where one died, raised, or waits for ever."""
        return self._asked(list(map(pickle.dumps, tasks)))

    def close(self) -> None:
        self._is_over = True
        for child in self._children:
            child.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.failed = self.failed or "its ranks have ended"

    def _asked(self, payloads: Sequence[bytes], patience: float = 0.0) -> list[Any]:
        """For `patience` seconds they may do nothing."""
        ask = functools.partial(
            Child.asked, limit=math.inf, most=limit(), told=lambda payload: None, echo=sys.stderr.write,
            unwanted=lambda: self._is_over,
        )  # fmt: skip
        threads = ThreadPoolExecutor(len(payloads))
        try:
            asked = list(map(functools.partial(threads.submit, ask), self._children, payloads))
            waiting = self._wait(asked, patience)
        finally:
            self._is_over = self._is_over or not all(each.done() for each in asked)
            threads.shutdown()
        found = [each.result() for each in asked]
        messages = [each for each in found if not isinstance(each, Crash)]
        if len(messages) < len(found):
            raise self._failure(found, waiting)
        answers = [pickle.loads(payload) for _, payload in messages]
        for rank, (kind, _) in enumerate(messages):
            if kind == RAISED:
                failure = answers[rank].failure
                failure.args = (f"rank {rank}: {failure.args[0]}",)
                raise failure
        return answers

    def _wait(self, asked: Sequence[Future[Message | Crash]], patience: float) -> list[int]:
        quiet = QuietTime([child.number for child in self._children])
        longest = max(_LONGEST_ON_GPU if self._on_gpu else math.inf, patience)
        begun = time.monotonic()
        while wait(asked, _LOOK, ALL_COMPLETED).not_done:
            # Waiting for one that died may keep the processor busy.
            if any(each.done() and isinstance(each.result(), Crash) for each in asked):
                longest = min(longest, time.monotonic() - begun + _QUIET)
            is_late = time.monotonic() - begun > longest
            if is_late or quiet.seconds() > max(_QUIET, patience):
                return [rank for rank, each in enumerate(asked) if not each.done()]
        return []

    def _failure(self, found: Sequence[Message | Crash], waiting: Sequence[int]) -> RanksFailure:
        subject, dead, raised = f"target {self._setup.word!r} ", list[str](), list[str]()
        at = defaultdict[str, list[int]](list)
        for rank, each in enumerate(found):
            if isinstance(each, Crash) and rank in waiting:
                place = f"at {each.last.sentence}" if each.last else "outside the target"
                at[place].append(rank)
            elif isinstance(each, Crash):
                dead.append(f"rank {rank} died: {each.words}{each.where}")
            elif each[0] == RAISED:
                message = pickle.loads(each[1]).message.replace(subject, "", 1)
                raised.append(f"rank {rank} {message}")
        for place, own in at.items():
            raised.append(f"{ranks_in_words(own)} wait{'s' * (len(own) == 1)} {place}")
        self.failed = "; ".join(dead or raised)  # one that died makes others raise, or wait
        return RanksFailure(f"{subject.strip()}: {self.failed}")


_worlds: dict[tuple[RankSetup, int], World] = {}


def world_of(setup: RankSetup, ranks: int) -> World:
    found = _worlds.get((setup, ranks))
    if found is None or found.failed:
        close_worlds()
        found = _worlds[setup, ranks] = World(setup, ranks)
    return found


@atexit.register
def close_worlds() -> None:
    while _worlds:
        _worlds.popitem()[1].close()


# --- one run of a target in all of them


def across_ranks(target: Target, case: Case) -> Target:
    """Failure where the case cannot be divided among them."""
    division(case)
    return replace(target, ranks=run_on_ranks)


def run_on_ranks(
    experiment: Experiment, inputs: Inputs, *, banded: bool, copies: bool
) -> Execution:
    case, target = experiment.case, experiment.target
    shards = division(case)
    setup = RankSetup(target.name, target.family, case.device, case.arch)
    # Where whole tensors lie as they were saved, shards of them are contiguous.
    assigned = tuple(one for one in inputs.assigned if one[1] != AS_SAVED)
    how = (assigned, experiment.fill, experiment.unwritten, banded, copies)
    tasks = list[Task]()
    for rank in range(shards.ranks):
        values = shards.cut(inputs.values, case.input_axes, rank)
        tasks.append(Task(shards.of_case(rank), values, *how))
    answers = world_of(setup, shards.ranks).run(tasks)
    memory = dict[Any, MemoryFinding]()
    for rank, answer in enumerate(answers):
        for one in answer.memory:
            found = replace(one, sentence=f"rank {rank}: {one.sentence}")
            memory[found.identity] = found
    outcome = _whole(shards, [one.outcome for one in answers])
    unwatched = _each(answer.unwatched for answer in answers)
    return Execution(inputs, outcome, tuple(memory.values()), unwatched)


def _whole(shards: Shards, outcomes: Sequence[Outcome]) -> Outcome:
    case = shards.case
    refusals = [f"rank {at}: {one.refused}" for at, one in enumerate(outcomes) if one.refused]
    backend = "NCCL" if case.device == "cuda" else "gloo"
    of_all = f"{case.ranks} ranks ({backend}), each with its part of the whole"
    several = dict[str, Any]()
    for name in ("kernels", "backends", "taken", "notes", "warned", "dots"):
        several[name] = _each(getattr(one, name) for one in outcomes)
    several["notes"] = (f"{of_all}: {case.shards} shards", *several["notes"])
    several |= {name: frozenset(several[name]) for name in ("backends", "taken")}
    if refusals:
        return Outcome(None, refusals[0], **several)
    traces = [one.trace for one in outcomes if one.trace]
    return Outcome(_whole_trace(shards, traces), None, **several)


def _each(several: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(one for each in several for one in each))


def _whole_trace(shards: Shards, traces: Sequence[Trace]) -> Trace:
    case, first = shards.case, traces[0].values
    if whole := [name for name in MATRICES if name in first]:
        returned = listed(whole)
        words = f"ranks return {returned}, of which none holds all keys"
        raise TargetFailure(words, f"leave out {returned}")
    if len({frozenset(trace.values) for trace in traces}) > 1:
        each = (f"rank {at} {', '.join(trace.values)}" for at, trace in enumerate(traces))
        words = f"ranks do not return the same intermediates: {'; '.join(each)}"
        raise TargetFailure(words, "return the same from each")
    values = dict[str, Tensor]()
    for name in filter(first.__contains__, expected_shapes(case)):
        parts = [trace.values[name] for trace in traces]
        values[name] = shards.joined(parts, case.axes(name)).to(case.device)
    return Trace(values, dict.fromkeys(values, "exported"))
