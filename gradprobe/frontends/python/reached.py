"""Reached: which goals of some functions a run comes to, by a trace of their lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from ...source.reach import CALLER, FLAG, SEVERAL, SIDE, STATEMENT, TURNS, Goal, Reach

# Frames between a function and the one of the file that called it: the interpreter's own lie between.
_BETWEEN = 16


@contextlib.contextmanager
def reached_goals(file: str, functions: Sequence[Reach]) -> Iterator[set[Goal]]:
    """While open, what these functions of a file do is traced. Triton's interpreter runs kernels as Python."""
    trace, before = _Trace(file, functions), sys.gettrace()
    if not functions:
        yield trace.reached
        return
    sys.settrace(trace.called)
    try:
        yield trace.reached
    finally:
        sys.settrace(before)


class _Trace:
    def __init__(self, file: str, functions: Sequence[Reach]) -> None:
        self._file, self.reached = file, set[Goal]()
        self._of = {each.function.name: each for each in functions}
        self._known: dict[CodeType, Reach | None] = {}

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Called by Python for every function that is called."""
        code = frame.f_code
        if code not in self._known:
            self._known[code] = self._of.get(code.co_name) if code.co_filename == self._file else None
        reach = self._known[code]
        if reach is None:
            return None
        self._note_arguments(reach, frame)
        return _Call(reach, self.reached).stepped

    def _note_arguments(self, reach: Reach, frame: FrameType) -> None:
        at = reach.function.lineno
        for name in reach.flags:
            value = frame.f_locals.get(name)
            value = getattr(value, "value", value)
            if value is None or isinstance(value, (bool, int)):
                self.reached.add(Goal(FLAG, at, int(bool(value)), name))
        above, frames = frame.f_back, 0
        while reach.callers and above is not None and frames < _BETWEEN:
            if above.f_code.co_filename == self._file and above.f_code.co_name in reach.callers:
                self.reached.add(Goal(CALLER, at, 0, above.f_code.co_name))
                break
            above, frames = above.f_back, frames + 1


class _Call:
    """One call of a function: the statement that it came to last, and the turns of the loops that it is in."""

    def __init__(self, reach: Reach, reached: set[Goal]) -> None:
        self._reach, self._reached = reach, reached
        self._last: int | None = None
        self._turns: dict[int, int] = {}

    def stepped(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Called by Python for each line of the function, and where it ends."""
        if event == "line":
            here = self._reach.statements.get(frame.f_lineno)
            if here is not None and (here != self._last or here in self._reach.loops):
                self._step(here)
        elif event == "return":
            self._leave(None)
        return self.stepped

    def _step(self, here: int) -> None:
        self._leave(here)
        self._reached.add(Goal(STATEMENT, here))
        if here in self._reach.loops:
            self._turns.setdefault(here, 0)
        self._last = here

    def _leave(self, here: int | None) -> None:
        """What the step from the last statement tells; to None where the function ends."""
        reach, last = self._reach, self._last
        if last is not None and last in reach.branches:
            self._reached.add(Goal(SIDE, last, int(here is not None and here in reach.branches[last])))
        if last in self._turns and here is not None and here in reach.loops[last]:
            self._turns[last] += 1
        for loop in [one for one in self._turns if here != one and (here is None or here not in reach.loops[one])]:
            self._reached.add(Goal(TURNS, loop, min(self._turns.pop(loop), SEVERAL)))
