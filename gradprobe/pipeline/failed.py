"""A check that failed -> why, and the edit that mends it. It is imported there alone: much stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..diagnosis.edits.tried import with_edits
from ..diagnosis.refusals import with_contiguous, with_length
from ..diagnosis.why import Reasons, reasons_of
from ..model.allowance import Allowance
from ..model.assignment import run_name
from ..model.failures import fault_words
from ..model.layout_run import MISMATCH
from ..numerics.evidence import LayoutRun, Probed, Steps
from ..probing.compilation import Compilation
from ..probing.experiment import Experiment
from ..probing.runs import RunRecord, pinned


def explained(
    experiment: Experiment,
    records: Sequence[RunRecord],
    report: Probed,
    compilation: Compilation,
    right_at: Callable[[LayoutRun], str],
    budget: Callable[[], Allowance],
) -> Probed:
    """The report of a target that is wrong, or does to memory what it should not, with why, and the edit that mends it.

    One cause stands in it where only other lengths or layouts are right.
    """
    experiment, runs = _as_it_failed(experiment, records, report)
    steps: Steps = {}
    if experiment.case.ranks:  # a sharded target is run by its ranks: neither launches nor strides are seen here
        from ..sharded import reasons_on_ranks

        reasons, steps = reasons_on_ranks(experiment, runs)
    else:
        reasons = reasons_of(experiment, runs)
    compilation.result()  # of which trials of edits know
    if report.runs[0].verdict == MISMATCH:
        reasons = with_length(reasons, report.runs[0], right_at)
    made = [(record.run.layout, record.executions[0]) for record in records if record.run and record.executions]
    launches = {layout: execution.outcome.calls for layout, execution in made}
    reasons = with_contiguous(reasons, report.runs, launches)
    allowance = budget()
    if report.failing is not None and not experiment.case.ranks and allowance.count:
        experiment.tick("trying edits", 0.0)
        reasons = reasons_with_edits(experiment, runs, reasons, allowance)
    return replace(report, diagnoses=reasons.diagnoses, known=reasons.known, sought=reasons.sought, steps=steps)


def _as_it_failed(
    experiment: Experiment, records: Sequence[RunRecord], report: Probed
) -> tuple[Experiment, tuple[LayoutRun, ...]]:
    """The experiment in the configuration of an autotuned kernel of its first wrong run, and the runs made in that."""
    configured = {record.run.layout: record.configuration for record in records if record.run}
    failing = next((run for run in report.runs if run.verdict == MISMATCH), None)
    if failing is not None and (configuration := configured.get(failing.layout)):
        run = replace(failing, layout=run_name(failing.assigned))
        return pinned(experiment, *configuration), (run,)
    return experiment, tuple(run for run in report.runs if not configured.get(run.layout))


def reasons_with_edits(
    experiment: Experiment, runs: Sequence[LayoutRun], reasons: Reasons, allowance: Allowance
) -> Reasons:
    """The reasons with the edit that was tried. What goes wrong in here is told, and no verdict depends on it."""
    try:
        return with_edits(experiment, runs, reasons, allowance)
    except Exception as error:
        fault = fault_words(error)
        return replace(reasons, known=(*reasons.known, f"no edit could be tried, by a fault of gradprobe: {fault}"))
