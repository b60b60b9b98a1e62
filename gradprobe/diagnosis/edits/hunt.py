"""Hunt: the search for an edit that undoes one cause, of its lines, on small cases that show it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ...faults.hypothesis import Hypothesis
from ...numerics.evidence import LayoutRun
from ...source.rewrites.candidates import SOONEST, Candidate, candidates_of
from ...source.rewrites.spots import Edits
from ..why import Reasons, tensor_of
from .faults import FileFaults
from .trial import Came, Trial

# How much later the lines of the next diagnosis are tried, in the ranks of the rows.
_NEXT = 0.5
# The same of lines that no diagnosis names, where any is named.
_UNNAMED = 3.0
# How many more are tried once one makes some result right and leaves others wrong, until more are sought beside it.
_BEFORE_TWO = 24
# How much sooner that is tried which is on top of an edit with which a whole layout matches.
_SOONER = 1.5
# On top of how many edits others are tried, beside those on top of none.
_MOST = 3
Small = tuple[Trial, Came]
"""A case, and what comes there."""


@dataclass(frozen=True)
class Cause:
    """One of several causes; or all that is wrong, where no two are told apart."""

    faults: tuple[FileFaults, ...]
    """Its lines, the likeliest first."""
    shown: tuple[LayoutRun, ...]
    """The wrong runs that show it, first the one in which the fewest others show."""
    number: int | None = None
    """The place of its diagnosis among them; None of all that is wrong."""
    fault: str = ""
    others: tuple[Hypothesis, ...] = ()
    """What predicts the other causes, of which some may be predicted by nothing."""

    @property
    def printed(self) -> list[Candidate]:
        """The edits that its words say."""
        return [Candidate(each.file, each.printed, -math.inf) for each in self.faults if each.printed]

    @property
    def is_all(self) -> bool:
        """Whether one edit is to undo everything."""
        return self.number is None

    def is_undone(self, came: Came) -> bool:
        """Whether nothing is wrong in a run, or only what other causes are known to make so."""
        return came.matches or (bool(came.left_by) and self.fault not in came.left_by)


def causes_of(reasons: Reasons, faults: Sequence[FileFaults], wrong: Sequence[LayoutRun]) -> list[Cause]:
    """The causes that have lines of their own; all that is wrong as one, where fewer than two are told.

    Lines that belong to no cause go to the one that is about the same tensor, else to the first.
    """
    told = {at: one for at, one in enumerate(reasons.diagnoses) if one in reasons.causes}
    lines = {at: [each for each in faults if each.diagnosis == at] for at in told}
    having = [at for at in told if lines[at]]
    if len(told) < 2 or not having:
        return [Cause(tuple(faults), tuple(wrong))]
    for each in (each for each in faults if each.diagnosis not in told):
        tensor = tensor_of(reasons.diagnoses[each.diagnosis]) if each.diagnosis is not None else None
        lines[next((at for at in having if tensor_of(told[at]) == tensor), having[0])].append(each)
    found = []
    for at in having:
        fault, others = told[at].fault, [one.fault for one in told.values()]
        shown = [run for run in wrong if run.layout in reasons.shown.get(fault, ())] or list(wrong)
        shown.sort(key=lambda run: sum(run.layout in reasons.shown.get(one, ()) for one in others))
        predicted = tuple(reasons.predicted[one] for one in others if one in reasons.predicted and one != fault)
        found.append(Cause(tuple(lines[at]), tuple(shown), at, fault, predicted))
    return found


class Ground:
    """What candidates are put on top of, an edit or nothing, and the small case that they are tried on."""

    def __init__(
        self, cause: Cause, failing: LayoutRun, base: Candidate | None = None, small: Small | None = None
    ) -> None:
        """Args:
        small: the case; None where one is still to be found that shows what is wrong in the failing layout.
        """
        self.failing, self.base, self.small = failing, base, small
        self.larger: Iterator[Small] = iter(())
        """The cases that show it too, in the order in which they grow."""
        self.best: tuple[Candidate, Came] | None = None
        self.due = deque(_on_top(cause.printed, base))
        """What is to be tried before all others."""
        self._left = _BEFORE_TWO
        # What brings a layout right is likely right: what is wrong in another one is sought soon, in other lines.
        done = base.lines if base is not None and small is None else ()
        self._sooner = _SOONER if done else 0.0
        self._waiting = _in_turn(cause.faults, base, done, contiguous=failing.layout == "contiguous")
        self._ahead = deque[tuple[float, Candidate]]()

    @property
    def cost(self) -> float:
        """How unlikely the next candidate is; infinite where there is none."""
        if self.due:
            return -math.inf
        self._ahead += islice(self._waiting, 1 - len(self._ahead))
        return self._ahead[0][0] - self._sooner if self._ahead else math.inf

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


@dataclass(frozen=True)
class Mend:
    """An edit for one cause of several, with which every layout that shows it is better and none is worse."""

    cause: Cause
    candidate: Candidate
    layouts: tuple[tuple[str, Came, Came], ...]
    """Each layout that shows the cause: what came with it and without it."""

    @property
    def is_sure(self) -> bool:
        """Whether all that is wrong with it is known to be made so by the other causes."""
        return all(self.cause.is_undone(came) for _, came, _ in self.layouts)


class Hunt:
    """What is tried for one cause, in which order, and what helps."""

    def __init__(self, cause: Cause) -> None:
        self.cause, self.tried, self.is_over = cause, 0, False
        self.untried = set(cause.printed)
        """Of the edits that the cause prints."""
        self.mend: Mend | None = None
        """What surely undoes it, where it is one of several."""
        self.closest: tuple[Candidate, Came, Came] | None = None
        """What makes some of it right: with what came with it and without any edit."""
        self.moves = False
        """Whether anything that came was other than without the edit."""
        self.breaks = False
        """Whether an edit with which the check matches broke what is right without it in another use."""
        self.first = Ground(cause, cause.shown[0])
        """On top of no edit: it is never left while it has candidates."""
        self.grounds = [self.first]

    @property
    def likeliest(self) -> Ground:
        """The ground whose next candidate is the likeliest, the latest one of several."""
        return min(reversed(self.grounds), key=lambda ground: ground.cost)

    @property
    def cost(self) -> float:
        """How unlikely the next candidate is; infinite where there is none."""
        return self.likeliest.cost if self.grounds and not self.is_over else math.inf

    @property
    def part(self) -> Candidate | None:
        """What undoes the cause, or else comes closest to that."""
        return self.mend.candidate if self.mend is not None else self.closest and self.closest[0]

    def build_on(self, base: Candidate, failing: LayoutRun, small: Small | None = None) -> None:
        """Also tries candidates on top of an edit, for what is still wrong with it in a layout."""
        if len(self.grounds) <= _MOST:
            self.grounds.append(Ground(self.cause, failing, base, small))

    def weigh(self, ground: Ground, candidate: Candidate, came: Came) -> bool:
        """Keeps what helps; once nothing better comes, more is sought on top of that.

        Returns:
            Whether this is the best so far on its ground.
        """
        assert ground.small is not None
        is_better = ground.weigh(candidate, came)
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
        late = at * _NEXT + (_UNNAMED if each.diagnosis is None and faults[0].diagnosis is not None else 0.0)
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
