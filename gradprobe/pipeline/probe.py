"""Chains the stages: Problem -> Probed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from ..frontends import COMPILED
from ..inputs.options import flags
from ..inputs.versions import environment, triton_cache
from ..model.allowance import Allowance, Client
from ..model.case import LOG2
from ..model.failures import Refusal, TargetFailure, own_faults
from ..model.memory_finding import GUARD, OUTSIDE, UNWRITTEN
from ..numerics.evidence import LayoutRun, ProbeResult
from ..numerics.range import refuse_out_of_range
from ..probing.compilation import Compilation
from ..probing.experiment import Experiment, dots_of, experiment_of
from ..probing.runs import RunRecord, notes_of, outcomes_of, records_of, target_that_ran
from .fit import OF_LENGTH, WHOLE_BLOCKS, Fit, fit, tried
from .resolve import Problem

if TYPE_CHECKING:
    from ..diagnosis.why import Reasons


def probed(problem: Problem, repro_command: str, client: Client) -> tuple[ProbeResult, Problem]:
    """A target in each layout, beside the reference: where it goes wrong and why, and of which problem.

    That is another one where the target does not take the one given. Failure: it could not be run, the case is none
    for it or overflows, or the file of inputs or the reference departs from the formulas.
    """
    problem, sentences, begun = fitted(problem, repro_command, client)
    experiment, first, rest = begun
    report = _finished(experiment, chain(first, rest), problem, client)
    return replace(report, notes=(*sentences, *report.notes)), problem


# The runs of a target up to the first that is measured, and those that follow.
Begun = tuple[Experiment, list[RunRecord], Iterator[RunRecord]]


def fitted(
    problem: Problem, repro_command: str, client: Client
) -> tuple[Problem, Sequence[str], Begun]:
    """The problem that a target takes in place of one, why, and its runs. Failure as `probed`."""
    meant = None
    try:
        begun = _begun(problem, repro_command, client)
        meant = fit(Fit(problem, record=begun[1][0]))
    except TargetFailure as failure:
        meant = fit(Fit(problem, failure=failure))
        if meant is None:
            raise
    if meant is None:
        return problem, (), begun
    words = flags(meant.options)
    command = shlex.join([*shlex.split(repro_command), *words]) if repro_command else ""
    return meant.problem, meant.sentences, _begun(meant.problem, command, client)


def _begun(problem: Problem, command: str, client: Client) -> Begun:
    case, target, saved = problem.case, problem.target, problem.saved
    about = (case, target, problem.reference, saved)
    experiment = experiment_of(*about, tick=client.tick, command=command)
    refuse_out_of_range(case, experiment.values)
    if saved is not None:
        from ..numerics.conventions import refuse_wrong_forward

        taken = frozenset(saved.values.keys() & target.takes.keys())
        refuse_wrong_forward(case, experiment.values, taken)
    records, first, words = records_of(experiment), list[RunRecord](), list[str]()
    for record in records:
        first.append(record)
        if record.run.measured is not None:
            return experiment, first, records
        strays = [finding.sentence for finding in record.run.memory[:1]]
        words.append(". ".join([f"{record.run.layout}: {record.run.skipped}", *strays]))
    refusals = "; ".join(words)
    raise Refusal(
        f"target {target.name!r} refused every layout ({refusals}): nothing was compared"
    )


def _finished(
    experiment: Experiment, to_come: Iterable[RunRecord], problem: Problem, client: Client
) -> ProbeResult:
    records: list[RunRecord] = []
    with Compilation() as compilation:
        for record in to_come:
            records.append(record)
            experiment = experiment.after(outcomes_of([record]))
            compilation.begin(record)
            report = measured_so_far(experiment, records)
            if report.measured:
                client.told(report)
        if experiment.case.recover and any(found.is_recoverable for _, found in report.measured):
            if all(found.comparison.matches for _, found in report.measured):
                from ..probing.insides import with_insides as with_intermediates
            else:
                from ..diagnosis.smaller import with_intermediates
            records = with_intermediates(experiment, records)
            report = measured_so_far(experiment, records)
        client.told(report)
        with experiment.stopwatch.timed("diagnose"):
            if report.failing is not None or any(map(attrgetter("memory"), report.runs)):
                report = _explained(experiment, report, compilation, problem, client)
            compile_errors, not_compiled = compilation.result()
    notes = [*notes_of(experiment, records), *not_compiled]
    seconds = experiment.stopwatch.seconds
    return replace(report, compile_errors=compile_errors, notes=tuple(notes), seconds=seconds)


def measured_so_far(experiment: Experiment, records: Sequence[RunRecord]) -> ProbeResult:
    target, warned = target_that_ran(experiment, records), dict[str, None]()
    for outcome in outcomes_of(records):
        warned |= dict.fromkeys(outcome.warned)
    cache = triton_cache() if target.backend == COMPILED else ""
    return ProbeResult(
        case=replace(experiment.case, dots=dots_of(experiment)),
        provenance=target,
        environment=environment(experiment.case.device) | {"triton_cache": cache},
        runs=tuple(map(attrgetter("run"), records)),
        notes=(),
        reproduce=experiment.command,
        warned=tuple(warned),
        seconds=experiment.stopwatch.seconds,
    )


def _explained(
    experiment: Experiment, report: ProbeResult, compilation: Compilation, problem: Problem, client: Client
) -> ProbeResult:  # fmt: skip
    # A sharded target is run by its ranks: neither launches nor strides are seen here.
    if experiment.case.ranks:
        from ..sharded.ring_faults import reasons_on_ranks

        reasons, steps = reasons_on_ranks(experiment, report.runs)
        report = replace(report, steps=steps)
    else:
        from ..diagnosis.why import FailedCheck, reasons_of  # here alone: much stands behind it

        right_at = partial(_right_at, problem)
        reasons = reasons_of(FailedCheck(experiment, report.runs, right_at))
        compilation.result()  # of which trials of edits know
        allowance = client.budget()
        if report.failing is not None and allowance.count:
            experiment.tick("trying edits", 0.0)
            reasons = reasons_with_edits(experiment, report.runs, reasons, allowance)
    return replace(
        report, diagnoses=reasons.diagnoses, known=reasons.known, sought=reasons.sought
    )


def reasons_with_edits(
    experiment: Experiment, runs: Sequence[LayoutRun], reasons: Reasons, allowance: Allowance
) -> Reasons:
    from ..diagnosis.edits.tried import with_edits

    faults: list[str] = []
    with own_faults(faults, "no edit could be tried"):
        reasons = with_edits(experiment, runs, reasons, allowance)
    return replace(reasons, known=(*reasons.known, *faults))


def _right_at(problem: Problem, first: LayoutRun) -> str:
    """With which whole blocks the first layout is right, as options; "" with none."""
    if set(OF_LENGTH) & problem.request.options.keys() or problem.saved is not None:
        return ""
    # By the length alone an LSE to base 2 stays wrong.
    is_open = "lse" in problem.target.takes and "lse_as" not in problem.fixed
    # A run of the longer one takes its time; what leaves a tensor, or was left unwritten at its end, is worth it.
    is_of_ends = any(one.kind in (OUTSIDE, UNWRITTEN, GUARD) for one in first.memory)
    for length in WHOLE_BLOCKS if is_of_ends else WHOLE_BLOCKS[:1]:
        for reading in [{}, {"lse_as": LOG2}] if is_open else [{}]:
            options = {"seqlen": length, **reading}
            run = tried(problem, options).run
            if run is not None and run.matches:
                return " ".join(flags(options))
    return ""
