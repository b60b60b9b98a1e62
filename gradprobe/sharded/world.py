"""World: the ranks of one target as the check sees them: started, given their shards, waited for, told of."""

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ..model.failures import RanksFailure, UsageFailure
from ..model.number import plural
from ..processes.child import WHERE
from ..processes.ended import last_line, words_of
from .rank import STACK, Answer, RankSetup, Task, serve
from .shards import ranks_in_words

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
            member.process.join(0.0 if self.failed else _ENDING)
            member.process.kill()
            member.process.join()
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
        for member in self._members:
            member.process.join(_ENDING if member.is_gone else 0.0)
            member.process.kill()
            member.process.join()
        # A rank that dies makes others raise.
        ended = list(self._of_dead()) or list(self._of_raised())
        self.failed = "; ".join([*ended, *self._of_waiting(waiting)])
        return RanksFailure(f"target {self._setup.word!r}: {self.failed}")

    def _of_dead(self) -> Iterator[str]:
        for member in self._members:
            if member.is_gone:
                place = self._place(member)
                last = f", last {place}" if place else ""
                yield f"rank {member.number} died: {words_of(member.process.exitcode)}{last}"

    def _of_raised(self) -> Iterator[str]:
        subject = f"target {self._setup.word!r} "
        for member in self._members:
            if member.answer is not None and (raised := member.answer.raised) is not None:
                yield f"rank {member.number} {raised.message.replace(subject, '', 1)}"

    def _of_waiting(self, waiting: Sequence[_Rank]) -> Iterator[str]:
        """Where ranks wait, those at one line together."""
        at: dict[str, list[int]] = {}
        for member in waiting:
            at.setdefault(self._place(member) or "outside the target", []).append(member.number)
        for place, own in at.items():
            yield f"{ranks_in_words(own)} wait{'s' * (len(own) == 1)} {place}"
        answers = [(member.number, member.answer) for member in self._members]
        done = [number for number, answer in answers if answer and not answer.raised]
        if done:
            yield f"{ranks_in_words(done)} {'has' if len(done) == 1 else 'have'} ended"

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
        atexit.unregister(close_worlds)
        atexit.register(close_worlds)
    return found


def close_worlds() -> None:
    while _worlds:
        _worlds.popitem()[1].close()
