"""`gradprobe strides`: the guard against stride regressions."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, field, replace
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
    fast: Annotated[bool, typer.Option("--fast", help="Try fewer layouts, for use on every push")] = False,
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
    with failures_told(forms, replace(request, target=target or "").command("strides", **words), show_traceback):
        forms.refuse_one_file_twice()
        _refuse(options)
        shared.refuse_wrong_words(request)
        effective = effective_settings(Path.cwd())
        shared.settle_default(target, effective)
        targets = shared.targets_of(target, effective.top.targets)
        # A project's own layouts are for check: here all are tried.
        told = dict.fromkeys(_LAYOUTS) | options
        print_settings(effective.line(told, timeout, [] if target else [plural(len(effective.top.targets), "target")]))
        budget = shared.FIX_BUDGET if fix_budget is None else fix_budget
        tour = _Tour(forms, words, fast, effective.timeout(timeout), budget, len(targets), show_traceback)
        if code := tour.begin():
            raise typer.Exit(code)
        for word in targets:
            tour.add(effective.over(replace(request, target=word)))
        raise typer.Exit(tour.end())


@dataclass
class _Tour:
    """The surveys of one command."""

    forms: Forms
    words: dict[str, Any]
    """Its own options, for the lines that repeat it."""
    fast: bool
    timeout: float | None
    fix_budget: int
    planned: int
    tracebacks: bool
    reports: list[Report] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    def begin(self) -> int:
        """0 where every file can be written; else the exit code, and why is said before anything is tried."""
        return self.forms.write_so_far(Reports(reports=(), planned=self.planned))

    def add(self, request: last.CheckRequest) -> None:
        """Surveys a target and shows what came of it; what is known so far is in every file after each layout.

        Where it cannot be surveyed, its failure is one of the reports, and stands on stderr.
        """
        options = {name: word for name, word in request.options.items() if name not in _LAYOUTS}
        repro_command = replace(request, options=options).command("strides", **self.words)
        # The small lengths where none are given.
        given = _LENGTHS & options.keys()
        small = {name: value for name, value in SMALL.items() if not (given and name in _LENGTHS)}
        try:
            found = self._surveyed(replace(request, options=small | options), repro_command, frozenset(options))
        except Exception as error:
            failure = report_error(error, self.tracebacks)
            failed = failed_report(failure, repro_command, request.target)
            self._keep(structs.replace(failed, strides=SurveySummary()), failure.exit_code)
        else:
            self._keep(found.report, found.exit_code)

    def _keep(self, report: Report, code: int) -> None:
        self.reports.append(report)
        self.codes.append(code)
        self.forms.show(report)

    def end(self) -> int:
        """Writes every form that was asked for; the exit code of all."""
        return self.forms.write(self._together(), code_of(self.codes))

    def _surveyed(self, request: last.CheckRequest, repro_command: str, given: frozenset[str]) -> Survey:
        from ..commands.strides.survey import survey

        latest: list[Survey] = []

        def so_far(survey: Survey) -> None:
            latest[:] = [survey]
            done, of = len(survey.results), len(survey.plan.trials)
            tick(f"{request.target}, layout {done} of {of}", done / of)
            self.forms.write_so_far(self._together(survey.report))

        with Progress() as tick:
            tick("importing torch and the target", None)
            try:
                return survey(
                    request,
                    repro_command,
                    given=given,
                    fast=self.fast,
                    timeout=self.timeout,
                    fix_budget=self.fix_budget,
                    workers=min(_MOST_WORKERS, shared.count_of_workers(None, unless_gpu=True)),
                    told=so_far,
                    echo=sys.stderr.write,
                )
            except KeyboardInterrupt:
                tick.over(functools.partial(self._show_stopped, latest))
                raise

    def _show_stopped(self, latest: list[Survey]) -> None:
        for found in latest if not self.forms.on_stdout else ():
            write_stdout(
                f"INTERRUPTED  {len(found.results)} of {len(found.plan.trials)} layouts were tried; of these:\n"
            )
            self.forms.show(found.report)
        done, total = (len(latest[0].results), len(latest[0].plan.trials)) if latest else (0, 0)
        print_failure(interrupted(done, total, "layouts"))

    def _together(self, *more: Report) -> Reports:
        return Reports(reports=(*self.reports, *more), planned=self.planned if self.planned > 1 else None)


def _refuse(options: dict[str, Any]) -> None:
    """What contradicts a survey of layouts, or would change nothing about it."""
    reasons = dict.fromkeys(("layout", "runs", "inputs"), "strides tries every layout, of drawn values")
    reasons |= dict.fromkeys(("repeat", "poison"), "strides runs each layout as often as it needs, memory full of NaN")
    for name, reason in reasons.items():
        if name in options:
            raise UsageFailure(f"--{name}: {reason}", f"gradprobe check takes --{name}")
