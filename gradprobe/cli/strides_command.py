"""`gradprobe strides`: the guard against stride regressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer
from msgspec import structs

from ..commands.suite.checking import Setting
from ..commands.suite.outcome import code_of, code_of_report
from ..inputs.history import CheckRequest
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.number import plural
from ..model.report import Report
from ..render.terminal import Progress, interrupted, print_failure, write_stdout
from . import shared_options as shared
from .checks import say
from .report_forms import Forms, failures_told, with_forms

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
    fix_budget: shared.FixBudget = shared.FIX_BUDGET,
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
    repro_command = replace(request, target=target or "").command("strides", **words)
    with failures_told(forms, repro_command, show_traceback):
        forms.refuse_one_file_twice()
        _refuse(options)
        shared.refuse_wrong_words(request)
        settings = shared.settings_here(target)
        targets = shared.targets_of(target, settings)
        counted = [] if target else [plural(len(settings.top.targets), "target")]
        # A project's own layouts are for check: here all are tried.
        given = dict.fromkeys(_LAYOUTS) | options
        shared.note_settings(settings, given, timeout, counted)
        planned = len(targets) if len(targets) > 1 else None
        so_far = Reports(reports=(), planned=planned)
        if code := forms.write_so_far(structs.replace(so_far, planned=len(targets))):
            raise typer.Exit(code)
        workers = min(_MOST_WORKERS, shared.count_of_workers(None, unless_gpu=True))
        limit = settings.timeout(timeout)
        how = Setting(show_traceback, workers, timeout=limit, fix_budget=fix_budget)
        for word in targets:
            asked = settings.over(replace(request, target=word))
            report = _surveyed(asked, words, how, forms, so_far)
            say(report, show_traceback)
            forms.show(report)
            so_far = structs.replace(so_far, reports=(*so_far.reports, report))
        code = code_of([code_of_report(report) for report in so_far.reports])
        raise typer.Exit(forms.write(so_far, code))


def _surveyed(
    asked: CheckRequest, words: Mapping[str, Any], how: Setting, forms: Forms, before: Reports
) -> Report:
    """A target tried in every layout, what is known so far in every file after each.

    Args:
        words: the options of the command itself, for the line that repeats it.
    """
    from ..commands.strides.survey import survey

    options = {name: word for name, word in asked.options.items() if name not in _LAYOUTS}
    given = _LENGTHS & options.keys()
    small = {name: value for name, value in SMALL.items() if not (given and name in _LENGTHS)}
    repro_command = replace(asked, options=options).command("strides", **words)
    request = replace(asked, options=small | options)
    report: Report | None = None
    with Progress() as tick:
        tick("importing torch and the target", None)
        try:
            for report in survey(
                request,
                repro_command,
                given=frozenset(options),
                fast=bool(words["fast"]),
                setting=how,
            ):
                done, of = len(report.runs), _planned(report)
                tick(f"{asked.target}, layout {done} of {of}", done / max(1, of))
                forms.write_so_far(structs.replace(before, reports=(*before.reports, report)))
        except KeyboardInterrupt:
            tick.over(lambda: _show_stopped(report, forms))
            raise
    assert report is not None
    return report


def _planned(report: Report) -> int:
    return report.strides.layouts if report.strides else 0


def _show_stopped(latest: Report | None, forms: Forms) -> None:
    done, of = (len(latest.runs), _planned(latest)) if latest else (0, 0)
    if latest and not forms.on_stdout:
        write_stdout(f"INTERRUPTED  {done} of {of} layouts were tried; of these:\n")
        forms.show(latest)
    print_failure(interrupted(done, of, "layouts"))


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
