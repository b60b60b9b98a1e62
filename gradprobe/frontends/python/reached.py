"""Which goals of some functions a run comes to, by a trace of their lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from ...source.reach import CALLER, FLAG, SEVERAL, SIDE, STATEMENT, TURNS, Goal, Reach


@contextlib.contextmanager
def reached_goals(file: str, functions: Sequence[Reach]) -> Iterator[set[Goal]]:
    """While open, traces functions of a file, interpreted kernels too."""
    reached, before = set[Goal](), sys.gettrace()
    by_name = {each.function.name: each for each in functions}

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        reach = by_name.get(frame.f_code.co_name)
        if reach is None or frame.f_code.co_filename != file:
            return None
        reached.update(_of_arguments(reach, frame))
        return _Call(reach, reached).stepped

    sys.settrace(called if functions else before)
    try:
        yield reached
    finally:
        sys.settrace(before)


def _of_arguments(reach: Reach, frame: FrameType) -> Iterator[Goal]:
    line, above, file = reach.function.lineno, frame.f_back, frame.f_code.co_filename
    for name in reach.flags:
        value = frame.f_locals.get(name)
        value = getattr(value, "value", value)
        if value is None or isinstance(value, (bool, int)):
            yield Goal(FLAG, line, int(bool(value)), name)
    while reach.callers and above is not None:
        name = above.f_code.co_name
        if above.f_code.co_filename == file and name in reach.callers:
            yield Goal(CALLER, line, name=name)
            return
        above = above.f_back


class _Call:
    def __init__(self, reach: Reach, reached: set[Goal]) -> None:
        self._reach, self._reached = reach, reached
        self._last: int | None = None
        self._turns: dict[int, int] = {}

    def stepped(self, frame: FrameType, event: str, argument: Any) -> Any:
        here = self._reach.statements.get(frame.f_lineno) if event == "line" else None
        is_loop = here in self._reach.loops
        if event == "return":
            self._leave(None)
        elif here is not None and (here != self._last or is_loop):
            self._leave(here)
            self._reached.add(Goal(STATEMENT, here))
            if is_loop:
                self._turns.setdefault(here, 0)
            self._last = here
        return self.stepped

    def _leave(self, here: int | None) -> None:
        reach, last = self._reach, self._last
        if last is not None and last in reach.branches:
            self._reached.add(Goal(SIDE, last, int(here in reach.branches[last])))
        for loop, turns in list(self._turns.items()):
            is_inside = here in reach.loops[loop]
            if last == loop and is_inside:
                self._turns[loop] += 1
            elif here != loop and not is_inside:
                self._reached.add(Goal(TURNS, loop, min(turns, SEVERAL)))
                del self._turns[loop]
