"""`gradprobe fix`: an edit with which everything matches, as a diff or written into the file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..commands.apply_edit import apply, refuse_dirty, refuse_link
from ..commands.configuration.effective import effective_settings
from ..commands.suite.checking import Setting, check_each
from ..commands.suite.plan import PlannedCheck
from ..inputs import history as last
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.layout_run import FAILED
from ..model.report import Report, TriedEdit, passing_edit
from ..model.writing import visible
from ..render.console import headline
from ..render.reasons import render_reasons
from ..render.terminal import Progress, note, show, width
from ..targets.find import parts_of
from . import shared_options as shared
from .checks import say
from .diff_command import like_the_last
from .error_output import failures_told, print_settings
from .report_forms import Forms


@shared.with_case_options
def fix(
    target: shared.Target = None,
    apply_it: Annotated[
        bool,
        typer.Option(
            "--apply", help="Write the edit into the file, after asking; then check again"
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    plausible: Annotated[
        bool,
        typer.Option(
            "--plausible", help="Write also an edit that matches here and is not certain"
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write also a file with changes that git has not")
    ] = False,
    fix_budget: shared.FixBudget = None,
    family: shared.Family = None,
    reference: shared.Reference = None,
    json_file: shared.JsonFile = None,
    timeout: shared.Timeout = None,
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Check a kernel, and where it is wrong show the smallest edit that was tried and makes everything match.

    Without TARGET the last check in this folder is meant, and its report where that holds an edit; without any, nothing
    is. The file is written with --apply alone.
    """
    asked = shared.request_of(target, family, options, reference)
    with failures_told(json_file, asked.command("fix"), show_traceback, target):
        request, repeated = like_the_last(asked, named=target is not None)
    with failures_told(json_file, request.command("fix"), show_traceback, request.target):
        if target is None and not repeated:
            raise UsageFailure(
                "fix: no TARGET was given, and no check was made in this folder", "name a TARGET"
            )
        shared.refuse_wrong_words(request)
        effective = effective_settings(Path.cwd())
        seconds = effective.timeout(timeout)
        print_settings(effective.line(request.options, timeout))
        shared.refuse_timeout_here(timeout, isolate=isolate)
        budget = shared.FIX_BUDGET if fix_budget is None else fix_budget
        limit = seconds if isolate else None
        how = Setting(
            show_traceback, isolate=isolate, timeout=limit, fix_budget=budget, beyond=True
        )
        planned = PlannedCheck("", effective.over(request))
        kept = last.kept_report(planned.request) if repeated else None
        if kept is not None and passing_edit(kept) is not None:
            note("the edit of the last check here, nothing was run")
            report, code = kept, 1
        else:
            report, code = _checked(planned, how)
        forms, edit = Forms.json(json_file), passing_edit(report)
        if not forms.on_stdout:
            reasons = render_reasons(report, width()) if report.failing else []
            show([*headline(report, width()), *reasons])
        is_meant = edit is not None and (edit.is_certain or plausible)
        reports = Reports(reports=(report,), origin=report.origin)
        code = forms.write(reports, 0 if is_meant and code == 1 else code)
        if not apply_it or edit is None:
            raise typer.Exit(code)
        if not is_meant:
            words = "; ".join(("the edit matches here and is not certain", *edit.reservations))
            raise UsageFailure(f"--apply: {words}", "read it, and add --plausible to write it")
        refuse_link(Path(parts_of(request.target)[0]))
        _apply(edit, yes=yes, force=force)
        again, code = _checked(planned, replace(how, fix_budget=0))
        show(headline(again, width()))
        raise typer.Exit(code)


def _checked(planned: PlannedCheck, how: Setting) -> tuple[Report, int]:
    with Progress() as tick:
        tick("importing torch and the target", None)

        def show_stage(stage: str, _: float, layout: str) -> None:
            tick(stage, None)

        checks = check_each([planned], how, echo=sys.stderr.write, tick=show_stage)
        checked = [*checks][-1]  # to its end: Ctrl-C is raised after the check that it ended
    say(checked.report, how.tracebacks)
    if checked.verdict != FAILED:
        last.save(checked.request, checked.report)
    return checked.report, checked.code


def _apply(edit: TriedEdit, *, yes: bool, force: bool) -> None:
    file = Path(edit.file)
    refuse_link(file)
    if not force:
        refuse_dirty(file)
    if not yes and not sys.stdin.isatty():
        raise UsageFailure("--apply asks first, and nobody is there to answer", "add --yes")
    if not yes and not typer.confirm(visible(f"write it into {file}?"), err=True):
        raise typer.Exit(1)
    apply(edit)
    note(f"wrote {file}; checking again")
