"""Found: what came of a search for edits."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...source.repairs.candidates import Candidate
from .cause import Cause
from .hunt import Hunt
from .judge import JudgedEdit
from .trial import Came


@dataclass(frozen=True)
class Passed:
    """An edit with which everything matches."""

    candidate: Candidate
    titles: list[str]
    """Of all that was run with it."""
    judged: JudgedEdit
    """What came of it in other cases."""
    at_others: str = ""
    """What is wrong with lengths that were not asked for, which the kernel may not take; "" where nothing is."""
    needless: int = 0
    """How many products of nothing it adds to kernels that made none."""
    parts: tuple[tuple[Cause, Candidate], ...] = ()
    """Where it undoes several causes, what of it undoes which."""

    @property
    def is_certain(self) -> bool:
        """Whether nothing is left that could tell it from the right edit."""
        return not (self.at_others or self.needless or self.judged.doubts or self.judged.not_run)


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


@dataclass
class Found:
    """What came of a search."""

    passed: list[Passed] = field(default_factory=list)
    """What makes everything match."""
    mends: dict[str, Mend] = field(default_factory=dict)
    """What surely undoes one cause of several, by its fault."""
    hunts: list[Hunt] = field(default_factory=list)
    """All that was tried, by cause."""
    is_late: bool = False
    """Whether the last resort ended it."""

    @property
    def tried(self) -> int:
        """How many edits were run."""
        return sum(hunt.tried for hunt in self.hunts)

    @property
    def has_what_is_said(self) -> bool:
        """Whether an edit is certain that a cause says itself: no other is better."""
        said = {edits for hunt in self.hunts for edits in hunt.cause.said}
        return any(one.is_certain and one.candidate.edits in said for one in self.passed)

    def best(self, hunt: Hunt) -> Candidate | None:
        """What undoes its cause, or else comes closest to that."""
        mend = self.mends.get(hunt.cause.fault)
        return mend.candidate if mend is not None else hunt.closest and hunt.closest[0]
