"""Quick trials: forks note the launches of a small case, and run single programs again with an edit, on that memory."""

from __future__ import annotations

import ast
import signal
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...model.failures import Failure, fault_words
from ...numerics.compare import judge_whole
from ...numerics.evidence import Measured
from ...probing.experiment import Experiment
from ...probing.runs import records_of
from ...processes.forks import ParallelWork
from ...source.kernel_file import KernelFile
from ...source.rewrites.spots import Edits
from ...source.text import edited
from .trial import EditResult

if TYPE_CHECKING:
    from ...frontends.triton.interpreter.launch_replay import Changes, Codes, RecordedLaunch, Replay

Answer = tuple[bool, float]
"""Whether an edit makes less wrong, and which share of a whole trial it took."""
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
    """Forks that answer, in turn, whether an edit makes less wrong in a small case."""

    def __init__(
        self, begin: Callable[[], Experiment], base: Edits, files: Files, faults: dict[str, None]
    ) -> None:
        """Args:
        begin: gives the experiment, of a copy of the first of the files that has the base's edits.
        faults: takes what goes wrong in gradprobe itself.
        """
        self._forks, self._asked, self._faults = (
            list[tuple[Connection, ParallelWork[None]]](),
            0,
            faults,
        )
        for _ in range(_AT_ONCE):
            pipe, there = Pipe()
            self._forks.append((pipe, ParallelWork(partial(_serve, there, begin, base, files))))
            there.close()

    def ask(self, file: KernelFile, edits: Edits, until: float) -> Callable[[], Answer | None]:
        """What waits for the answer, in the order of the edits: None where the edit is to be tried as a whole."""
        pipe, _ = self._forks[self._asked % _AT_ONCE]
        self._asked += 1
        with suppress(OSError):  # an edit has ended the fork
            pipe.send((file.file, edits))
        return partial(self._answer, pipe, until)

    def _answer(self, pipe: Connection, until: float) -> Answer | None:
        with suppress(EOFError, OSError):
            if pipe.poll(max(0.0, until - time.monotonic())):
                answer: Answer | str | None = pipe.recv()
                if not isinstance(answer, str):
                    return answer
                self._faults[answer] = None
        return None

    def close(self) -> None:
        for pipe, fork in self._forks:
            fork.__exit__()
            pipe.close()


def _serve(pipe: Connection, begin: Callable[[], Experiment], base: Edits, files: Files) -> None:
    """Answers edit after edit, until it is ended; at last with what went wrong in gradprobe itself."""
    from ...frontends.triton.interpreter.launch_replay import Replay, recorded_kernels

    try:
        with recorded_kernels(_MOST_BYTES) as launches:
            record = next(records_of(begin()))
        if record.run.measured is not None:
            ran = launches[: len(record.executions[0].outcome.calls)]
            with Replay().opened() as replay:
                recorded = _RecordedCase(replay, ran, record.run.measured, files, base)
                while True:
                    name, edits = pipe.recv()
                    pipe.send(recorded.tried(files[name][0], edits))
    except (Failure, EOFError):
        return
    except Exception as error:
        pipe.send(fault_words(error))


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
        return int(
            (~judge_whole(self.tensor, self.expected, self.bound, exact=self.exact).right).sum()
        )


def _results_in(launch: RecordedLaunch, measured: Measured) -> Iterator[_StoredResult]:
    """The results that arguments of a launch hold after it, element for element as the target returned them."""
    launch.restore(launch.after)
    comparison, values = measured.comparison, measured.raw.values
    names = comparison.expected.keys() & values.keys() if measured.unread is None else ()
    for tensor in launch.tensors:
        found = dict[str, _StoredResult]()
        for name in names if tensor.is_floating_point() else ():
            parts = [values[name], comparison.expected[name], comparison.bounds[name]]
            for laid in (parts, [part.transpose(1, 2) for part in parts if part.dim() > 2]):
                if laid and laid[0].numel() == tensor.numel():
                    came, expected, bound = (part.reshape(tensor.shape) for part in laid)
                    here = tensor.to(came.dtype)
                    if bool(((here == came) | (here.isnan() & came.isnan())).all()):
                        found[name] = _StoredResult(
                            name, tensor, expected, bound, comparison.precision.exact
                        )
        if len(found) == 1:
            yield from found.values()


@dataclass
class _Witness:
    """What is run again of a launch."""

    programs: list[tuple[int, ...]]
    results: list[_StoredResult] = field(default_factory=list)
    is_filled: bool = False
    """Whether what should stand there is put before, so that what the programs do not store is right."""
    before: EditResult = field(default_factory=EditResult)


class _RecordedCase:
    def __init__(
        self,
        replay: Replay,
        launches: Sequence[RecordedLaunch],
        measured: Measured,
        files: Files,
        base: Edits,
    ) -> None:
        self._replay, self._launches, self._files = replay, launches, files
        self._base = self._codes(next(iter(files.values()))[0], base) or {}
        self._work = list[int]()
        """The accesses of each launch; 0 of one that does not come again."""
        self._witnesses = dict[int, _Witness]()
        for at, launch in enumerate(launches):
            results = list(_results_in(launch, measured))
            is_same = (
                self._rerun(launch, _Witness(launch.programs), self._base) and not launch.changes()
            )
            self._work.append(replay.accesses if is_same else 0)
            written = [each for each in results if is_same and each.storage in replay.written]
            if (before := self._result_of(written)).names:
                self._witnesses[at] = self._narrowed(
                    launch, _Witness(launch.programs, written, before=before)
                )

    def _narrowed(self, launch: RecordedLaunch, whole: _Witness) -> _Witness:
        """The program that leaves most wrong of what is stored and never read; all of them where there is none."""
        plain = [each for each in whole.results if each.storage not in self._replay.read]
        found, most = whole, 0
        for program in launch.programs[:_PROGRAMS] if self._result_of(plain).names else ():
            alone = _Witness([program], plain, is_filled=True)
            alone.before = self._rerun(launch, alone, self._base) or alone.before
            if (wrong := sum(alone.before.wrong.values())) > most:
                found, most = alone, wrong
        return found

    def tried(self, file: KernelFile, edits: Edits) -> Answer | None:
        """Whether an edit makes less wrong; None where no program tells.

        What it changes in launches before the one that tells runs too, and that one finds what they leave.
        """
        try:
            codes = self._codes(file, edits)
        except (SyntaxError, ValueError):
            return False, _LEAST
        changed = {key for key, code in (codes or {}).items() if self._base.get(key) != code}
        touched = [at for at, launch in enumerate(self._launches) if changed & launch.functions]
        later = [at for at in self._witnesses if touched and at >= touched[0]]
        last = min(later, key=lambda at: (at not in touched, at), default=-1)
        work = self._work[touched[0] : last + 1] if touched else []
        if codes is None or not (work and all(work)):
            return None
        done, is_better, changes = 0, False, dict[int, tuple[Tensor, Tensor]]()
        for at, most in enumerate(work, touched[0]):
            launch = self._launches[at]
            witness = self._witnesses[at] if at == last else _Witness(launch.programs)
            result = self._rerun(launch, witness, codes, most, changes)
            done += self._replay.accesses
            if result is None:
                return False, _LEAST * max(1.0, done / _FEW)
            is_better = result.is_better_than(witness.before)
            changes |= launch.changes()
        return is_better, _LEAST * max(1.0, done / _FEW)

    def _rerun(
        self,
        launch: RecordedLaunch,
        witness: _Witness,
        codes: Codes,
        work: int = _MOST,
        changes: Changes | None = None,
    ) -> EditResult | None:
        """What its programs leave wrong; None where they raise, or come to no end."""
        from ...frontends.triton.interpreter.launch_replay import TooLong

        def late(*_: Any) -> None:
            raise TooLong

        launch.restore(launch.before)
        launch.overlay(changes or {})
        for each in witness.results if witness.is_filled else ():
            each.tensor.copy_(each.expected)
        signal.signal(signal.SIGVTALRM, late)
        signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
        self._replay.reset(_TIMES * work + _BESIDES)
        try:
            self._replay.run(launch, codes, witness.programs)
        except (TooLong, Exception):  # whatever an edited kernel raises
            return None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        return self._result_of(witness.results)

    def _result_of(self, results: Sequence[_StoredResult]) -> EditResult:
        return EditResult({each.name: each.wrong for each in results}, self._replay.strays)

    def _codes(self, file: KernelFile, edits: Edits) -> Codes | None:
        """The kernels that an edit changes; None of one that changes other code, SyntaxError of what is no Python."""
        from ...frontends.triton.interpreter.launch_replay import code_of

        found, name = dict[tuple[str, str], Any](), self._files[file.file][1]
        left = {*edits}
        for function in file.kernels:
            start, end = file.offset(function.lineno, 0), file.span(function)[1]
            inside = [edit for edit in left if start <= edit.start <= edit.end <= end]
            if inside:
                own = edited(file.text[start:end], [edit.shifted(-start) for edit in inside])
                (tree,) = ast.parse(textwrap.dedent(own)).body
                found[name, function.name] = code_of(tree, name)  # type: ignore[arg-type]
                left -= {*inside}
        return None if left else found
