"""Chains the stages: probe(case, target) -> Probed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ..diagnosis.why import Reasons, reasons_of
from ..inputs.saved import Saved
from ..model.assignment import run_name
from ..model.case import Case
from ..model.failures import Refusal
from ..model.run import MISMATCH
from ..numerics.evidence import Probed, Run
from ..numerics.range import refuse_out_of_range, unshown
from ..probing.experiment import Experiment, Tick, dots_of, experiment_of, silent
from ..probing.insides import with_insides
from ..probing.receipt import environment, notes_of, provenance
from ..probing.runs import Record, outcomes_of, pinned, records_of, with_strays, with_symmetries
from ..targets.find import Target


def probe(
    case: Case,
    target: Target,
    *,
    reference: Target | None = None,
    saved: Saved | None = None,
    reproduce: str = "",
    why: bool = True,
    tick: Tick = silent,
    told: Callable[[Probed], object] = lambda so_far: None,
    given: Collection[str] = (),
    first: Callable[[Run], None] = lambda run: None,
    found_out: tuple[str, ...] = (),
) -> Probed:
    """Runs a target on a case under each layout, beside the reference, and says where it goes wrong, and why.

    Args:
        case: with its device resolved to "cpu" or "cuda".
        reference: a user's own, in place of the built-in one; audited by the identities that it should keep.
        saved: the values of a case that has `inputs`; without, they are drawn.
        reproduce: the command line to print.
        why: whether a reason is sought where it is wrong, by hypotheses and by running the target again.
        told: given the report of what is measured so far, after each layout, and after the second runs.
        given: the options that somebody gave; of each it is said if this case cannot show it.
        first: told of the first run, before there are others.
        found_out: sentences about the case that no option said.

    Raises:
        UsageFailure: the case uses what the target does not take, or a right kernel overflows on its values.
        Refusal: the target raised on purpose under every layout, so that nothing could be compared.
        TargetFailure: the target could not be run.
        ReferenceFailure: the reference breaks an identity that it should keep.
    """
    experiment = experiment_of(case, target, reference, saved, tick=tick, command=reproduce)
    refuse_out_of_range(case, experiment.values)
    records: list[Record] = []
    for record in records_of(experiment):
        records.append(record)
        experiment = experiment.after(outcomes_of([record]))
        if len(records) == 1 and record.run:
            first(record.run)
        _tell(told, experiment, records)
    records = with_insides(experiment, with_symmetries(experiment, records))
    report = _so_far(experiment, records)
    if not report.measured:
        worst = {run.layout: [finding.sentence for finding in run.memory[:1]] for run in report.runs}
        words = "; ".join(". ".join([f"{run.layout}: {run.skipped}", *worst[run.layout]]) for run in report.runs)
        raise Refusal(f"target {target.name!r} refused every layout ({words}): nothing was compared")
    _tell(told, experiment, records)
    with experiment.stopwatch.timed("diagnose"):
        reasons = reasons_of(*_as_it_failed(experiment, records, report.runs)) if why else Reasons()
    not_shown = _not_shown(experiment, report.runs, given) if report.failing is None else []
    notes = (*found_out, *notes_of(experiment, records), *not_shown)
    seconds = experiment.stopwatch.seconds
    return replace(report, notes=notes, diagnoses=reasons.diagnoses, known=reasons.known, seconds=seconds)


def _as_it_failed(
    experiment: Experiment, records: Sequence[Record], runs: Sequence[Run]
) -> tuple[Experiment, list[Run]]:
    """The experiment with the configuration in which the first wrong run was made, and the runs in that one."""
    configured = {record.run.layout: record.configuration for record in records if record.run and record.configuration}
    failing = next((run for run in runs if run.verdict == MISMATCH), None)
    if failing is not None and failing.layout in configured:
        alone = replace(failing, layout=run_name(failing.assigned))
        return pinned(experiment, *configured[failing.layout]), [alone]
    return experiment, [run for run in runs if run.layout not in configured]


def _not_shown(experiment: Experiment, runs: Sequence[Run], given: Collection[str]) -> list[str]:
    """Of each option below the budget, that a match says nothing of it. What goes wrong in here is told alone."""
    measured = next(run.measured for run in runs if run.measured is not None)
    precision = measured.comparison.precision
    try:
        with experiment.stopwatch.timed("compare"):
            return list(unshown(experiment.case, measured.x, measured.trace, precision, given))
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        return [f"which options this case shows could not be found out, by a fault of gradprobe: {fault}"]


def _tell(told: Callable[[Probed], object], experiment: Experiment, records: Sequence[Record]) -> None:
    report = _so_far(experiment, records)
    if report.measured:
        told(report)


def _so_far(experiment: Experiment, records: Sequence[Record]) -> Probed:
    """What was measured, without a reason."""
    return Probed(
        case=replace(experiment.case, dots=dots_of(experiment)),
        provenance=provenance(experiment, records),
        environment=environment(experiment.case.device),
        runs=tuple(with_strays(records)),
        notes=(),
        reproduce=experiment.command,
        seconds=experiment.stopwatch.seconds,
    )
