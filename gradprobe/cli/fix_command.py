"""`gradprobe fix`: an edit with which everything matches, as a diff or written into the file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

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
from .checks import by_layout, say
from .command import Call, Command
from .option_rows import option

_APPLY = "Write the edit into the file, after asking; then check again"


@Command("target family reference fix_budget timeout isolate")
def fix(
    call: Call,
    apply: Annotated[bool, option("--apply", _APPLY)] = False,
    yes: Annotated[bool, option("--yes", "Do not ask")] = False,
) -> int:
    """Check a kernel, and where it is wrong show the smallest edit that was tried and makes everything match.

    Without TARGET the last check in this folder is meant, and its report where that holds an edit; without any, nothing
    is. The file is written with --apply alone.
    """
    call, repeated = call.as_last()
    if call.target is None and not repeated:
        words = "fix: no TARGET was given, and no check was made in this folder"
        raise UsageFailure(words, "name a TARGET")
    settings = call.settings()
    how = call.setting(settings, beyond=True)
    planned = PlannedCheck("", settings.over(call.request))
    report, code = last.kept_report(planned.request) if repeated else None, 1
    if report is not None and passing_edit(report) is not None:
        note("the edit of the last check here, nothing was run")
    else:
        report, code = _checked(planned, how)
    edit = passing_edit(report)
    if not call.forms.on_stdout:
        reasons = render_reasons(report, width()) if report.failing else []
        show([*headline(report, width()), *reasons])
    is_meant = edit is not None and edit.is_certain
    reports = Reports(reports=(report,), origin=report.origin)
    code = call.forms.write(reports, 0 if is_meant and code == 1 else code)
    if not apply or edit is None:
        return code
    if not is_meant:
        words = "; ".join(("the edit matches here and is not certain", *edit.reservations))
        raise UsageFailure(f"--apply: {words}", "read it, and make it by hand")
    if not _is_written(edit, Path(parts_of(call.request.target)[0]), yes=yes):
        return 1
    again, code = _checked(planned, replace(how, fix_budget=0))
    show(headline(again, width()))
    return code


def _checked(planned: PlannedCheck, how: Setting) -> tuple[Report, int]:
    with Progress() as tick:
        stages = by_layout(planned, tick)
        checks = check_each([planned], how, echo=sys.stderr.write, tick=stages)
        checked = [*checks][-1]  # to its end: Ctrl-C is raised after the check that it ended
    say(checked.report, how.tracebacks)
    if checked.verdict != FAILED:
        last.save(checked.request, checked.report)
    return checked.report, checked.code


def _is_written(edit: TriedEdit, named: Path, *, yes: bool) -> bool:
    """Whether the edit was written into its file, to which the user is to agree; `named` is the target's file."""
    file = Path(edit.file)
    for link in filter(Path.is_symlink, (named, file)):
        words = f"--apply: {link} is a symbolic link to {link.readlink()}, and no link is followed to write"
        raise UsageFailure(words, f"name the file itself: {link.resolve()}")
    if not yes and not sys.stdin.isatty():
        raise UsageFailure("--apply asks first, and nobody is there to answer", "add --yes")
    if not yes and not typer.confirm(visible(f"write it into {file}?"), err=True):
        return False
    try:
        replace_file(str(file), patched(file.read_bytes().decode(), edit.diff))
    except (OSError, ValueError) as error:
        words = (
            f"--apply: {file} cannot be written, or is not what the edit was tried in: {error}"
        )
        raise UsageFailure(words, "run it again") from error
    note(f"wrote {file}; checking again")
    return True
