"""Quick trials: an edit is first tried on one program of one launch, whose stores are held against the reference.

Forks run the small case once and note its launches. They then run single programs again, each on the memory as it was
before, and count what they leave wrong.
"""

from __future__ import annotations

import ast
import signal
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...model.failures import Failure
from ...numerics.compare import judge_whole
from ...numerics.evidence import Measured
from ...probing.experiment import Experiment
from ...probing.runs import records_of
from ...processes.forks import ParallelWork
from ...source.kernel_file import KernelFile
from ...source.rewrites.spots import Edits
from ...source.text import Edit, edited
from .trial import EditResult

if TYPE_CHECKING:
    from ...frontends.triton.interpreter.launch_replay import Changes, Codes, RecordedLaunch, Replay

Answer = tuple[bool, float]
"""Whether an edit makes less wrong, and which share of a whole trial it took."""
Program = tuple[int, ...]
Files = Mapping[str, tuple[KernelFile, str]]
"""By name: the file, and under which name its code is loaded."""
# The share of a whole trial that a quick one counts as, and of how many accesses.
_LEAST, _FEW = 1 / 20, 16
# Programs of a launch among which the one that tells is sought.
_PROGRAMS = 64
# How many times as many accesses as without an edit a program may make, and how many besides; then seconds of a
# processor, for what makes none.
_TIMES, _BESIDES, _SECONDS = 4, 64, 10.0
_MOST = 1 << 30
# Memory around launches that is kept, of a case; none is where there is more.
_MOST_BYTES = 1 << 28
# Forks at once.
_AT_ONCE = 2


class QuickTrials:
    """Forks that answer, in turn, whether an edit makes less wrong in the small case than what was run there."""

    def __init__(self, begin: Callable[[], Experiment], base: Edits, files: Files) -> None:
        """Args:
        begin: gives the experiment of the small case, of a copy of the first of the files that has the base's edits.
        """
        self._forks, self._asked = list[tuple[Connection, ParallelWork[None]]](), 0
        for _ in range(_AT_ONCE):
            pipe, there = Pipe()
            self._forks.append((pipe, ParallelWork(partial(_serve, there, begin, base, files))))
            there.close()

    def ask(self, file: KernelFile, edits: Edits, until: float) -> Callable[[], Answer | None]:
        """Begins to try an edit; gives what waits for the answer: None where the edit is to be tried as a whole.

        Answers are to be awaited in the order of the edits. There is none any more once an edit has ended the fork.
        """
        pipe, _ = self._forks[self._asked % _AT_ONCE]
        self._asked += 1
        with suppress(OSError):
            pipe.send((file.file, edits))
        return partial(_answer, pipe, until)

    def close(self) -> None:
        """Ends the forks."""
        for pipe, fork in self._forks:
            fork.__exit__()
            pipe.close()


def _answer(pipe: Connection, until: float) -> Answer | None:
    with suppress(EOFError, OSError):
        if pipe.poll(max(0.0, until - time.monotonic())):
            return pipe.recv()  # type: ignore[no-any-return]
    return None


def _serve(pipe: Connection, begin: Callable[[], Experiment], base: Edits, files: Files) -> None:
    """Answers edit after edit, until it is ended."""
    from ...frontends.triton.interpreter.launch_replay import Replay, recorded_kernels

    with recorded_kernels(_MOST_BYTES) as launches:
        try:
            record = next(records_of(begin()))
        except Failure:
            return
    if record.run.measured is None:
        return
    ran = launches[: len(record.executions[0].outcome.calls)]
    with Replay().opened() as replay:
        recorded = _RecordedCase(replay, ran, record.run.measured, files, base)
        while True:
            name, edits = pipe.recv()
            pipe.send(recorded.tried(files[name][0], edits))


@dataclass(frozen=True)
class _StoredResult:
    """A result as an argument of a launch holds it."""

    name: str
    tensor: Tensor
    expected: Tensor
    bound: Tensor
    exact: bool

    @property
    def storage(self) -> int:
        return self.tensor.untyped_storage().data_ptr()

    @property
    def wrong(self) -> int:
        return int((~judge_whole(self.tensor, self.expected, self.bound, exact=self.exact).right).sum())


def _results_in(launch: RecordedLaunch, measured: Measured) -> Iterator[_StoredResult]:
    """The results that arguments of a launch hold after it, element for element as the target returned them."""
    launch.restore(launch.after)
    comparison, values = measured.comparison, measured.raw.values
    names = comparison.expected.keys() & values.keys() if measured.unread is None else ()
    for tensor in launch.tensors:
        found = dict[str, _StoredResult]()
        for name in names if tensor.is_floating_point() else ():
            parts = values[name], comparison.expected[name], comparison.bounds[name]
            for is_turned in (False, True) if parts[0].dim() > 2 else (False,):
                laid = [part.transpose(1, 2) if is_turned else part for part in parts]
                if laid[0].numel() == tensor.numel():
                    came, expected, bound = (part.reshape(tensor.shape) for part in laid)
                    if _are_same(tensor.to(came.dtype), came):
                        found[name] = _StoredResult(name, tensor, expected, bound, comparison.precision.exact)
        if len(found) == 1:
            yield from found.values()


def _are_same(here: Tensor, there: Tensor) -> bool:
    return bool(((here == there) | (here.isnan() & there.isnan())).all())


@dataclass
class _Witness:
    """What is run again of a launch that leaves results wrong."""

    results: list[_StoredResult]
    filled: list[_StoredResult]
    """Those where what should stand there is put before, so that what they do not store is right."""
    programs: list[Program]
    came: EditResult
    """What comes of them without the edit."""
    of_all: EditResult
    """What comes of all programs, where nothing is put there."""


class _RecordedCase:
    """The launches of a case, and what tells of each that leaves a result wrong."""

    def __init__(
        self, replay: Replay, launches: Sequence[RecordedLaunch], measured: Measured, files: Files, base: Edits
    ) -> None:
        self._replay, self._launches, self._files = replay, launches, files
        self._base = self._codes(next(iter(files.values()))[0], base) or {}
        self._work = list[int]()
        """The accesses of each launch; 0 of one that does not come again."""
        self._witnesses = dict[int, _Witness]()
        for at, launch in enumerate(launches):
            results = list(_results_in(launch, measured))
            launch.restore(launch.before)
            is_same = self._ran(launch, self._base, launch.programs, _MOST) and not launch.changes()
            results = [each for each in results if each.storage in self._replay.written]
            self._work.append(self._replay.accesses if is_same else 0)
            if is_same and any(each.wrong for each in results):
                self._witnesses[at] = self._witness(launch, results)

    def _witness(self, launch: RecordedLaunch, results: list[_StoredResult]) -> _Witness:
        """Of results that are stored and never read the program that leaves most of them wrong; else all programs."""
        plain = [each for each in results if each.storage not in self._replay.read]
        of_all = self._counted(launch, results, self._base, launch.programs, _MOST) or EditResult()
        found = _Witness(results, [], launch.programs, of_all, of_all)
        most = 0
        for program in launch.programs[:_PROGRAMS] if any(each.wrong for each in plain) else ():
            came = self._counted(launch, plain, self._base, [program], _MOST, filled=plain) or EditResult()
            if sum(came.wrong.values()) > most:
                found, most = _Witness(results, plain, [program], came, of_all), sum(came.wrong.values())
        return found

    def tried(self, file: KernelFile, edits: Edits) -> Answer | None:
        """Whether an edit makes less wrong; None where no program tells.

        What it changes in launches before the one that tells runs too, and that one finds what they leave.
        """
        try:
            codes = self._codes(file, edits)
        except (SyntaxError, ValueError):
            return False, _LEAST
        if codes is None:
            return None
        changed = {key for key, code in codes.items() if self._base.get(key) != code}
        touched = [at for at, launch in enumerate(self._launches) if changed & launch.functions]
        later = [at for at in self._witnesses if touched and at >= touched[0]]
        last = next((at for at in later if at in touched), next(iter(later), None))
        if last is None or not all(self._work[touched[0] : last + 1]):
            return None
        changes: Changes = {}
        done = 0
        for at in range(touched[0], last):
            launch = self._launches[at]
            launch.restore(launch.before)
            launch.overlay(changes)
            is_run = self._ran(launch, codes, launch.programs, self._work[at])
            done += self._replay.accesses
            if not is_run:
                return False, self._cost(done)
            changes |= launch.changes()
        launch, witness = self._launches[last], self._witnesses[last]
        work, filled = self._work[last], witness.filled
        if filled:
            came = self._counted(launch, filled, codes, witness.programs, work, changes, filled)
            done += self._replay.accesses
            if came is None or not came.is_better_than(witness.came):
                return False, self._cost(done)
        came = self._counted(launch, witness.results, codes, launch.programs, work, changes)
        done += self._replay.accesses
        return came is not None and came.is_better_than(witness.of_all), self._cost(done)

    @staticmethod
    def _cost(accesses: int) -> float:
        return _LEAST * max(1.0, accesses / _FEW)

    def _counted(
        self,
        launch: RecordedLaunch,
        results: Sequence[_StoredResult],
        codes: Codes,
        programs: Sequence[Program],
        work: int,
        changes: Changes | None = None,
        filled: Sequence[_StoredResult] = (),
    ) -> EditResult | None:
        """What some programs leave wrong; None where they raise, or come to no end."""
        launch.restore(launch.before)
        launch.overlay(changes or {})
        for each in filled:
            each.tensor.copy_(each.expected)
        if not self._ran(launch, codes, programs, work):
            return None
        return EditResult({each.name: each.wrong for each in results}, self._replay.strays)

    def _ran(self, launch: RecordedLaunch, codes: Codes, programs: Sequence[Program], work: int) -> bool:
        """Runs programs; whether they came to their end."""
        from ...frontends.triton.interpreter.launch_replay import TooLong

        def late(*_: Any) -> None:
            raise TooLong

        signal.signal(signal.SIGVTALRM, late)
        signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
        self._replay.reset(_TIMES * work + _BESIDES)
        try:
            self._replay.run(launch, codes, programs)
        except (TooLong, Exception):
            return False
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        return True

    def _codes(self, file: KernelFile, edits: Edits) -> Codes | None:
        """The kernels that an edit changes; None of one that changes other code.

        Raises:
            SyntaxError, ValueError: it is no Python.
        """
        from ...frontends.triton.interpreter.launch_replay import code_of

        found, left = dict[tuple[str, str], Any](), {*edits}
        for function in file.kernels:
            start, end = file.offset(function.lineno, 0), file.span(function)[1]
            inside = [edit for edit in edits if start <= edit.start <= edit.end <= end]
            if inside:
                own = [Edit(edit.start - start, edit.end - start, edit.text) for edit in inside]
                name = self._files[file.file][1]
                tree = ast.parse(textwrap.dedent(edited(file.text[start:end], own))).body[0]
                found[name, function.name] = code_of(tree, name)  # type: ignore[arg-type]
                left -= {*inside}
        return None if left else found
