"""Forks run single programs of a small case again with an edit."""

import ast
import signal
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...frontends.triton.interpreter import launch_replay
from ...frontends.triton.interpreter.launch_replay import Codes, RecordedLaunch, Replay
from ...model.failures import Failure, fault_words
from ...numerics.compare import judge_whole
from ...numerics.evidence import LayoutRun, MeasuredRun
from ...probing.runs import records_of
from ...processes.forks import ParallelWork
from ...source.kernel_file import KernelFile
from ...source.syntax import Edits, edited
from ..cases import Trial
from ..follow import results_among
from .judge import EditedTarget, EditResult, result_of

# Whether an edit makes less wrong, and which share of a whole trial it took.
Answer = tuple[bool, float]
# The share of a whole trial that a quick one counts as, and of how many accesses.
_LEAST, _FEW = 1 / 20, 16
_PROGRAMS = 64
# How many times as many accesses as without an edit a program may make, and how many besides; then seconds of a
# processor, for what makes none.
_TIMES, _BESIDES, _SECONDS = 4, 64, 10.0
# Forks at once; and memory around launches that is kept, of a case: none is where there is more.
_AT_ONCE, _MOST_BYTES = 2, 1 << 28


class QuickTrials:
    def __init__(
        self,
        target: EditedTarget,
        trial: Trial,
        files: list[KernelFile],
        faults: dict[str, None],
    ) -> None:
        self._files, self._faults = files, faults
        self._forks = list[tuple[Connection, ParallelWork[None]]]()
        for _ in range(_AT_ONCE):
            pipe, there = Pipe()
            fork = ParallelWork(partial(_serve, there, target, trial, files))
            self._forks.append((pipe, fork))
            there.close()
        self._turns = cycle(self._forks)

    def ask(self, file: KernelFile, edits: Edits, until: float) -> Callable[[], Answer | None]:
        """What waits for the answer: None where the edit is to be tried as a whole."""
        pipe, _ = next(self._turns)
        with suppress(OSError):  # an edit has ended the fork
            pipe.send((self._files.index(file), edits))
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


def _serve(
    pipe: Connection, target: EditedTarget, trial: Trial, files: list[KernelFile]
) -> None:
    try:
        with launch_replay.recorded_kernels(_MOST_BYTES) as launches:
            record = next(records_of(target.begun(trial)))
        if record.run.measured is None:
            return
        ran = launches[: len(record.executions[0].outcome.calls)]
        # What a target allocates in that mode is changed in it alone.
        with Replay().opened() as replay, torch.inference_mode():
            base = _codes(target, target.candidate.file, target.candidate.edits)
            recorded = _RecordedCase(replay, ran, record.run, base or {})
            while True:
                at, edits = pipe.recv()
                pipe.send(recorded.tried(_codes(target, files[at], edits)))
    except (Failure, EOFError):
        return
    except Exception as error:
        pipe.send(fault_words(error))


class _StoredResult(NamedTuple):
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
        judged = judge_whole(self.tensor, self.expected, self.bound, exact=self.exact)
        return int((~judged.right).sum())


def _results_in(launch: RecordedLaunch, measured: MeasuredRun) -> Iterator[_StoredResult]:
    launch.restore(launch.after)
    of, exact = measured.comparison, measured.comparison.precision.exact
    tensors = list(filter(Tensor.is_floating_point, launch.tensors))
    for name, view in results_among(tensors, measured.raw) if measured.unread is None else ():
        if name in of.expected:
            yield _StoredResult(name, view, of.expected[name], of.bounds[name], exact)


@dataclass
class _Witness:
    launch: RecordedLaunch
    programs: list[tuple[int, ...]]
    results: list[_StoredResult] = field(default_factory=list)
    # Whether what is due stands there before it runs.
    is_filled: bool = False
    before: EditResult = field(default_factory=EditResult)
    work: int = 1 << 30


class _RecordedCase:
    def __init__(
        self, replay: Replay, launches: list[RecordedLaunch], run: LayoutRun, base: Codes
    ) -> None:
        measured, is_harmed = run.measured, result_of(run).harm > 0
        assert measured is not None
        self._replay, self._base, self._launches = replay, base, launches
        # Of launches that leave a result wrong, by number; and those that store right results and nothing else.
        self._witnesses, self._right = dict[int, _Witness](), set[int]()
        for at, launch in enumerate(launches):
            results, whole = [*_results_in(launch, measured)], _Witness(launch, launch.programs)
            if self._rerun(whole, base) is not None and launch.is_as_after:
                whole.work = replay.accesses
                whole.results = [each for each in results if each.storage in replay.written]
                whole.before = self._result_of(whole.results)
                stored = {each.storage for each in whole.results}
                if whole.before.names:
                    self._witnesses[at] = self._narrowed(whole)
                elif stored == replay.written and not is_harmed:
                    self._right.add(at)

    def _narrowed(self, whole: _Witness) -> _Witness:
        plain = [each for each in whole.results if each.storage not in self._replay.read]
        found, most = whole, 0
        for program in whole.programs[:_PROGRAMS] if self._result_of(plain).names else ():
            alone = replace(whole, programs=[program], results=plain, is_filled=True)
            alone.before = self._rerun(alone, self._base) or EditResult()
            if (wrong := sum(alone.before.wrong.values())) > most:
                found, most = alone, wrong
        return found

    def tried(self, codes: Codes | None) -> Answer | None:
        """None if unknown."""
        changed = {key for key, code in (codes or {}).items() if self._base.get(key) != code}
        touched = [at for at, of in enumerate(self._launches) if changed & of.functions]
        # An edit mends nothing in a launch that has all right.
        wrong = [at for at in touched if at not in self._right]
        if touched and not wrong:
            return False, _LEAST
        witness = self._witnesses.get(wrong[0]) if wrong else None
        if codes is None or witness is None:
            return None
        result = self._rerun(witness, codes)
        is_better = result is not None and result.is_better_than(witness.before)
        return is_better, _LEAST * max(1.0, self._replay.accesses / _FEW)

    def _rerun(self, witness: _Witness, codes: Codes) -> EditResult | None:
        def late(*_: Any) -> None:
            raise launch_replay.TooManyAccesses

        witness.launch.restore(witness.launch.before)
        for each in witness.results if witness.is_filled else ():
            each.tensor.copy_(each.expected)
        signal.signal(signal.SIGVTALRM, late)
        signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
        self._replay.reset(_TIMES * witness.work + _BESIDES)
        try:
            self._replay.run(witness.launch, codes, witness.programs)
        except (launch_replay.TooManyAccesses, Exception):  # whatever an edited kernel raises
            return None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        return self._result_of(witness.results)

    def _result_of(self, results: Sequence[_StoredResult]) -> EditResult:
        return EditResult({each.name: each.wrong for each in results}, self._replay.strays)


def _codes(target: EditedTarget, file: KernelFile, edits: Edits) -> Codes | None:
    """None of one that changes other code, or is no Python."""
    found, left, own = dict[tuple[str, str], Any](), {*edits}, target.candidate.file.file
    name = str(target.copy) if file.file == own else file.file
    for function in file.kernels:
        start, end = file.offset(function.lineno, 0), file.span(function)[1]
        inside = [edit for edit in left if start <= edit.start <= edit.end <= end]
        if inside:
            text = edited(file.text[start:end], [edit.shifted(-start) for edit in inside])
            try:
                (tree,) = ast.parse(textwrap.dedent(text)).body
                found[name, function.name] = launch_replay.code_of(tree, name)  # type: ignore[arg-type]
            except (SyntaxError, ValueError):
                return None
            left -= {*inside}
    return None if left else found
