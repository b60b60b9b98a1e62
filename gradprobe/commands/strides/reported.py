"""Report of a survey of layouts: a run for each, and under "strides" what is its own."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from ...model import report as model
from ...model.memory import WARNING
from ...model.report import Report
from ...model.run import PROGRAM, Run, Tried, add_counts
from .survey import Survey
from .trials import NOT_RUN, Result


def report_of(found: Survey) -> Report:
    """What came of it, so far or in the end."""
    runs = tuple(map(_run, found.results))
    firsts = (run.first_mismatch for run in runs if run.severity != WARNING)
    results = found.results
    return structs.replace(
        found.plan.report,
        verdict=found.verdict,
        runs=runs,
        first_mismatch=next(filter(None, firsts), None),
        compared=add_counts(run.compared for run in runs),
        warnings=tuple(hazard.warned for hazard in found.warnings),
        reproduce=found.repro_command,
        seconds={stage: round(took, 4) for stage, took in found.seconds.items()},
        strides=model.Survey(
            layouts=len(found.plan.trials),
            matrix=_matrix_of(found),
            programs={each.trial.title: each.verdict for each in results if each.trial.kind == PROGRAM},
            culprits=tuple(model.Culprit(one.kind, tuple(one.strides), one.words) for one in found.culprits),
            findings=tuple(replace(finding, layout=each.trial.title) for each in results for finding in each.memory),
        ),
    )


def _run(result: Result) -> Run:
    run = result.run or Run(layout=result.trial.title, verdict=result.verdict)
    severity = result.severity if result.is_failing else None
    trial = result.trial
    tried = Tried(kind=trial.kind, row=trial.row, layout=trial.layout, thorough=trial.thorough, hazard=result.hazard)
    run = structs.replace(run, how=result.how or None, copied=tuple(result.copied), severity=severity, tried=tried)
    return structs.replace(run, error=result.words, memory=result.memory) if result.verdict == NOT_RUN else run


def _matrix_of(found: Survey) -> dict[str, dict[str, str]]:
    """Verdicts by tensor ("all" for all at once) and layout."""
    rows: dict[str, dict[str, str]] = {}
    for result in found.results:
        if result.trial.row:
            rows.setdefault(result.trial.row, {})[result.trial.layout] = result.verdict
    return rows
