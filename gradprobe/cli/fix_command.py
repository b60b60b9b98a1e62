"""`gradprobe fix`: an edit with which everything matches, as a diff or written into the file."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..commands.suite.checking import Setting, check_each
from ..commands.suite.plan import PlannedCheck
from ..inputs import history as last
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.layout_run import FAILED
from ..model.report import Report, TriedEdit, passing_edit, patched
from ..model.writing import replace_file, visible
from ..render.console import headline
from ..render.reasons import render_reasons
from ..render.terminal import Progress, note, show, width
from ..targets.find import parts_of
from . import shared_options as shared
from .checks import say
from .diff_command import like_the_last
from .report_forms import Forms, failures_told

_FORCE = "Write also a file with changes that git has not"
_GIT_SECONDS = 20


@shared.with_case_options
def fix(
    target: shared.Target = None,
    apply_it: Annotated[bool, shared.option("--apply")] = False,
    yes: Annotated[bool, shared.option("--yes")] = False,
    plausible: Annotated[bool, shared.option("--plausible")] = False,
    force: Annotated[bool, shared.option("--force", _FORCE)] = False,
    fix_budget: shared.FixBudget = shared.FIX_BUDGET,
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
            words = "fix: no TARGET was given, and no check was made in this folder"
            raise UsageFailure(words, "name a TARGET")
        shared.refuse_wrong_words(request)
        settings = shared.settings_here(request.target)
        shared.note_settings(settings, request.options, timeout)
        shared.refuse_timeout_here(timeout, isolate=isolate)
        how = Setting(
            show_traceback,
            isolate=isolate,
            timeout=settings.timeout(timeout) if isolate else None,
            fix_budget=fix_budget,
            beyond=True,
        )
        planned = PlannedCheck("", settings.over(request))
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
        _refuse_link(Path(parts_of(request.target)[0]))
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
    """Writes the edit into its file, once the user has agreed. Raises UsageFailure."""
    file = Path(edit.file)
    _refuse_link(file)
    if not force:
        _refuse_dirty(file)
    if not yes and not sys.stdin.isatty():
        raise UsageFailure("--apply asks first, and nobody is there to answer", "add --yes")
    if not yes and not typer.confirm(visible(f"write it into {file}?"), err=True):
        raise typer.Exit(1)
    try:
        replace_file(str(file), patched(file.read_bytes().decode(), edit.diff))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFailure(f"--apply: {file} cannot be written: {error}") from error
    except ValueError as error:
        words = f"--apply: {file} is not what the edit was tried in: {error}"
        raise UsageFailure(words, "run it again") from error
    note(f"wrote {file}; checking again")


def _refuse_link(file: Path) -> None:
    """Raises UsageFailure for a symbolic link."""
    if file.is_symlink():
        words = f"--apply: {file} is a symbolic link to {file.readlink()}, and no link is followed to write"
        raise UsageFailure(words, f"name the file itself: {file.resolve()}")


def _refuse_dirty(file: Path) -> None:
    """Raises UsageFailure for a file that git knows, with changes that are not committed."""
    command = ["git", "-C", str(file.parent), "status", "--porcelain", "--", file.name]
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _GIT_SECONDS}
    try:
        ran = subprocess.run(command, check=False, **how)
    except (OSError, subprocess.TimeoutExpired):
        return
    status = ran.stdout.strip() if ran.returncode == 0 else ""
    if status and not status.startswith(("??", "!!")):
        words = f"--apply: {file} has changes that are not committed"
        raise UsageFailure(words, "commit them, or add --force")
