"""`gradprobe diff NAME`: one intermediate close up."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from msgspec import structs

from ..commands.suite.checked import Planned, code_of_report
from ..commands.suite.worker import Setting
from ..inputs import history as last
from ..inputs.options import command_line
from ..model.failures import UsageFailure, did_you_mean
from ..model.intermediates import lookup, names
from ..model.report import Report
from ..model.run import CloseUp
from ..render.terminal import write_stdout
from .checks import check_one, tell
from .error_output import failures_told
from .forms import Forms
from .shared_options import (
    FamilyWord,
    Isolate,
    JsonFile,
    ReferenceWord,
    TargetWord,
    Traceback,
    chosen,
    refuse_wrong_words,
    with_case_options,
)


@with_case_options
def diff(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(names())}")],
    target: TargetWord = None,
    at: Annotated[
        str | None, typer.Option(metavar="BATCH,HEAD", help="The head to show (default: the first wrong one)")
    ] = None,
    family: FamilyWord = None,
    reference: ReferenceWord = None,
    json_file: JsonFile = None,
    isolate: Isolate = True,
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Show one intermediate close up: its error map over tiles and its wrong rows, actual beside expected."""
    request, repeated = like_the_last(target, family, reference, options)
    repro_command = command_line(f"diff {name}", request.target, request.options, chosen(request) | {"at": at})
    with failures_told(json_file, repro_command, show_traceback):
        row = lookup(name)
        if row is None:
            raise UsageFailure(f"diff: no intermediate {name!r}", did_you_mean(name, names()))
        refuse_wrong_words(request)
        place = _parse_at(at)
        if repeated:
            line = (
                f"as in the last check here: {command_line('check', request.target, request.options, chosen(request))}"
            )
            if json_file == "-":
                typer.echo(line, err=True)
            else:
                write_stdout(line + "\n")
        planned = Planned("", request, close_up=(row.name, place))
        kept = last.kept_report(request) if repeated else None
        view = _close_up(kept, row.name, place) if kept else None
        if repeated and request == last.load():
            typer.echo(f"gradprobe: {_from_where(row.name, kept, view)}", err=True)
        if kept is not None and view is not None:
            report = structs.replace(kept, close_up=view, reproduce=planned.repro_command)
            raise typer.Exit(tell(report, code_of_report(report), Forms.json(json_file), show_traceback))
        raise typer.Exit(check_one(planned, Forms.json(json_file), Setting(show_traceback, isolate=isolate)))


def _close_up(report: Report, name: str, at: tuple[int, int] | None) -> CloseUp | None:
    """What the report keeps of an intermediate, where that is of this batch and head."""
    kept = (view for view in report.close_ups if view.intermediate == name)
    return next((view for view in kept if at in (None, (view.batch or 0, view.head))), None)


def _from_where(name: str, kept: Report | None, view: CloseUp | None) -> str:
    made = datetime.fromtimestamp(last.FILE.stat().st_mtime).strftime("%H:%M")
    if view is not None:
        return f"from the report of {made}, nothing was run"
    why = (
        f"the close-up of {name} is not in the report of {made}"
        if kept
        else f"the report of {made} is not of these sources"
    )
    return f"ran again: {why}"


def like_the_last(
    target: str | None, family: str | None, reference: str | None, options: dict[str, Any]
) -> tuple[last.CheckRequest, bool]:
    """What to run: the last check of this folder where its target is meant, under the options given now."""
    before = last.load()
    if before is None or (target is not None and target != before.target):
        return last.CheckRequest("lazy" if target is None else target, family, reference, options), False
    merged = {**before.options, **options}
    return last.CheckRequest(before.target, family or before.family, reference or before.reference, merged), True


def _parse_at(word: str | None) -> tuple[int, int] | None:
    if word is None:
        return None
    parts = word.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise UsageFailure(f"--at takes BATCH,HEAD, two whole numbers, got {word!r}")
    return int(parts[0]), int(parts[1])
