"""Cause: what one edit is to undo, the lines where it may, and the runs that show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...faults.hypothesis import Hypothesis
from ...numerics.evidence import LayoutRun
from ...source.rewrites.candidates import Candidate
from ..order import tensor_of
from ..why import Reasons
from .faults import FileFaults
from .trial import Came


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
