"""What goes on from the last check, or a saved one: `diff`, `fix`, `shrink` and `show`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from ..commands.suite.checking import Setting, check_each
from ..commands.suite.outcome import code_of_report, code_of_reports
from ..commands.suite.plan import PlannedCheck
from ..inputs import history as last
from ..inputs.history import FOLDER, CheckRequest, make_folder
from ..model.documents import Reports, read_reports
from ..model.failures import Failure, UsageFailure, did_you_mean
from ..model.intermediates import lookup, names
from ..model.layout_run import FAILED
from ..model.report import Report, TriedEdit, passing_edit, patched
from ..model.writing import replace_file, visible
from ..render.console import first_line, headline
from ..render.files import FORMS, document, keeps_changing
from ..render.reasons import render_reasons
from ..render.source_places import with_origin
from ..render.terminal import Progress, dump, note, terminal, width, write_stderr, write_stdout
from ..render.terminal import show as show_lines
from ..targets.find import parts_of
from .checks import by_layout, check_one, say, say_nothing_compared, tell_report
from .command import Call, Command
from .option_rows import argument, option
from .own_process import apart
from .report_forms import Forms

if TYPE_CHECKING:
    from ..commands.shrink.simpler_cases import WordedCase

_APPLY = "Write the edit into the file, after asking; then check again"


@Command("target family reference fix_budget timeout isolate")
def fix(
    call: Call,
    apply: Annotated[bool, option("--apply", _APPLY)] = False,
    yes: Annotated[bool, option("--yes", "Do not ask")] = False,
) -> int:
    """Check a kernel, and where it is wrong show the smallest edit that was tried and makes everything match.

    Without TARGET the last check in this folder is meant. The file is written with --apply alone.
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
        show_lines([*headline(report, width()), *reasons])
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
    show_lines(headline(again, width()))
    return code


def _checked(planned: PlannedCheck, how: Setting) -> tuple[Report, int]:
    with Progress() as tick:
        stages = by_layout(planned, tick)
        checks = check_each([planned], how, echo=sys.stderr.write, tick=stages)
        checked = [*checks][-1]  # to its end, after which Ctrl-C is raised
    say(checked.report, how.tracebacks)
    if checked.verdict != FAILED:
        last.save(checked.request, checked.report)
    return checked.report, checked.code


def _is_written(edit: TriedEdit, named: Path, *, yes: bool) -> bool:
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
        words = f"{file} cannot be written, or is not what the edit was tried in: {error}"
        raise UsageFailure(f"--apply: {words}", "run it again") from error
    note(f"wrote {file}; checking again")
    return True


_TEST = FOLDER / "test_shrunk.py"
_OF_EACH = "Run each case in a process of its own, or all in this one (default: all in another)"


@Command("target timeout fix_budget family reference")
def shrink(
    call: Call,
    tries: Annotated[int, option("--tries", "The most cases to try", "N", min=1)] = 200,
    isolate: Annotated[bool | None, option("--isolate/--no-isolate", _OF_EACH)] = None,
) -> int:
    """Find the smallest case that fails in the same way, and write it as a command line and a pytest test.

    It begins with the case that is given, else with that of the last check in this folder.
    """
    call, repeated = call.as_last()
    settings = call.settings()
    request = settings.over(call.request)
    if repeated:
        note(f"as in the last check here: {request.command()}")
    how = call.setting(settings)
    alone = bool(isolate) or how.timeout is not None
    # Where each case has a process of its own, none is run in this one.
    call = replace(call, isolate=not (isolate is False or alone))
    how = replace(how, isolate=alone)
    return apart(call, _shrunken, request, tries, how, call.forms.json)


def _shrunken(request: CheckRequest, most: int, how: Setting, json_file: str | None) -> int:
    from ..commands.shrink.shrinking import document_of, pytest_source, rendered
    from ..commands.shrink.shrinking import shrink as shrunken

    def show_step(case: WordedCase, change: str, count: int) -> None:
        what = f"still so {change}" if change else "it fails"
        repro_command = replace(request, options=case.words).command()
        note(f"{count:>3} tried, {what}: {case.line}")
        if json_file is not None and keeps_changing(json_file):
            dump(json_file, document(repro_command))

    result, written = shrunken(request, most=most, setting=how, told=show_step), None
    if result.last is not None:
        try:
            make_folder()
            text = pytest_source(result.request, first_line(result.last), _TEST)
            replace_file(_TEST, text)
        except OSError as error:
            raise UsageFailure(f"{_TEST} cannot be written, {error.strerror}") from error
        written = str(_TEST)
    dump(json_file, document_of(result, written))
    if json_file != "-":
        show_lines(list(rendered(result, written, width())))
    return result.exit_code


_AT = "The head to show (default: the first wrong one)"
_FILE = "What --json wrote (default: the last check of this folder)"
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
        is_here = place in (None, (view.batch or 0, view.head))
        if kept and view.intermediate == row.name and is_here:
            note("from the report of the last check, nothing was run")
            report = structs.replace(kept, close_up=view, reproduce=planned.repro_command)
            return tell_report(report, code_of_report(report), call.forms, call.tracebacks)
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
    """Show a saved report in any form, without running anything. The exit code is the run's.

    Of two reports it says what changed, and exits with 1 where something is worse: a verdict, a head that became wrong,
    a cause that came, or an error beyond its budget that grew twofold.
    """
    kept = last.last_report() if file is None else None
    if file is None and kept is None:
        words = "show: no check was made in this folder"
        raise UsageFailure(words, "name a FILE, or run gradprobe check")
    reports = Reports(reports=(kept,), origin=kept.origin) if kept else read_reports(file or "")
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
    from ..render import comparison

    for flag in forms.files.keys() - {"--json"}:
        raise UsageFailure(f"{flag}: changes are written as --json alone")
    changes = comparison.changes_of(before, after)
    if not forms.on_stdout:
        show_lines(comparison.render_comparison(changes, width()))
    dump(forms.json, comparison.comparison_as_json(changes))
    return int(comparison.verdict_of(changes) == comparison.WORSE)


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
