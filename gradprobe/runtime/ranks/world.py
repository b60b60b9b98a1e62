"""World: the ranks of one target as the check sees them: started or joined, given their shards, waited for, told of."""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import IO, Any

from ...model.failures import RanksFailure, UsageFailure
from ...model.number import plural, ranks_in_words
from ...processes.child import WHERE
from ...processes.ended import last_line, words_of
from .collective_calls import disagreements, read, unanswered
from .rank import CALLS, FOLDER, SOCKET, STACK, TAKEN, Answer, RankSetup, Task, die_with_parent, serve, started

# Seconds: for all ranks to join; in which the others answer once one has; without a sign of work, before and after one
# has answered; for a stack to be written; and between two looks.
_JOIN, _OTHERS, _QUIET, _QUIET_AFTER, _SAYING, _LOOK = 180.0, 60.0, 10.0, 2.0, 0.3, 0.1
# Without a word from any rank on a GPU, where waiting for another keeps the processor as busy as work.
_LONGEST_ON_GPU = 300.0
# Seconds in which the launcher tells how ranks ended.
_ENDING = 15.0
_MOST_WORDS = 2


@dataclass(eq=False)
class _Rank:
    number: int
    process: int
    connection: Connection
    stack: IO[str]
    """Where it writes where it is."""
    calls: IO[str]
    """Where it writes what it asks of torch.distributed."""
    answer: Answer | None = None
    gone: bool = False


@dataclass(eq=False)
class World:
    """Processes that work at one problem together."""

    setup: RankSetup
    ranks: int
    until: float | None = None
    """When the check is late, by `time.monotonic`."""
    failed: str = ""
    """What became of them, where they can do no more."""
    _members: list[_Rank] = field(default_factory=list)
    _failures: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = os.environ.get(FOLDER)
        self._folder = Path(given or tempfile.mkdtemp(prefix="gradprobe-ranks-"))
        self._is_own = given is None
        if (self._folder / TAKEN).exists():
            raise RanksFailure("the ranks that torchrun started worked for one process, which ended", "run it again")
        (self._folder / TAKEN).touch()
        self._agent: Any = None
        self._told: Connection | None = None
        self._listener = Listener(str(self._folder / SOCKET), "AF_UNIX", backlog=self.ranks)
        try:
            if self._is_own:
                self._start()
            self._join()
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Sequence[Task]) -> list[Answer]:
        """What each rank makes of its task.

        Raises:
            RanksFailure: one died, or waits for ever; or one raised, and others wait for it.
        """
        if self.failed:
            raise RanksFailure(self.failed)
        for member, task in zip(self._members, tasks, strict=True):
            member.answer = None
            self._send(member, pickle.dumps(task))
        return self._answers()

    def close(self) -> None:
        """Lets the ranks end; those that do not, and those that this process started, are ended."""
        for member in self._members:
            self._send(member, b"")
        if self._agent is not None:
            self._agent.join(0.0 if self.failed else 2.0)
            if self._agent.is_alive():
                self._end_ranks()
                self._agent.kill()
            self._agent.join()
        for member in self._members:
            for held in (member.connection, member.stack, member.calls):
                held.close()
        with contextlib.suppress(FileNotFoundError):
            self._listener.close()
        if self._is_own:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.failed = self.failed or "its ranks have ended"

    def _start(self) -> None:
        """Has torchrun's own launcher start them, in a process beside this one."""
        import torch

        on_gpu = self.setup.device == "cuda"
        if on_gpu and torch.cuda.device_count() < self.ranks:
            there = plural(torch.cuda.device_count(), "GPU")
            raise UsageFailure(f"--ranks {self.ranks}: each rank needs a GPU, and there is {there}", "or --device cpu")
        # A fork has torch imported already; but it cannot use a GPU, nor may it be made where there are other threads.
        method = "spawn" if on_gpu or sys.platform != "linux" else "fork"
        told, telling = multiprocessing.Pipe(duplex=False)
        context: Any = multiprocessing.get_context(method)
        self._agent = context.Process(target=launch, args=(self.ranks, str(self._folder), method, telling))
        with warnings.catch_warnings():
            # Python warns of threads, which a fork has none of: what they do here it does not wait for.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._agent.start()
        telling.close()
        self._told = told

    def _join(self) -> None:
        """Waits for every rank, and for each of them to have joined the others and imported the target."""
        over, message = time.monotonic() + _JOIN, pickle.dumps(self.setup)
        # `Listener` has no name for what it waits with.
        self._listener._listener._socket.settimeout(_LOOK)  # type: ignore[attr-defined]
        found: dict[int, _Rank] = {}
        while len(found) < self.ranks:
            try:
                connection = self._listener.accept()
            except TimeoutError:
                is_over = self._agent is not None and not self._agent.is_alive()
                if is_over or time.monotonic() > over:
                    missing = ranks_in_words(number for number in range(self.ranks) if number not in found)
                    why = self._ends() or f"{_JOIN:.0f} s are over"
                    raise RanksFailure(f"{missing} never came: {why}") from None
                continue
            number, process = pickle.loads(connection.recv_bytes())
            found[number] = _Rank(number, process, connection, self._opened(STACK, number), self._opened(CALLS, number))
        if self._is_own:  # all that is still needed of it is open
            shutil.rmtree(self._folder, ignore_errors=True)
        self._members = [found[number] for number in sorted(found)]
        for member in self._members:
            self._send(member, message)
        raised = {number: one.raised for number, one in enumerate(self._answers(_JOIN)) if one.raised}
        if raised:
            number, one = next(iter(raised.items()))
            raise type(one.failure)(f"rank {number}: {one.message}", one.way_out, one.details)

    def _opened(self, name: str, number: int) -> IO[str]:
        return open(self._folder / name.format(number), errors="replace")

    def _answers(self, patience: float = 0.0) -> list[Answer]:
        """Every rank's answer.

        Args:
            patience: seconds in which ranks may do nothing: an import may wait for a disk.
        """
        quiet = _Quiet([member.process for member in self._members])
        first, begun = 0.0, time.monotonic()
        while waiting := [member for member in self._members if member.answer is None and not member.gone]:
            heard = wait([member.connection for member in waiting], _LOOK)
            for member in waiting:
                if member.connection in heard:
                    self._hear(member)
            now = time.monotonic()
            first = first or (now if len(waiting) < self.ranks else 0.0)
            if heard:
                continue
            quiet_for = _QUIET_AFTER if first else _QUIET
            is_stuck = quiet.seconds() > max(quiet_for, patience) or (first and now - first > max(_OTHERS, patience))
            on_gpu = self.setup.device == "cuda" and now - begun > _LONGEST_ON_GPU
            if is_stuck or on_gpu or (self.until is not None and now > self.until):
                break
        if any(member.answer is None for member in self._members):
            self._fail()
        return [member.answer for member in self._members if member.answer is not None]

    def _hear(self, member: _Rank) -> None:
        try:
            member.answer = pickle.loads(member.connection.recv_bytes())
        except (EOFError, ConnectionError):
            member.gone = True

    def _fail(self) -> None:
        """Says where each rank is, and ends them.

        Raises:
            RanksFailure: always.
        """
        waiting = [member for member in self._members if member.answer is None and not member.gone]
        for member in waiting:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.process, WHERE)
        time.sleep(_SAYING)
        self._end_ranks()
        self._ends()
        calls = {member.number: read(member.calls.read()) for member in self._members}
        # A rank that dies makes others raise.
        ended, differing = self._of_dead() or self._of_raised(), list(disagreements(calls))
        words = [*ended, *self._of_waiting(waiting), *differing]
        # Where one has ended, or two disagree, the others wait for that.
        words += [] if ended or differing else islice(unanswered(calls), _MOST_WORDS)
        self.failed = "; ".join(words)
        raise RanksFailure(f"target {self.setup.word!r}: {self.failed}")

    def _of_dead(self) -> list[str]:
        told = []
        for member in (member for member in self._members if member.gone):
            code, line = self._failures.get(member.number), last_line(_own(member.stack))
            how = "its process ended" if code is None else words_of(code)
            told.append(f"rank {member.number} died: {how}{f', last at {line.sentence}' if line else ''}")
        return told

    def _of_raised(self) -> list[str]:
        raised = [(member.number, member.answer.raised) for member in self._members if member.answer]
        own = f"target {self.setup.word!r} "
        return [f"rank {number} {one.message.replace(own, '', 1)}" for number, one in raised if one is not None]

    def _of_waiting(self, waiting: Sequence[_Rank]) -> list[str]:
        """Where ranks wait, those at one line together."""
        at: dict[str, list[int]] = {}
        for member in waiting:
            line = last_line(_own(member.stack))
            at.setdefault(f"at {line.sentence}" if line else "outside the target", []).append(member.number)
        done = [member.number for member in self._members if member.answer and not member.answer.raised]
        words = [f"{ranks_in_words(own)} wait{'s' * (len(own) == 1)} {place}" for place, own in at.items()]
        return [*words, *([f"{ranks_in_words(done)} {'has' if len(done) == 1 else 'have'} ended"] if done else [])]

    def _ends(self) -> str:
        """What the launcher says of the ranks that ended, where it is ours and says anything."""
        if self._told is not None and self._told.poll(_ENDING):
            with contextlib.suppress(EOFError):
                told = self._told.recv()
                self._failures = told if isinstance(told, dict) else {}
                return told if isinstance(told, str) else ", ".join(words_of(code) for code in told.values())
        return ""

    def _end_ranks(self) -> None:
        for member in self._members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.process, signal.SIGKILL)

    def _send(self, member: _Rank, message: bytes) -> None:
        # A rank that is gone is noticed when its answer is read.
        with contextlib.suppress(OSError):
            member.connection.send_bytes(message)


def _own(stack: IO[str]) -> str:
    """The stack of a rank without what it was forked from."""
    return stack.read().partition(f" in {serve.__name__}\n")[0]


class _Quiet:
    """For how long some processes have done next to nothing."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes, self._since = processes, time.monotonic()
        self._used = self._ticks()

    def seconds(self) -> float:
        now, used = time.monotonic(), self._ticks()
        # Threads that wait look around now and then.
        if used is None or self._used is None or abs(used - self._used) > 0.05 * (now - self._since) * _TICKS + 2:
            self._used, self._since = used, now
        return now - self._since

    def _ticks(self) -> int | None:
        """The processor time of those that live; None where nobody counts it, or where others work for them."""
        total = 0
        for process in self._processes:
            try:
                told = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                if Path(f"/proc/{process}/task/{process}/children").read_text().strip():
                    return None  # a compiler may work for it
            except OSError:
                continue
            total += int(told[11]) + int(told[12])
        return total or None


_TICKS = os.sysconf("SC_CLK_TCK")


def launch(ranks: int, folder: str, method: str, telling: Connection) -> None:
    """Starts all ranks by torchrun's own code, and tells how those ended that failed: exit codes, or a sentence."""
    die_with_parent()
    logging.getLogger("torch").setLevel(logging.CRITICAL + 1)
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=os.path.basename(folder),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=_LOOK,
        start_method=method,
        logs_specs=DefaultLogsSpecs(log_dir=os.path.join(folder, "logs")),
    )
    try:
        elastic_launch(config, started)(folder)
    except ChildFailedError as error:
        telling.send({number: failure.exitcode for number, failure in error.failures.items()})
    except Exception as error:
        telling.send(f"torchrun's launcher raised {type(error).__name__}: {error}")


_worlds: dict[tuple[Any, ...], World] = {}


def world_of(setup: RankSetup, ranks: int) -> World:
    """The ranks of a target: those of the last run, where they can go on, or new ones."""
    key = (setup.word, setup.family, setup.device, ranks)
    found = _worlds.get(key)
    if found is None or (found.failed and FOLDER not in os.environ):
        close_worlds()
        found = _worlds[key] = World(setup, ranks)
        atexit.unregister(close_worlds)
        atexit.register(close_worlds)
    found.until = _until[-1]
    return found


def close_worlds() -> None:
    """Ends all ranks."""
    while _worlds:
        _, world = _worlds.popitem()
        world.close()


_until: list[float | None] = [None]


@contextlib.contextmanager
def late_after(seconds: float | None) -> Iterator[None]:
    """While open, ranks that take so long are told of before this process itself is late."""
    _until.append(None if seconds is None else time.monotonic() + 0.8 * seconds)
    try:
        yield
    finally:
        _until.pop()
