"""`gradprobe diff NAME`, one intermediate close up, and `gradprobe show FILE`, a saved report or what changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from msgspec import structs

from ..commands.suite.checking import Setting
from ..commands.suite.outcome import code_of_report, code_of_reports
from ..commands.suite.plan import PlannedCheck
from ..inputs import history as last
from ..model.documents import Reports, read_reports
from ..model.failures import Failure, UsageFailure, did_you_mean
from ..model.intermediates import lookup, names
from ..render.files import FORMS
from ..render.source_places import with_origin
from ..render.terminal import dump, note, terminal, width, write_stderr, write_stdout
from ..render.terminal import show as show_lines
from .checks import check_one, say, say_nothing_compared, tell
from .command import Call, Command
from .option_rows import argument, option
from .report_forms import Forms

_AT = "The head to show (default: the first wrong one)"
_FILE = "What --json wrote, of one check or of several (default: the last check of this folder)"
_NEW = "A report of now, to say what changed since FILE"


@Command("target family reference details isolate")
def diff(
    call: Call,
    name: Annotated[str, argument("NAME", f"One of {', '.join(names())}")],
    at: Annotated[str | None, option("--at", _AT, "BATCH,HEAD")] = None,
) -> int:
    """Show one intermediate close up: its error map over tiles and its wrong rows, actual beside expected."""
    call, repeated = call.as_last()
    row = lookup(name)
    if row is None:
        raise UsageFailure(f"diff: no intermediate {name!r}", did_you_mean(name, names()))
    place = None if at is None else _place(at)
    if repeated:
        write = write_stderr if call.forms.on_stdout else write_stdout
        write(f"as in the last check here: {call.request.command()}\n")
    chosen = "" if repeated else call.chosen
    planned = PlannedCheck("", call.request, close_up=(row.name, place), chosen=chosen)
    kept = last.kept_report(call.request) if repeated else None
    for view in kept.close_ups if kept else ():
        if (
            kept
            and view.intermediate == row.name
            and place in (None, (view.batch or 0, view.head))
        ):
            note("from the report of the last check, nothing was run")
            report = structs.replace(kept, close_up=view, reproduce=planned.repro_command)
            return tell(report, code_of_report(report), call.forms, call.tracebacks)
    return check_one(planned, call.forms, Setting(call.tracebacks, isolate=call.isolate))


def _place(word: str) -> tuple[int, int]:
    parts = word.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise UsageFailure(f"--at takes BATCH,HEAD, two whole numbers, got {word!r}")
    return int(parts[0]), int(parts[1])


@Command(has_case=False, is_run=False, forms=tuple(FORMS))
def show(
    call: Call,
    file: Annotated[str | None, argument("FILE", _FILE)] = None,
    newer: Annotated[str | None, argument("NEW", _NEW)] = None,
) -> int:
    """Show a saved report in any form, without running anything: made on one machine, read on any.

    Every form is what the run itself would have written, but for times: paths are told from the folder of the run. The
    exit code is the run's.

    Of two reports it says what changed, in JSON too, and exits with 1 where something is worse: a
    verdict, a head that became wrong, a cause that came, or an error beyond its budget that grew twofold.
    """
    reports = _last() if file is None else read_reports(file)
    try:
        if newer is not None:
            return _show_changes(reports, read_reports(newer), call.forms)
        several = with_origin(reports)
        _print(several, call)
        return call.forms.write(several, code_of_reports(several))
    except _DAMAGE as error:
        if isinstance(error, Failure):
            raise
        why = f"its parts do not fit together ({type(error).__name__}: {error})"
        files = " or ".join(filter(None, (file or str(last.FILE), newer)))
        way_out = "write it anew; with --traceback it says where"
        raise UsageFailure(f"{files}: damaged, {why}", way_out) from error


# What showing a report may raise whose parts have their types and do not fit together.
_DAMAGE = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError)


def _show_changes(before: Reports, after: Reports, forms: Forms) -> int:
    """Says what changed from one report to another; 1 where something is worse. Raises UsageFailure."""
    from ..render import comparison

    for flag in forms.files.keys() - {"--json"}:
        raise UsageFailure(f"{flag}: changes are written as --json alone")
    changes = comparison.changes_of(before, after)
    if not forms.on_stdout:
        show_lines(comparison.render_comparison(changes, width()))
    dump(forms.json, comparison.comparison_as_json(changes))
    return int(comparison.verdict_of(changes) == comparison.WORSE)


def _last() -> Reports:
    report = last.last_report()
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
