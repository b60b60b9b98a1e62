"""`gradprobe diff NAME`, one intermediate close up, and `gradprobe show FILE`, a saved report or what changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Annotated

from msgspec import structs

from ..commands.suite.checking import Setting
from ..commands.suite.outcome import code_of_report, code_of_reports
from ..commands.suite.plan import PlannedCheck
from ..inputs import history as last
from ..model.documents import Reports, read_reports
from ..model.failures import Failure, UsageFailure, did_you_mean
from ..model.intermediates import lookup, names
from ..model.layout_run import CloseUp
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
    place = _place(at)
    if repeated:
        write = write_stderr if call.forms.on_stdout else write_stdout
        write(f"as in the last check here: {call.request.command()}\n")
    chosen = "" if repeated else call.chosen
    planned = PlannedCheck("", call.request, close_up=(row.name, place), chosen=chosen)
    kept = last.kept_report(call.request) if repeated else None
    view = _view_of(kept.close_ups if kept else (), row.name, place)
    if kept is None or view is None:
        return check_one(planned, call.forms, Setting(call.tracebacks, isolate=call.isolate))
    made = datetime.fromtimestamp(last.FILE.stat().st_mtime).strftime("%H:%M")
    note(f"from the report of {made}, nothing was run")
    report = structs.replace(kept, close_up=view, reproduce=planned.repro_command)
    return tell(report, code_of_report(report), call.forms, call.tracebacks)


def _view_of(
    views: tuple[CloseUp, ...], name: str, place: tuple[int, int] | None
) -> CloseUp | None:
    for view in views:
        if view.intermediate == name and place in (None, (view.batch or 0, view.head)):
            return view
    return None


def _place(word: str | None) -> tuple[int, int] | None:
    if word is None:
        return None
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
    if file is not None and newer is not None:
        return _show_changes(file, newer, call.forms)
    several = with_origin(_last() if file is None else read_reports(file))
    with _fitting(file or str(last.FILE)):
        _print(several, call)
        return call.forms.write(several, code_of_reports(several))


def _show_changes(old: str, new: str, forms: Forms) -> int:
    """Says what changed from one report to another; 1 where something is worse. Raises UsageFailure."""
    from ..render import comparison

    for flag in forms.files.keys() - {"--json"}:
        raise UsageFailure(f"{flag}: changes from {old} to {new} are written as --json alone")
    before, after = read_reports(old), read_reports(new)
    with _fitting(f"{old} or {new}"):
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


# What showing a report may raise whose parts have their types and do not fit together.
_DAMAGE = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError)


@contextlib.contextmanager
def _fitting(files: str) -> Iterator[None]:
    """Shows saved reports; UsageFailure where the parts of one do not fit together."""
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, Failure):
            raise
        why = f"its parts do not fit together ({type(error).__name__}: {error})"
        way_out = "write it anew; with --traceback it says where"
        raise UsageFailure(f"{files}: damaged, {why}", way_out) from error
