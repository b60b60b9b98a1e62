"""Chains the stages: case and target, or a problem, -> Probed; of what the target takes in place of the problem."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..frontends import COMPILED
from ..inputs.options import flags
from ..model.allowance import NOTHING, Allowance
from ..model.assignment import missing
from ..model.case import LOG2, Case, ranked
from ..model.failures import Refusal, TargetFailure, fault_words
from ..model.mechanisms import door
from ..numerics.evidence import LayoutRun, Probed, Steps
from ..numerics.range import refuse_out_of_range, unshown
from ..probing.compilation import Compilation
from ..probing.experiment import Experiment, Tick, dots_of, experiment_of, silent
from ..probing.runs import (
    RunRecord,
    environment,
    notes_of,
    outcomes_of,
    records_of,
    target_that_ran,
    warned_in,
    with_strays,
)
from ..targets.find import Target
from ..targets.naming import triton_cache
from .fit import OF_LENGTH, WHOLE_BLOCKS, WRONG_THROUGHOUT, Fit, fit, refuses, share_wrong, tried
from .resolve import Problem

if TYPE_CHECKING:
    from ..diagnosis.why import Reasons
    from ..inputs.saved import Saved


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
    budget: Callable[[], Allowance] = lambda: NOTHING,
    right_at: Callable[[LayoutRun], str] = lambda first: "",
) -> Probed:
    """Runs a target on a case under each layout, beside the reference, and says where it goes wrong, and why.

    Args:
        case: with its device resolved to "cpu" or "cuda".
        reference: a user's own, in place of the built-in one.
        saved: the values of a case that has `inputs`; without, they are drawn.
        reproduce: the command line to print.
        why: whether a reason is sought where it is wrong.
        told: given the report of what is measured so far, again and again.
        given: the options that somebody gave; of each it is said if this case cannot show it.
        budget: how many edits of the target are tried, once it is wrong.
        right_at: given the first layout's run, says at which other length the target is right.

    Raises:
        UsageFailure: the case uses what the target does not take, or a right kernel overflows on its values.
        Refusal: the target raised on purpose under every layout.
        InputsFailure: the O or LSE of a file is not that of its q, k and v.
        TargetFailure: the target could not be run.
        ReferenceFailure: the reference breaks an identity that it should keep.
    """
    experiment = experiment_of(case, target, reference, saved, tick=tick, command=reproduce)
    refuse_out_of_range(case, experiment.values)
    if saved is not None:
        from ..numerics.forward import refuse_wrong_forward

        refuse_wrong_forward(case, experiment.values, frozenset(saved.values.keys() & target.takes.keys()))
    records: list[RunRecord] = []
    with Compilation() as compilation:
        for record in records_of(experiment):
            records.append(record)
            experiment = experiment.after(outcomes_of([record]))
            compilation.begin(record)
            report = measured_so_far(experiment, records)
            if report.measured:
                told(report)
        records = _with_intermediates(experiment, records)
        report = measured_so_far(experiment, records)
        if not report.measured:
            raise Refusal(f"target {target.name!r} refused every layout ({_refusals(report)}): nothing was compared")
        told(report)
        with experiment.stopwatch.timed("diagnose"):
            if why and (report.failing is not None or any(run.memory for run in report.runs)):
                report = _explained(experiment, records, report, compilation, right_at, budget)
            compile_errors, not_compiled = compilation.result()
    notes = [*notes_of(experiment, records), *not_compiled]
    if report.failing is None:
        notes += _not_shown(experiment, report, given)
    seconds = experiment.stopwatch.seconds
    return replace(report, compile_errors=compile_errors, notes=tuple(notes), seconds=seconds)


def _with_intermediates(experiment: Experiment, records: list[RunRecord]) -> list[RunRecord]:
    """The records with what the target does not expose."""
    measured = [record.run.measured for record in records if record.run.measured]
    if not experiment.case.recover or not any(run.is_recoverable for run in measured):
        return records
    if all(run.comparison.matches for run in measured):
        from ..probing.insides import with_insides

        return with_insides(experiment, records)
    from ..diagnosis.apart import with_intermediates

    return with_intermediates(experiment, records)


def measured_so_far(experiment: Experiment, records: Sequence[RunRecord]) -> Probed:
    """What was measured, without a reason."""
    target = target_that_ran(experiment, records)
    cache = triton_cache() if target.backend == COMPILED else ""
    return Probed(
        case=replace(experiment.case, dots=dots_of(experiment)),
        provenance=target,
        environment=environment(experiment.case.device) | {"triton_cache": cache},
        runs=tuple(with_strays(records)),
        notes=(),
        reproduce=experiment.command,
        warned=warned_in(records),
        seconds=experiment.stopwatch.seconds,
    )


def _refusals(report: Probed) -> str:
    said = []
    for run in report.runs:
        strays = [finding.sentence for finding in run.memory[:1]]
        said.append(". ".join([f"{run.layout}: {run.skipped}", *strays]))
    return "; ".join(said)


def _not_shown(experiment: Experiment, report: Probed, given: Collection[str]) -> list[str]:
    """Of each option below the budget, that a match says nothing of it. What goes wrong in here is told alone."""
    measured = next(run.measured for run in report.runs if run.measured is not None)
    about = (experiment.case, experiment.values, partial(getattr, measured, "x"), measured.trace)
    try:
        with experiment.stopwatch.timed("compare"):
            return list(unshown(*about, measured.comparison.precision, given))
    except Exception as error:
        fault = fault_words(error)
        return [f"which options this case shows could not be found out, by a fault of gradprobe: {fault}"]


# --- a check that failed


def _explained(
    experiment: Experiment,
    records: Sequence[RunRecord],
    report: Probed,
    compilation: Compilation,
    right_at: Callable[[LayoutRun], str],
    budget: Callable[[], Allowance],
) -> Probed:
    """The report of a target that is wrong, or does to memory what it should not, with why, and the edit that mends it.

    One cause stands in it where only other lengths, or layouts, are right.
    """
    from ..diagnosis.why import FailedCheck, reasons_of  # here alone: much stands behind it

    steps: Steps = {}
    if experiment.case.ranks:  # a sharded target is run by its ranks: neither launches nor strides are seen here
        from ..sharded import reasons_on_ranks

        reasons, steps = reasons_on_ranks(experiment, report.runs)
    else:
        launches = {record.run.layout: record.executions[0].outcome.calls for record in records if record.executions}
        reasons = reasons_of(FailedCheck(experiment, report.runs, launches, right_at))
    compilation.result()  # of which trials of edits know
    allowance = budget()
    if report.failing is not None and not experiment.case.ranks and allowance.count:
        experiment.tick("trying edits", 0.0)
        reasons = reasons_with_edits(experiment, report.runs, reasons, allowance)
    return replace(report, diagnoses=reasons.diagnoses, known=reasons.known, sought=reasons.sought, steps=steps)


def reasons_with_edits(
    experiment: Experiment, runs: Sequence[LayoutRun], reasons: Reasons, allowance: Allowance
) -> Reasons:
    """The reasons with the edit that was tried. What goes wrong in here is told, and no verdict depends on it."""
    from ..diagnosis.edits.tried import with_edits

    try:
        return with_edits(experiment, runs, reasons, allowance)
    except Exception as error:
        fault = fault_words(error)
        return replace(reasons, known=(*reasons.known, f"no edit could be tried, by a fault of gradprobe: {fault}"))


# --- what the target takes in place of the problem


def probed(
    problem: Problem,
    repro_command: str,
    tick: Tick,
    told: Callable[[Probed], object] = lambda so_far: None,
    budget: Callable[[], Allowance] = lambda: NOTHING,
) -> tuple[Probed, Problem]:
    """The report, and the problem that it is about: another one where the target does not take the one given.

    Args:
        repro_command: the command line that repeats it; what is found out stands in the report's.
        told, budget: from `probe`.

    Raises:
        Failure: from `probe`.
    """
    is_measured = False

    def look(so_far: Probed) -> None:
        nonlocal is_measured
        wrong = 0.0 if is_measured else share_wrong(so_far.runs[0])
        if wrong > WRONG_THROUGHOUT and (meant := fit(problem, None, wrong)) is not None:
            raise _MeaningFound(meant)
        is_measured = True
        told(so_far)

    def report_on(found: Fit, told: Callable[[Probed], object]) -> tuple[Probed, Problem]:
        of, line = found.problem, repro_command
        if line:
            line = shlex.join([*shlex.split(line), *flags(found.options)])
        report = probe(
            of.case, of.target, reference=of.reference, saved=of.saved, given=of.given, reproduce=line, tick=tick,
            told=told, budget=budget, right_at=partial(_right_at, of),
        )  # fmt: skip
        return replace(report, notes=(*found.sentences, *report.notes)), of

    try:
        return report_on(Fit(problem), look)
    except _MeaningFound as otherwise:
        (found,) = otherwise.args
    except TargetFailure as failure:
        found = None if is_measured else fit(problem, failure)
        if found is None:
            raise _with_way_out(failure, problem.case) from failure.__cause__
    return report_on(found, told)


class _MeaningFound(Exception):
    """The target takes its tensors for something else: its argument is the fit."""


def _with_way_out(failure: TargetFailure, case: Case) -> TargetFailure:
    """The failure. Of a refusal the way out names the shape of a bias or mask that was given."""
    ways = []
    for name in ("bias", "mask") if refuses(failure) else ():
        axes, rank = ranked(name, case) or ("", 0)
        if axes and getattr(case, name):
            shape = [case.size(letter) for at, letter in enumerate(axes) if at not in missing(axes, rank)]
            ways.append(f"{name} of shape {shape} was given; --{name}-axes and --{name}-rank say another")
    failure.way_out = "; ".join(filter(None, [*ways, failure.way_out]))
    return failure


@door("length", lambda problem, first: "")
def _right_at(problem: Problem, first: LayoutRun) -> str:
    """With which length of whole blocks the first layout is right, as options; "" with none, or where one was given."""
    if set(OF_LENGTH) & problem.request.options.keys() or problem.saved is not None:
        return ""
    readings: list[dict[str, Any]] = [{}]
    if "lse" in problem.target.takes and "lse_as" not in problem.fixed:
        readings.append({"lse_as": LOG2})  # by the length alone it stays wrong
    # A run of the longer one takes its time; what leaves a tensor is worth it.
    for length in WHOLE_BLOCKS if first.memory else WHOLE_BLOCKS[:1]:
        for reading in readings:
            options = {"seqlen": length, **reading}
            run = tried(problem, options).run
            if run is not None and run.matches:
                return " ".join(flags(options))
    return ""
