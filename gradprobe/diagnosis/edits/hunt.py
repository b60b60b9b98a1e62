"""Hunt: the search for an edit that undoes one cause, on a small case that shows it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from ...source.repairs.candidates import Candidate, Edits, candidates_of
from .cause import Cause
from .faults import FileFaults
from .trial import Came, Trial

# How much later the lines of the next diagnosis are tried, in the ranks of the rules.
_NEXT = 0.5
# The same of lines that no diagnosis names, where any is named.
_UNNAMED = 3.0
# How many more are tried once one makes some result right and leaves others wrong, until more are sought beside it.
_BEFORE_TWO = 24


class Hunt:
    """What is tried for one cause, in which order, and what helps."""

    def __init__(self, cause: Cause) -> None:
        self.cause, self.failing, self.tried = cause, cause.shown[0], 0
        self.trial: Trial | None = None
        """The small case; None before there is one."""
        self.before: Came | None = None
        """What comes there with what stays in the file."""
        self.closest: tuple[Candidate, Came, Came] | None = None
        """What makes some of it right: with what came with it and without any edit."""
        self.is_over = False
        self._restart(None)

    def begin(self, trial: Trial, before: Came, base: Candidate | None = None) -> None:
        """Begins with a small case and what comes there, on top of an edit."""
        self.trial, self.before = trial, before
        if base is not None:
            self._restart(base)

    def _restart(self, base: Candidate | None) -> None:
        self._best: tuple[Candidate, Came] | None = None
        self._left, self._joined = _BEFORE_TWO, deque[Candidate]()
        is_contiguous = self.failing.layout == "contiguous"
        self._waiting = _in_turn(self.cause.faults, base, contiguous=is_contiguous)
        self._ahead = deque[tuple[float, Candidate]]()

    @property
    def cost(self) -> float:
        """How unlikely the next candidate is; infinite where there is none."""
        if self._joined:
            return -math.inf
        self._ahead += islice(self._waiting, 1 - len(self._ahead))
        return self._ahead[0][0] if self._ahead else math.inf

    def take(self) -> Candidate:
        """The next candidate, once its cost is known."""
        return self._joined.popleft() if self._joined else self._ahead.popleft()[1]

    def told(self, candidate: Candidate, came: Came) -> bool:
        """Keeps what helps. Two edits that help differently are tried together.

        Returns:
            Whether this is the best so far.
        """
        best, before = self._best, self.before
        assert self.trial is not None
        assert before is not None
        is_better = came.is_better_than(before if best is None else best[1])
        if is_better:
            first = self.closest[2] if self.closest else before
            self._best, self.closest, self._left = (candidate, came), (candidate, came, first), _BEFORE_TWO
        elif best is not None and came.is_better_than(before) and best[1].names - came.names:
            both = best[0].with_more(candidate.edits)
            self._joined += [both] if both is not None else []
        self._left -= self._best is not None
        if self._best is not None and not self._left and not self._joined:
            self.begin(self.trial, self._best[1], self._best[0])
        return is_better


def _in_turn(
    faults: Sequence[FileFaults], base: Candidate | None, *, contiguous: bool
) -> Iterator[tuple[float, Candidate]]:
    """The candidates of all faults, the likeliest first, on top of what is there; those of a worse diagnosis later.

    Each comes with how unlikely it is.
    """

    def costed(at: int, one: FileFaults) -> Iterator[tuple[float, int, int, Candidate]]:
        late = _UNNAMED if one.diagnosis is None and faults[0].diagnosis is not None else 0.0
        for number, candidate in enumerate(candidates_of(one.file, one.faults, one.wanted, contiguous=contiguous)):
            whole = candidate if base is None else base.with_more(candidate.edits)
            if whole is not None and (base is None or base.file is one.file):
                yield candidate.cost + at * _NEXT + late, at, number, whole

    seen: set[tuple[Path, Edits]] = set()  # several diagnoses may name a line
    for cost, _, _, candidate in heapq.merge(*(costed(at, one) for at, one in enumerate(faults))):
        key = (candidate.file.path, candidate.edits)
        if key not in seen:
            seen.add(key)
            yield cost, candidate
