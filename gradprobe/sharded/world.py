"""World: the ranks of one target, started, given their shards and waited for; and what they made of them joined."""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..inputs.tensor_layouts import Inputs
from ..model.assignment import AS_SAVED
from ..model.case import Case
from ..model.failures import RanksFailure, TargetFailure, UsageFailure
from ..model.intermediates import MATRICES
from ..model.number import listed, plural
from ..probing.experiment import Experiment
from ..probing.observe import Execution
from ..processes.child import WHERE
from ..processes.ended import last_line, words_of
from ..runtime.run import Outcome, Trace, expected_shapes
from ..targets.find import Target
from .rank import STACK, Answer, RankSetup, Task, serve
from .shards import Shards, division, ranks_in_words

# Seconds: for all ranks to join, since an import may wait for a disk; without a sign of work, before and after one has
# answered; for a stack to be written; and between two looks.
_JOIN, _QUIET, _QUIET_AFTER, _SAYING, _LOOK = 180.0, 10.0, 2.0, 0.3, 0.1
# In which a process ends that has closed what it answers by, or is to end.
_ENDING = 2.0
# Without a word from any rank on a GPU, where waiting for another keeps the processor as busy as work.
_LONGEST_ON_GPU = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(eq=False)
class _Rank:
    number: int
    process: Any
    connection: Connection
    answer: Answer | None = None
    is_gone: bool = False

    def hear(self) -> None:
        try:
            self.answer = pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self.is_gone = True

    def end(self, patience: float) -> None:
        self.process.join(patience)
        self.process.kill()
        self.process.join()


def raise_first(answers: Sequence[Answer]) -> None:
    """Raises the first Failure of a rank, with its number."""
    for rank, answer in enumerate(answers):
        if answer.raised is not None:
            failure = answer.raised.failure
            failure.args = (f"rank {rank}: {failure.args[0]}",)
            raise failure


class World:
    """Processes that work at one problem together."""

    def __init__(self, setup: RankSetup, ranks: int) -> None:
        """
        Raises:
            UsageFailure: there are fewer GPUs than ranks.
            Failure: a rank cannot join the others, or import the target.
        """
        self._setup, self._on_gpu = setup, setup.device == "cuda"
        self.failed = ""
        """What became of them, where they can do no more."""
        if self._on_gpu and torch.cuda.device_count() < ranks:
            there = plural(torch.cuda.device_count(), "GPU")
            words = f"--ranks {ranks}: each rank needs a GPU, and there is {there}"
            raise UsageFailure(words, "or --device cpu")
        self._folder, self._members = tempfile.mkdtemp(prefix="gradprobe-ranks-"), list[_Rank]()
        try:
            for rank in range(ranks):
                self._members.append(self._started(rank, ranks))
            raise_first(self._answers(_JOIN))
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Sequence[Task]) -> list[Answer]:
        """What each rank makes of its task; RanksFailure where one died, raised, or waits for ever."""
        for member, task in zip(self._members, tasks, strict=True):
            member.answer = None
            with contextlib.suppress(OSError):  # a rank that is gone is noticed as it is read
                member.connection.send_bytes(pickle.dumps(task))
        return self._answers()

    def close(self) -> None:
        for member in self._members:
            member.connection.close()
        for member in self._members:
            member.end(0.0 if self.failed else _ENDING)
        shutil.rmtree(self._folder, ignore_errors=True)
        self.failed = self.failed or "its ranks have ended"

    def _started(self, rank: int, ranks: int) -> _Rank:
        # A fork has torch imported already; but it cannot use a GPU.
        method = "spawn" if self._on_gpu or sys.platform != "linux" else "fork"
        context: Any = multiprocessing.get_context(method)
        own, theirs = context.Pipe()
        words = (self._setup, rank, ranks, self._folder, theirs)
        process = context.Process(target=serve, args=words)
        with warnings.catch_warnings():
            # Python warns of threads, which a fork has none of: what they do here it does not wait for.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return _Rank(rank, process, own)

    def _answers(self, patience: float = 0.0) -> list[Answer]:
        """Every rank's answer; for `patience` seconds they may do nothing."""
        quiet = _QuietTime([member.process.pid for member in self._members])
        longest = _LONGEST_ON_GPU if self._on_gpu else math.inf
        last, waiting = time.monotonic(), list(self._members)
        while waiting:
            heard = wait([member.connection for member in waiting], _LOOK)
            for member in waiting:
                if member.connection in heard:
                    member.hear()
            is_first = len(waiting) == len(self._members)
            waiting = [one for one in waiting if one.answer is None and not one.is_gone]
            if heard:
                last = time.monotonic()
                continue
            is_quiet = quiet.seconds() > max(_QUIET if is_first else _QUIET_AFTER, patience)
            if is_quiet or time.monotonic() - last > max(longest, patience):
                break
        answers = [member.answer for member in self._members if member.answer is not None]
        if len(answers) < len(self._members):
            raise self._failure(waiting)
        return answers

    def _failure(self, waiting: Sequence[_Rank]) -> RanksFailure:
        """Where each rank is, or how it ended; all are ended."""
        for member in waiting:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.process.pid, WHERE)
        time.sleep(_SAYING)
        subject, dead, raised, done = f"target {self._setup.word!r} ", [], [], []
        at: dict[str, list[int]] = {}
        for member in self._members:
            member.end(_ENDING if member.is_gone else 0.0)
            name, place, answer = f"rank {member.number}", self._place(member), member.answer
            if member.is_gone:
                last = f", last {place}" if place else ""
                dead.append(f"{name} died: {words_of(member.process.exitcode)}{last}")
            elif answer is None:
                at.setdefault(place or "outside the target", []).append(member.number)
            elif answer.raised is None:
                done.append(member.number)
            else:
                raised.append(f"{name} {answer.raised.message.replace(subject, '', 1)}")
        told = dead or raised  # a rank that dies makes others raise
        for place, own in at.items():
            told.append(f"{ranks_in_words(own)} wait{'s' * (len(own) == 1)} {place}")
        if done:
            told.append(f"{ranks_in_words(done)} {'has' if len(done) == 1 else 'have'} ended")
        self.failed = "; ".join(told)
        return RanksFailure(f"{subject.strip()}: {self.failed}")

    def _place(self, member: _Rank) -> str:
        """The user's line of a rank's stack, without what it was forked from; "" where it is in none."""
        path = Path(self._folder, STACK.format(member.number))
        written = path.read_text(errors="replace") if path.exists() else ""
        line = last_line(written.partition(f" in {serve.__name__}\n")[0])
        return f"at {line.sentence}" if line else ""


class _QuietTime:
    """For how long some processes have done next to nothing."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes, self._since = processes, time.monotonic()
        self._used = self._ticks()

    def seconds(self) -> float:
        now, before, used = time.monotonic(), self._used, self._ticks()
        # Threads that wait look around now and then.
        idle = 0.05 * (now - self._since) * _TICKS + 2
        if used is None or before is None or abs(used - before) > idle:
            self._used, self._since = used, now
        return now - self._since

    def _ticks(self) -> int | None:
        """The processor time of those that live; None where nobody counts it, or where others work for them."""
        total = 0
        for process in self._processes:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                if Path(f"/proc/{process}/task/{process}/children").read_text().strip():
                    return None  # a compiler may work for it
                total += int(fields[11]) + int(fields[12])
        return total or None


_worlds: dict[tuple[RankSetup, int], World] = {}


def world_of(setup: RankSetup, ranks: int) -> World:
    """The ranks of a target: those of the last run, where they can go on, or new ones."""
    found = _worlds.get((setup, ranks))
    if found is None or found.failed:
        close_worlds()
        found = _worlds[setup, ranks] = World(setup, ranks)
    return found


@atexit.register
def close_worlds() -> None:
    while _worlds:
        _worlds.popitem()[1].close()


def across_ranks(target: Target, case: Case) -> Target:
    """A target that ranks run; Failure where the case cannot be divided among them."""
    division(case)
    return replace(target, ranks=run_on_ranks)


def run_on_ranks(
    experiment: Experiment, inputs: Inputs, *, banded: bool, copies: bool
) -> Execution:
    """Gives each rank its shard, and puts together what comes, as of one target that was given the whole."""
    case, target = experiment.case, experiment.target
    shards = division(case)
    setup = RankSetup(target.name, target.family, case.device, case.arch, tuple(sys.path))
    # Where whole tensors lie as they were saved, shards of them are contiguous.
    assigned = tuple(one for one in inputs.assigned if one[1] != AS_SAVED)
    tasks = [
        Task(
            shards.of_case(rank), shards.cut(inputs.values, case.input_axes, rank), assigned, experiment.fill,
            experiment.unwritten, banded, copies,
        )
        for rank in range(shards.ranks)
    ]  # fmt: skip
    answers = world_of(setup, shards.ranks).run(tasks)
    raise_first(answers)
    found = [
        replace(one, sentence=f"rank {rank}: {one.sentence}")
        for rank, answer in enumerate(answers)
        for one in answer.memory
    ]
    memory = {one.identity: one for one in found}
    outcome = _joined(shards, [one.outcome for one in answers if one.outcome is not None])
    unwatched = _each(answer.unwatched for answer in answers)
    return Execution(inputs, outcome, tuple(memory.values()), unwatched)


def _joined(shards: Shards, outcomes: Sequence[Outcome]) -> Outcome:
    case = shards.case
    refusals = [f"rank {at}: {one.refused}" for at, one in enumerate(outcomes) if one.refused]
    backend, what = "NCCL" if case.device == "cuda" else "gloo", f"{case.shards} shards"
    note = f"{case.ranks} ranks ({backend}), each with its part of the whole: {what}"
    return Outcome(
        trace=None if refusals else _whole(shards, [one.trace for one in outcomes if one.trace]),
        refused=refusals[0] if refusals else None,
        kernels=_each(one.kernels for one in outcomes),
        backends=frozenset().union(*(one.backends for one in outcomes)),
        taken=frozenset().union(*(one.taken for one in outcomes)),
        notes=(note, *_each(one.notes for one in outcomes)),
        warned=_each(one.warned for one in outcomes),
        dots=_each(one.dots for one in outcomes),
    )


def _each(several: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(one for each in several for one in each))


def _whole(shards: Shards, traces: Sequence[Trace]) -> Trace:
    case, first = shards.case, traces[0].values
    if whole := [name for name in MATRICES if name in first]:
        returned = listed(whole)
        words = f"ranks return {returned}, of which none holds all keys"
        raise TargetFailure(words, f"leave out {returned}")
    for number, own in enumerate(trace.values for trace in traces):
        if own.keys() != first.keys():
            came = f"rank 0 {', '.join(first)}, rank {number} {', '.join(own)}"
            words = f"ranks do not return the same intermediates: {came}"
            raise TargetFailure(words, "return the same from each")
    values = {
        name: shards.joined([trace.values[name] for trace in traces], case.axes(name)).to(case.device)
        for name in expected_shapes(case) if name in first
    }  # fmt: skip
    return Trace(values, dict.fromkeys(values, "exported"))
