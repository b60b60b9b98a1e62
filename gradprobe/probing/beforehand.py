"""Runs of a target that a fork makes beforehand, while this process makes those before them.

What a target keeps from call to call is part of what is checked. So a fork's runs are taken over only where they began
in the state in which this process comes to them, and left it as it was; and only as long as all that was measured
here, of two calls one after another at least, is right. Else they are made here, one after another.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..inputs.tensor_layouts import Inputs
from ..model.mechanisms import is_on, note
from ..processes.forks import ParallelWork, at_once, nothing_said
from ..runtime.remembered import Remembered, remembered
from .experiment import Experiment
from .observe import Execution, execution, interprets_triton

LaidOut = Callable[[], tuple[Experiment, Inputs]]
"""Gives what one run is made of."""
# A fork is waited for as long as its runs should take, so often; and so many seconds more.
_PATIENCE, _GRACE = 3.0, 2.0
# Elements of all score matrices together: of larger cases, what two processes hold at a time would have to be counted.
_MOST_SCORES = 1 << 22


class Beforehand:
    """Runs that forks make, by their keys."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, LaidOut] = {}
        """Those that are to come, in order."""
        self._forks: dict[Hashable, _RunFork] = {}
        self._state: Remembered | None = None
        """That of the target in which the forks began."""

    def begin(self, experiment: Experiment, runs: Mapping[Hashable, LaidOut]) -> None:
        """Has forks make these runs, where there are cores for them and the target's state can be told."""
        self._runs = dict(runs) if _may_be_apart(experiment) else {}
        self._fork(experiment)

    def halve(self, experiment: Experiment, runs: Sequence[LaidOut]) -> None:
        """Has forks make their part of the last of some runs, of which this process makes the first."""
        here = -(-len(runs) // at_once())
        self.begin(experiment, dict(list(enumerate(runs))[here:]))

    def go_on(self, experiment: Experiment, *, is_right: bool) -> None:
        """Called after each run that this process made: forks that began in another state begin anew, from this one."""
        if not is_right:
            self.drop()
        elif self._forks and remembered(experiment.target) != self._state:
            self._fork(experiment)

    def taken(self, key: Hashable, experiment: Experiment) -> Execution | None:
        """What a fork made of a run, with this process in the same state; None where it is to be made here."""
        fork = self._forks.pop(key, None)
        self._runs.pop(key, None)
        if fork is None:
            return None
        is_alike = not experiment.cuda and remembered(experiment.target) == self._state
        execution = fork.execution(key, experiment) if is_alike else None
        if execution is None:
            self.drop()
        note("beforehand", spoke=execution is not None)
        return execution

    def drop(self) -> None:
        """Ends all forks: what they would make is made here."""
        for fork in self._forks.values():
            fork.end()
        self._forks.clear()
        self._runs.clear()

    def _fork(self, experiment: Experiment) -> None:
        runs = dict(self._runs)
        self.drop()
        count = min(at_once() - 1, len(runs))
        self._state = remembered(experiment.target) if count > 0 else None
        if self._state is None:
            return
        self._runs = runs
        for number in range(count):
            share = dict(list(runs.items())[number::count])
            self._forks |= dict.fromkeys(share, _RunFork(share, self._state))

    def __enter__(self) -> Beforehand:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


def _may_be_apart(experiment: Experiment) -> bool:
    """Whether a run in a fork can be what it would be here: of kernels in Triton's interpreter, without a device."""
    case = experiment.case
    return (
        is_on("beforehand") and case.device == "cpu" and interprets_triton()
        and case.ranks is None and not experiment.cuda
        and case.scores <= _MOST_SCORES and at_once() > 1
    )  # fmt: skip


class _RunFork:
    """A fork that makes a share of the runs."""

    def __init__(self, runs: Mapping[Hashable, LaidOut], state: Remembered) -> None:
        self._state, self._keys = state, list(runs)
        self._beside: ParallelWork[bytes] | None = ParallelWork(
            partial(_executions, list(runs.values()), state, random.getstate())
        )
        self._made: list[Execution] | None = None

    def execution(self, key: Hashable, experiment: Experiment) -> Execution | None:
        """None where it came to no end, or to what no fork may do."""
        if self._beside is not None:
            stopwatch = experiment.stopwatch
            each = stopwatch.seconds["target"] / max(1, stopwatch.laps["target"])
            answer = self._beside.answer(_GRACE + _PATIENCE * each * len(self._keys))
            self._beside = None
            with contextlib.suppress(pickle.UnpicklingError):
                self._made = None if answer is None else _Unpickler(io.BytesIO(answer), self._state.kernels).load()
        return None if self._made is None else self._made[self._keys.index(key)]

    def end(self) -> None:
        if self._beside is not None:
            self._beside.__exit__()
            self._beside = None


def _executions(runs: Sequence[LaidOut], state: Remembered, drawn: tuple[Any, ...]) -> bytes:
    """Makes runs, pickled; the life of a fork.

    Args:
        drawn: the state of `random`, of which Python makes another one in a fork.

    Raises:
        Exception: whatever a run raised; or one printed something, or left the target in another state.
    """
    random.setstate(drawn)
    with nothing_said():
        found = [execution(*run()) for run in runs]
    first = runs[0]()[0]
    if remembered(first.target) != state:
        raise _Changed
    written = io.BytesIO()
    empty = Inputs("", {}, {})
    # Launches may have been given what cannot be written.
    kept = [replace(one, inputs=empty, outcome=replace(one.outcome, calls={})) for one in found]
    _Pickler(written, state.kernels).dump(kept)
    return written.getvalue()


class _Changed(Exception):
    """A run left the target in another state."""


class _Pickler(pickle.Pickler):
    """Writes of a kernel only which one it is: those that were there before the fork are the same in both processes."""

    def __init__(self, file: io.BytesIO, kernels: Mapping[int, Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._kernels = kernels

    def persistent_id(self, thing: Any) -> int | None:
        return id(thing) if id(thing) in self._kernels else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kernels: Mapping[int, Any]) -> None:
        super().__init__(file)
        self._kernels = kernels

    def persistent_load(self, number: int) -> Any:
        return self._kernels[number]
