"""`gradprobe show FILE`: a saved report in any form; `gradprobe show OLD NEW`: what changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from ..commands.saved_reports import damage_told, read
from ..commands.suite.outcome import code_of_reports
from ..inputs.history import FILE, last_report
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..render.files import FORMS
from ..render.source_places import with_origin
from ..render.terminal import dump, terminal, width
from ..render.terminal import show as show_lines
from .call import Call, command
from .checks import say, say_nothing_compared
from .options import argument
from .report_forms import Forms, write_form

_FILE = "What --json wrote, of one check or of several (default: the last check of this folder)"
_NEW = "A report of now, to say what changed since FILE"


@command(has_case=False, is_run=False, forms=tuple(FORMS))
def show(
    call: Call,
    file: Annotated[str | None, argument("FILE", _FILE)] = None,
    newer: Annotated[str | None, argument("NEW", _NEW)] = None,
) -> int:
    """Show a saved report in any form, without running anything: made on one machine, read on any.

    Every form is what the run itself would have written, but for times: paths are told from the folder of the run. The
    exit code is the run's.

    Of two reports it says what changed, in JSON and as a page too, and exits with 1 where something is worse: a
    verdict, a head that became wrong, a cause that came, or an error beyond its budget that grew twofold.
    """
    if file is not None and newer is not None:
        return _show_changes(file, newer, call.forms)
    several = with_origin(_last() if file is None else read(file))
    with damage_told(file or str(FILE)):
        _print(several, call)
        return call.forms.write(several, code_of_reports(several))


def _show_changes(old: str, new: str, forms: Forms) -> int:
    """Says what changed from one report to another; 1 where something is worse. Raises UsageFailure."""
    from ..render import comparison

    for flag in forms.files.keys() - {"--json", "--html"}:
        words = f"{flag}: changes from {old} to {new} are written as --json and --html"
        raise UsageFailure(words)
    before, after = read(old), read(new)
    with damage_told(f"{old} or {new}"):
        changes = comparison.changes_of(before, after)
        if not forms.on_stdout:
            show_lines(list(comparison.render_comparison(changes, width())))
        dump(forms.json, comparison.comparison_as_json(changes))
        if page := forms.files.get("--html"):
            from ..render.page import page_of_comparison

            if failure := write_form("--html", page, page_of_comparison(before, after)):
                raise failure
    return int(comparison.verdict_of(changes) == comparison.WORSE)


def _last() -> Reports:
    report = last_report()
    if report is None:
        words = "show: no check was made in this folder"
        raise UsageFailure(words, "name a FILE, or run gradprobe check")
    return Reports(reports=(report,), origin=report.origin)


def _print(several: Reports, call: Call) -> None:
    from ..commands.suite.check_table import render_several
    from ..render.screen import rendered

    look, is_shown = replace(terminal(), details=True), not call.forms.on_stdout
    if several.planned is not None and not any(report.strides for report in several.reports):
        say_nothing_compared(several)
        show_lines(list(render_several(several, look, call.tracebacks)) if is_shown else [])
        return
    for report in several.reports:
        say(report, call.tracebacks)
        show_lines(rendered(report, look) if is_shown else [])
