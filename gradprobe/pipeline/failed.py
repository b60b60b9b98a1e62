"""A check that failed -> why, and the edit that mends it. It is imported there alone: much stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..diagnosis.edits.tried import with_edits
from ..diagnosis.refusals import with_contiguous, with_length
from ..diagnosis.why import Reasons, reasons_of
from ..model.allowance import Allowance
from ..model.assignment import run_name
from ..model.failures import fault_words
from ..model.layout_run import MISMATCH
from ..numerics.evidence import LayoutRun, Probed, Steps
from ..probing.experiment import Experiment
from ..probing.runs import RunRecord, pinned


@dataclass(frozen=True)
class FailedCheck:
    """What was measured of a target that is wrong, or that does to memory what it should not."""

    experiment: Experiment
    """With the configuration of an autotuned kernel in which the first wrong run was made."""
    runs: tuple[LayoutRun, ...]
    """Those that were made in that configuration."""
    records: Sequence[RunRecord]
    report: Probed

    @classmethod
    def of(cls, experiment: Experiment, records: Sequence[RunRecord], report: Probed) -> FailedCheck:
        """The check, as its first wrong run was made."""
        configured = {one.run.layout: one.configuration for one in records if one.run and one.configuration}
        failing = next((run for run in report.runs if run.verdict == MISMATCH), None)
        runs = tuple(run for run in report.runs if run.layout not in configured)
        if failing is not None and failing.layout in configured:
            experiment = pinned(experiment, *configured[failing.layout])
            runs = (replace(failing, layout=run_name(failing.assigned)),)
        return cls(experiment, runs, records, report)

    def reasons(self) -> tuple[Reasons, Steps]:
        """Why it is wrong. A sharded target is run by its ranks: neither its launches nor its strides are seen here."""
        if not self.experiment.case.ranks:
            return reasons_of(self.experiment, self.runs), {}
        from ..sharded import reasons_on_ranks

        return reasons_on_ranks(self.experiment, self.runs)

    def mended(
        self, reasons: Reasons, right_at: Callable[[LayoutRun], str], allowance: Allowance, begin: Callable[[], object]
    ) -> Reasons:
        """The reasons, with one cause where only other lengths or layouts are right, and with the edit that was tried.

        Args:
            begin: called before edits are tried.
        """
        first, *_ = self.report.runs
        if first.verdict == MISMATCH:
            reasons = with_length(reasons, first, right_at)
        made = [(one.run.layout, one.executions[0].outcome) for one in self.records if one.run and one.executions]
        reasons = with_contiguous(reasons, self.report.runs, {layout: outcome.calls for layout, outcome in made})
        if self.report.failing is None or self.experiment.case.ranks or not allowance.count:
            return reasons
        begin()
        return reasons_with_edits(self.experiment, self.runs, reasons, allowance)


def reasons_with_edits(
    experiment: Experiment, runs: Sequence[LayoutRun], reasons: Reasons, allowance: Allowance
) -> Reasons:
    """The reasons with the edit that was tried. What goes wrong in here is told, and no verdict depends on it."""
    try:
        return with_edits(experiment, runs, reasons, allowance)
    except Exception as error:
        fault = fault_words(error)
        return replace(reasons, known=(*reasons.known, f"no edit could be tried, by a fault of gradprobe: {fault}"))
