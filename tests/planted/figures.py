"""The figures of the score, each beside what must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.planted.scored import SEEN
from tests.planted.scoring import DIAGNOSES, Judged
from tests.planted.trials import Scored, Uncovered, Unflagged


@dataclass(frozen=True)
class Figure:
    """A count of trials, and the least or the most that it may be."""

    title: str
    count: int
    of: int
    least: float = 0.0
    """As a share."""
    most: float = 1.0

    @property
    def share(self) -> float:
        return self.count / self.of if self.of else 0.0

    @property
    def holds(self) -> bool:
        return not self.of or self.least <= self.share <= self.most

    @property
    def bound(self) -> str:
        """What must hold, in words."""
        return (
            f"at least {100 * self.least:.0f} %"
            if self.least
            else f"at most {100 * self.most:.0f} %"
        )


def figures(judged: Sequence[Judged]) -> list[Figure]:
    """Those of the issue; without the ones about causes where reports do not say why."""
    planted = [each for each in judged if isinstance(each.trial, Scored)]
    equivalent = [each for each in judged if isinstance(each.trial, Unflagged)]
    uncovered = [each for each in judged if isinstance(each.trial, Uncovered)]
    found = [
        Figure("planted faults found", sum(each.found for each in planted), len(planted), 1.0),
        Figure(
            "first wrong intermediate and head right",
            sum(each.placed for each in planted),
            len(planted),
            0.98,
        ),
        Figure(
            "equivalent edits flagged",
            sum(not each.right for each in equivalent),
            len(equivalent),
            most=0.0,
        ),
        Figure(
            "uncovered faults found", sum(each.found for each in uncovered), len(uncovered), 1.0
        ),
    ]
    if not DIAGNOSES:
        return found
    return [
        *found,
        Figure("cause named first", sum(each.named for each in planted), len(planted), 0.99),
        Figure("line of a planted fault right", sum(each.line for each in planted), len(planted)),
        Figure(
            "line of an uncovered fault right",
            sum(each.line for each in uncovered),
            len(uncovered),
        ),
        Figure(
            "no hypothesis fits an uncovered fault",
            sum(each.right for each in uncovered),
            len(uncovered),
            28 / 30,
        ),
    ]


@dataclass(frozen=True)
class OfClass:
    """What came of the planted faults of one class."""

    fault_class: str
    faults: int
    found: int
    placed: int
    named: int


def by_class(judged: Sequence[Judged]) -> list[OfClass]:
    """In the order in which the classes of the field are listed."""
    counts: dict[str, Counter[str]] = {}
    for each in judged:
        if isinstance(each.trial, Scored):
            one = {
                "faults": 1,
                "found": int(each.found),
                "placed": int(each.placed),
                "named": int(each.named),
            }
            counts.setdefault(each.trial.fault_class, Counter()).update(one)
    keys = ("faults", "found", "placed", "named")
    return [
        OfClass(name, *(counts[name][key] for key in keys)) for name in SEEN if name in counts
    ]


def diagnosing(judged: Sequence[Judged]) -> tuple[float, float] | None:
    """The median and the largest seconds of a diagnosis; None where there was none."""
    seconds = [each.outcome.diagnosing for each in judged if each.outcome.diagnosing is not None]
    return (median(seconds), max(seconds)) if seconds else None
