"""Hunt: the search for an edit that undoes one cause, on small cases that show it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from ...numerics.evidence import LayoutRun
from ...source.repairs.candidates import SOONEST, Candidate, Edits, candidates_of
from .cause import Cause
from .faults import FileFaults
from .trial import Came, Trial

# How much later the lines of the next diagnosis are tried, in the ranks of the rules.
_NEXT = 0.5
# The same of lines that no diagnosis names, where any is named.
_UNNAMED = 3.0
# How many more are tried once one makes some result right and leaves others wrong, until more are sought beside it.
_BEFORE_TWO = 24
# On top of how many edits others are tried, beside those on top of none.
_MOST = 3
Small = tuple[Trial, Came]
"""A case, and what comes there."""


class Ground:
    """What candidates are put on top of, an edit or nothing, and the small case that they are tried on."""

    def __init__(self, cause: Cause, failing: LayoutRun, base: Candidate | None, small: Small | None = None) -> None:
        """Args:
        small: the case; None where one is still to be found that shows what is wrong in the failing layout.
        """
        self.failing, self.base, self.small = failing, base, small
        self.larger: Iterator[Small] = iter(())
        """The cases that show it too, in the order in which they grow."""
        self.best: tuple[Candidate, Came] | None = None
        self.joined = deque(cause.printed if base is None else ())
        """What is to be tried before all others."""
        self._left = _BEFORE_TWO
        self._waiting = _in_turn(cause.faults, base, contiguous=failing.layout == "contiguous")
        self._ahead = deque[tuple[float, Candidate]]()

    @property
    def cost(self) -> float:
        """How unlikely the next candidate is; infinite where there is none."""
        if self.joined:
            return -math.inf
        self._ahead += islice(self._waiting, 1 - len(self._ahead))
        return self._ahead[0][0] if self._ahead else math.inf

    def take(self) -> Candidate:
        """The next candidate, once its cost is known."""
        return self.joined.popleft() if self.joined else self._ahead.popleft()[1]

    def enlarge(self, due: Candidate) -> None:
        """Goes on with the next larger case, where there is one, first with an edit that passed the one before."""
        larger = next(self.larger, None)
        if larger is not None:
            self.small, self.best, again = larger, None, [due, *([self.best[0]] if self.best else [])]
            self.joined.extend(again)

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
            self.joined += [both] if both is not None else []
        self._left -= self.best is not None
        return is_better

    @property
    def is_due(self) -> bool:
        """Whether more are to be sought on top of the best, since none better came for long; once of each."""
        return self.best is not None and self._left == 0


class Hunt:
    """What is tried for one cause, in which order, and what helps."""

    def __init__(self, cause: Cause) -> None:
        self.cause, self.tried, self.is_over = cause, 0, False
        self.untried = set(cause.printed)
        """Of the edits that the cause prints."""
        self.closest: tuple[Candidate, Came, Came] | None = None
        """What makes some of it right: with what came with it and without any edit."""
        self.moves = False
        """Whether anything that came was other than without the edit."""
        self.breaks = False
        """Whether an edit with which the check matches broke what is right without it in another use."""
        self.first = Ground(cause, cause.shown[0], None)
        """On top of no edit: it is never left while it has candidates."""
        self._grounds = [self.first]

    @property
    def likeliest(self) -> Ground:
        """The ground whose next candidate is the likeliest, the latest one of several."""
        return min(reversed(self._grounds), key=lambda ground: ground.cost)

    @property
    def cost(self) -> float:
        """How unlikely the next candidate is; infinite where there is none."""
        return self.likeliest.cost

    def leave(self, ground: Ground) -> None:
        """Tries no more there; without any ground the hunt is over."""
        self._grounds.remove(ground)
        self.is_over = self.is_over or not self._grounds

    def build_on(self, base: Candidate, failing: LayoutRun, small: Small | None = None) -> None:
        """Also tries candidates on top of an edit, for what is still wrong with it in a layout."""
        if len(self._grounds) <= _MOST:
            self._grounds.append(Ground(self.cause, failing, base, small))

    def weigh(self, ground: Ground, candidate: Candidate, came: Came) -> bool:
        """Keeps what helps; once nothing better comes, more is sought on top of that.

        Returns:
            Whether this is the best so far on its ground.
        """
        is_better = ground.weigh(candidate, came)
        assert ground.small is not None
        self.moves |= bool(came.failure) or came.errors != ground.small[1].errors
        if is_better and (self.closest is None or ground.base is not None or came.is_better_than(self.closest[1])):
            self.keep(ground, candidate, came)
        if ground.is_due and ground.best is not None:
            self.build_on(ground.best[0], ground.failing, (ground.small[0], ground.best[1]))
        return is_better

    def keep(self, ground: Ground, candidate: Candidate, came: Came) -> None:
        """Keeps what comes closest to undoing the cause."""
        assert ground.small is not None
        self.closest = candidate, came, self.closest[2] if self.closest else ground.small[1]


def _in_turn(
    faults: Sequence[FileFaults], base: Candidate | None, *, contiguous: bool
) -> Iterator[tuple[float, Candidate]]:
    """The candidates of all faults, the likeliest first, on top of what is there; those of a worse diagnosis later.

    Each comes with how unlikely it is.
    """

    def costed(at: int, one: FileFaults) -> Iterator[tuple[float, int, int, Candidate | None]]:
        late = _UNNAMED if one.diagnosis is None and faults[0].diagnosis is not None else 0.0
        yield at * _NEXT + late - SOONEST, at, -1, None  # none is made before it may be its turn
        for number, candidate in enumerate(candidates_of(one.file, one.faults, one.wanted, contiguous=contiguous)):
            whole = candidate if base is None else base.with_more(candidate.edits)
            if whole is not None and (base is None or base.file is one.file):
                yield candidate.cost + at * _NEXT + late, at, number, whole

    # Several diagnoses may name a line; what they print is tried before.
    seen: set[tuple[Path, Edits]] = {(one.file.path, one.printed) for one in faults if base is None}
    for cost, _, _, candidate in heapq.merge(*(costed(at, one) for at, one in enumerate(faults))):
        if candidate is not None and (key := (candidate.file.path, candidate.edits)) not in seen:
            seen.add(key)
            yield cost, candidate
