"""`gradprobe strides`: the guard against stride regressions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from ..commands.configuration.effective import effective_settings
from ..commands.suite.outcome import code_of
from ..inputs import history as last
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.number import plural
from ..model.report import Report, SurveySummary, failed_report
from ..render.terminal import Progress, interrupted, print_failure, write_stdout
from . import shared_options as shared
from .error_output import failures_told, print_settings, report_error
from .report_forms import Forms, with_forms

if TYPE_CHECKING:
    from ..commands.strides.survey import Survey

# A small case with a partial tile along both axes: there are many runs.
SMALL = {"seqlen": 37, "head_dim": 16, "block_m": 32, "block_n": 32}
# Each imports torch and makes the contiguous run for itself, which more would not repay.
_MOST_WORKERS = 4
_LAYOUTS = ("layout", "runs")
_LENGTHS = {"seqlen", "seqlen_q", "seqlen_k", "seqlens", "cu_seqlens"}


@shared.with_case_options
@with_forms
def strides(
    target: shared.Target = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Try fewer layouts, for use on every push")
    ] = False,
    timeout: shared.Timeout = None,
    fix_budget: shared.FixBudget = None,
    family: shared.Family = None,
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a kernel with every tensor in every layout, and say which it gets wrong.

    Each run is held against the same values laid contiguous, bit for bit; where it differs, against the reference.
    Without a target, those are tried that pyproject.toml names under tool.gradprobe.
    """
    request = shared.request_of(target, family, options)
    words = {"fast": fast or None, "timeout": timeout}
    with failures_told(
        forms, replace(request, target=target or "").command("strides", **words), show_traceback
    ):
        forms.refuse_one_file_twice()
        _refuse(options)
        shared.refuse_wrong_words(request)
        effective = effective_settings(Path.cwd())
        shared.settle_default(target, effective)
        targets = shared.targets_of(target, effective.top.targets)
        # A project's own layouts are for check: here all are tried.
        told = dict.fromkeys(_LAYOUTS) | options
        print_settings(
            effective.line(
                told, timeout, [] if target else [plural(len(effective.top.targets), "target")]
            )
        )
        budget = shared.FIX_BUDGET if fix_budget is None else fix_budget
        planned = len(targets) if len(targets) > 1 else None
        if code := forms.write_so_far(Reports(reports=(), planned=len(targets))):
            raise typer.Exit(code)
        how = {"fast": fast, "timeout": effective.timeout(timeout), "fix_budget": budget}
        found, codes = list[Report](), list[int]()
        for word in targets:
            asked = effective.over(replace(request, target=word))
            report, code = _surveyed(
                asked,
                words,
                how,
                forms,
                Reports(reports=tuple(found), planned=planned),
                show_traceback,
            )
            found.append(report)
            codes.append(code)
            forms.show(report)
        raise typer.Exit(
            forms.write(Reports(reports=tuple(found), planned=planned), code_of(codes))
        )


def _surveyed(
    asked: last.CheckRequest,
    words: Mapping[str, Any],
    how: Mapping[str, Any],
    forms: Forms,
    before: Reports,
    stack: bool,
) -> tuple[Report, int]:
    """A target tried in every layout, what is known so far in every file after each; and its exit code.

    Where it cannot be surveyed, its failure is the report, and stands on stderr.

    Args:
        words: the options of the command itself, for the line that repeats it.
        before: the reports of the targets before it.
        stack: whether it is shown where a failure was raised.
    """
    from ..commands.strides.survey import survey

    options = {name: word for name, word in asked.options.items() if name not in _LAYOUTS}
    repro_command = replace(asked, options=options).command("strides", **words)
    # The small lengths where none are given.
    given = _LENGTHS & options.keys()
    small = {name: value for name, value in SMALL.items() if not (given and name in _LENGTHS)}
    latest: Survey | None = None

    def so_far(survey: Survey) -> None:
        nonlocal latest
        latest, done, of = survey, len(survey.results), len(survey.plan.trials)
        tick(f"{asked.target}, layout {done} of {of}", done / of)
        forms.write_so_far(structs.replace(before, reports=(*before.reports, survey.report)))

    try:
        with Progress() as tick:
            tick("importing torch and the target", None)
            try:
                found = survey(
                    replace(asked, options=small | options),
                    repro_command,
                    given=frozenset(options),
                    workers=min(_MOST_WORKERS, shared.count_of_workers(None, unless_gpu=True)),
                    told=so_far,
                    echo=sys.stderr.write,
                    **how,
                )
            except KeyboardInterrupt:
                tick.over(lambda: _show_stopped(latest, forms))
                raise
    except Exception as error:
        failure = report_error(error, stack)
        failed = failed_report(failure, repro_command, asked.target)
        return structs.replace(failed, strides=SurveySummary()), failure.exit_code
    return found.report, found.exit_code


def _show_stopped(latest: Survey | None, forms: Forms) -> None:
    done, total = (len(latest.results), len(latest.plan.trials)) if latest else (0, 0)
    if latest and not forms.on_stdout:
        write_stdout(f"INTERRUPTED  {done} of {total} layouts were tried; of these:\n")
        forms.show(latest.report)
    print_failure(interrupted(done, total, "layouts"))


def _refuse(options: dict[str, Any]) -> None:
    """What contradicts a survey of layouts, or would change nothing about it."""
    reasons = dict.fromkeys(
        ("layout", "runs", "inputs"), "strides tries every layout, of drawn values"
    )
    reasons |= dict.fromkeys(
        ("repeat", "poison"), "strides runs each layout as often as it needs, memory full of NaN"
    )
    for name, reason in reasons.items():
        if name in options:
            raise UsageFailure(f"--{name}: {reason}", f"gradprobe check takes --{name}")
