"""Report of a survey of layouts and back: a run for each, and under "strides" what is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from ...model import report as model
from ...model.memory import MemoryFinding
from ...model.report import Report, Run, add_counts
from ...model.severity import ERROR, WARNING
from ...render.console import blame
from ...render.text import greppable
from .culprits import Culprit
from .survey import Survey
from .trials import NOT_RUN, PROGRAM, Plan, Result, Trial


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
    tried = model.Tried(
        kind=trial.kind, row=trial.row, layout=trial.layout, thorough=trial.thorough, hazard=result.hazard
    )
    run = structs.replace(run, how=result.how or None, copied=tuple(result.copied), severity=severity, tried=tried)
    return structs.replace(run, error=result.words, memory=result.memory) if result.verdict == NOT_RUN else run


def _matrix_of(found: Survey) -> dict[str, dict[str, str]]:
    """Verdicts by tensor ("all" for all at once) and layout."""
    rows: dict[str, dict[str, str]] = {}
    for result in found.results:
        if result.trial.row:
            rows.setdefault(result.trial.row, {})[result.trial.layout] = result.verdict
    return rows


def survey_of(report: Report) -> Survey:
    """The survey that a report tells of."""
    assert report.strides is not None
    results = tuple(_result(run, report.strides.findings) for run in report.runs if run.tried)
    plan = Plan(tuple(result.trial for result in results), report, report.runs[0].precision)
    culprits = tuple(Culprit(one.kind, one.strides, one.words) for one in report.strides.culprits)
    return Survey(plan, results, culprits, report.reproduce, report.seconds)


def _result(run: Run, findings: Sequence[MemoryFinding]) -> Result:
    tried = run.tried
    assert tried is not None
    words = run.skipped or (run.error if isinstance(run.error, str) else "")
    is_wrong = run.has_wrong_elements or bool(run.broken)
    return Result(
        trial=Trial(run.layout, tried.kind, (), tried.row, tried.layout, thorough=tried.thorough),
        verdict=run.verdict,
        how=run.how or "",
        words=words,
        blame=blame(run) if is_wrong else "",
        line=greppable(run) if is_wrong else "",
        first=run.first_mismatch,
        memory=tuple(replace(one, layout="") for one in findings if one.layout == run.layout),
        copied=run.copied,
        run=run,
        hazard=tried.hazard,
        severity=run.severity or ERROR,
    )
