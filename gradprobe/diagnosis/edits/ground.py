"""Ground: what edits are tried on top of, an edit or nothing, on a small case that shows what is wrong with it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ...numerics.evidence import LayoutRun
from ...source.rewrites.candidates import SOONEST, Candidate, candidates_of
from ...source.rewrites.spots import Edits
from .faults import FileFaults
from .trial import Came, Trial

# How much later the lines of the next diagnosis are tried, in the ranks of the rows.
_NEXT = 0.5
# The same of lines that no diagnosis names, where any is named.
_UNNAMED = 3.0
# How many more are tried once one makes some result right and leaves others wrong, until more are sought beside it.
_BEFORE_TWO = 24
Small = tuple[Trial, Came]
"""A case, and what comes there."""


class Ground:
    """What is tried on top of one edit, or of none, in which order, and what helps."""

    def __init__(
        self,
        faults: Sequence[FileFaults],
        failing: LayoutRun,
        base: Candidate | None = None,
        small: Small | None = None,
    ) -> None:
        """Args:
        small: the case; None where one is still to be found that shows what is wrong in the failing layout.
        """
        self.failing, self.base, self.small = failing, base, small
        self.larger: Iterator[Small] = iter(())
        """The cases that show it too, in the order in which they grow."""
        self.best: tuple[Candidate, Came] | None = None
        self.due = deque(_on_top(printed_by(faults), base))
        """What is to be tried before all others."""
        self._left = _BEFORE_TWO
        # What is wrong in another layout lies in other lines than what brought this one right.
        done = base.lines if base is not None and small is None else ()
        self._waiting = _in_turn(faults, base, done, contiguous=failing.layout == "contiguous")
        self._ahead = deque[tuple[float, Candidate]]()

    @property
    def cost(self) -> float:
        """How unlikely the next candidate is; infinite where there is none."""
        if self.due:
            return -math.inf
        self._ahead += islice(self._waiting, 1 - len(self._ahead))
        return self._ahead[0][0] if self._ahead else math.inf

    def take(self) -> Candidate:
        """The next candidate, once its cost is known."""
        return self.due.popleft() if self.due else self._ahead.popleft()[1]

    def enlarge(self, again: Candidate) -> None:
        """Goes on with the next larger case, where there is one, first with an edit that passed the one before."""
        larger = next(self.larger, None)
        if larger is not None:
            self.due += [again, *([self.best[0]] if self.best else [])]
            self.small, self.best = larger, None

    def weigh(self, candidate: Candidate, came: Came) -> bool:
        """Keeps what helps. Two edits that help differently are tried together.

        Returns:
            Whether this is the best so far.
        """
        assert self.small is not None
        best, before = self.best, self.small[1]
        is_better = came.is_better_than(before if best is None else best[1])
        if is_better:
            self.best, self._left = (candidate, came), _BEFORE_TWO
        elif best is not None and came.is_better_than(before) and best[1].names - came.names:
            both = best[0].with_more(candidate.edits)
            self.due += [both] if both is not None else []
        self._left -= self.best is not None
        return is_better

    @property
    def is_due(self) -> bool:
        """Whether more are to be sought on top of the best, since none better came for long; once of each."""
        return self.best is not None and self._left == 0


def printed_by(faults: Sequence[FileFaults]) -> list[Candidate]:
    """The edits that diagnoses print, and at last all of them together."""
    found = list(dict.fromkeys(Candidate(each.file, each.printed, -math.inf) for each in faults if each.printed))
    together = found[0] if found else None
    for each in found[1:]:
        together = together.with_more(each.edits) if together is not None and together.file is each.file else None
    return [*found, *([together] if together is not None and found[1:] else [])]


def _on_top(candidates: Iterable[Candidate], base: Candidate | None, done: Collection[int] = ()) -> Iterator[Candidate]:
    """Candidates with the edit that they are tried on top of; none of another file or of lines that are done."""
    for each in candidates:
        if base is None:
            yield each
        elif base.file is each.file and not set(each.lines) <= set(done):
            whole = base.with_more(each.edits)
            yield from [replace(whole, cost=each.cost)] if whole is not None else []


def _in_turn(
    faults: Sequence[FileFaults], base: Candidate | None, done: Collection[int], *, contiguous: bool
) -> Iterator[tuple[float, Candidate]]:
    """The candidates of all faults, the likeliest first, on top of what is there; those of a worse diagnosis later.

    Each comes with how unlikely it is.
    """

    def costed(at: int, each: FileFaults) -> Iterator[tuple[float, int, int, Candidate | None]]:
        late = at * _NEXT + (_UNNAMED if faults[0].is_named and not each.is_named else 0.0)
        yield late - SOONEST, at, -1, None  # none is made before it may be its turn
        found = candidates_of(each.file, each.faults, each.wanted, contiguous=contiguous)
        for number, candidate in enumerate(_on_top(found, base, done)):
            yield candidate.cost + late, at, number, candidate

    # Several diagnoses may name a line; what they print is tried before.
    seen: set[tuple[Path, Edits]] = {(each.file.path, each.printed) for each in faults if base is None}
    for cost, _, _, candidate in heapq.merge(*(costed(at, each) for at, each in enumerate(faults))):
        if candidate is not None and (key := (candidate.file.path, candidate.edits)) not in seen:
            seen.add(key)
            yield cost, candidate
