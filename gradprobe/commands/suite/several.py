"""Several checks: what came of them, and further ones planned by that."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...model.documents import Coverage, FailureGroup, RefusedCase, Reports
from .check_table import words_of
from .checked import CheckOutcome, PlannedCheck
from .checking import Setting
from .folding import by_axis, folded_by_cause, with_smallest


class Further:
    """Plans further checks by what came of those before them; here none."""

    coverage: Coverage | None = None
    """Which combinations all of them hold; None as long as more are to come."""

    def alike(self, planned: PlannedCheck) -> Hashable:
        """What is the same of checks of which one child makes one after another, as far as it can."""
        return None

    def __call__(self, made: Sequence[CheckOutcome]) -> Sequence[PlannedCheck]:
        """Those after all that were planned are made."""
        return ()


@dataclass
class Several:
    """What came of several checks."""

    planned: list[PlannedCheck]
    """May grow behind its end."""
    untaken: list[RefusedCase] | None
    """What the target does not take, where that is no error."""
    is_sweep: bool
    further: Further
    checks: list[CheckOutcome] = field(default_factory=list)
    """Those that count, in the order of their numbers, as the others."""
    warned: list[CheckOutcome] = field(default_factory=list)
    refused: int = 0
    is_over: bool = False
    groups: tuple[FailureGroup, ...] = ()

    @property
    def expected(self) -> int:
        """How many there are to be that count."""
        return len(self.planned) - self.refused - len(self.warned)

    @property
    def so_far(self) -> Reports:
        reports = tuple(checked.report for checked in (*self.checks, *self.warned))
        not_taken = None if self.untaken is None else tuple(self.untaken)
        coverage = self.further.coverage
        axes = by_axis(reports) if self.is_over and (self.is_sweep or coverage is not None) else ()
        if coverage is not None:  # whose cases lie in a way each
            axes = tuple(share for share in axes if share.axis != "layout")
        return Reports(
            reports=reports,
            planned=self.expected,
            not_taken=not_taken,
            groups=self.groups,
            axes=axes,
            coverage=coverage,
        )

    def take(self, checked: CheckOutcome) -> bool:
        """Whether it is one that is shown."""
        if checked.is_interrupted:
            return False
        if self.untaken is not None and checked.is_refused:
            self.untaken.append(RefusedCase(checked.title, words_of(checked.report)))
            self.refused += 1
            return False
        insort(
            self.warned if checked.report.is_warning else self.checks,
            checked,
            key=lambda outcome: outcome.report.number,
        )
        return True

    def fold(self, failing: CheckOutcome | None = None, in_full: CheckOutcome | None = None) -> None:
        """Folds what fails, once. A check that was made once more and in full takes the place of the one it was."""
        if self.is_over:
            return
        self.is_over = True
        self.groups = folded_by_cause([one.report for one in self.checks], in_full.report if in_full else None)
        if failing is not None and in_full is not None:
            self.checks[self.checks.index(failing)] = in_full

    def shrink(self, setting: Setting) -> None:
        requests = {checked.report.number: checked.request for checked in self.checks}
        self.groups = with_smallest(self.groups, requests, setting.shrink_budget, setting.workers)


def growing(planned: list[PlannedCheck], checks: Iterable[CheckOutcome], further: Further) -> Iterator[CheckOutcome]:
    """The checks as they are made, of a plan that grows behind its end."""
    made = list[CheckOutcome]()
    for checked in checks:
        made.append(checked)
        if len(made) == len(planned):
            planned += further(made)
        yield checked
