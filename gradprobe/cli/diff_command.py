"""`gradprobe diff NAME`: one intermediate close up."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from msgspec import structs

from ..commands.suite.checking import Setting
from ..commands.suite.outcome import code_of_report
from ..commands.suite.plan import PlannedCheck
from ..inputs import history as last
from ..model.failures import UsageFailure, did_you_mean
from ..model.intermediates import lookup, names
from ..model.layout_run import CloseUp
from ..render.terminal import note, write_stderr, write_stdout
from . import shared_options as shared
from .checks import check_one, tell
from .report_forms import Forms, failures_told, with_page


@shared.with_case_options
@with_page
def diff(
    name: Annotated[str, shared.argument("NAME", f"One of {', '.join(names())}")],
    target: shared.Target = None,
    at: Annotated[str | None, shared.option("--at")] = None,
    family: shared.Family = None,
    reference: shared.Reference = None,
    forms: Forms = Forms(),  # noqa: B008 - it holds nothing
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Show one intermediate close up: its error map over tiles and its wrong rows, actual beside expected."""
    asked = shared.request_of(target, family, options, reference)
    with failures_told(forms, asked.command(f"diff {name}", at=at), show_traceback):
        request, repeated = like_the_last(asked, named=target is not None)
    with failures_told(forms, request.command(f"diff {name}", at=at), show_traceback):
        row = lookup(name)
        if row is None:
            raise UsageFailure(f"diff: no intermediate {name!r}", did_you_mean(name, names()))
        shared.refuse_wrong_words(request)
        place = _place(at)
        if repeated:
            write = write_stderr if forms.on_stdout else write_stdout
            write(f"as in the last check here: {request.command()}\n")
        chosen = shared.BUILT_IN if target is None and not repeated else ""
        planned = PlannedCheck("", request, close_up=(row.name, place), chosen=chosen)
        kept = last.kept_report(request) if repeated else None
        view = _view_of(kept.close_ups if kept else (), row.name, place)
        if kept is None or view is None:
            raise typer.Exit(check_one(planned, forms, Setting(show_traceback, isolate=isolate)))
        made = datetime.fromtimestamp(last.FILE.stat().st_mtime).strftime("%H:%M")
        note(f"from the report of {made}, nothing was run")
        report = structs.replace(kept, close_up=view, reproduce=planned.repro_command)
        raise typer.Exit(tell(report, code_of_report(report), forms, show_traceback))


def _view_of(
    views: tuple[CloseUp, ...], name: str, place: tuple[int, int] | None
) -> CloseUp | None:
    """The view of an intermediate, of a head where one is asked for."""
    for view in views:
        if view.intermediate == name and place in (None, (view.batch or 0, view.head)):
            return view
    return None


def like_the_last(asked: last.CheckRequest, *, named: bool) -> tuple[last.CheckRequest, bool]:
    """What to run, and whether it is the last check of this folder, under the options given now. Raises UsageFailure.

    Args:
        named: whether a target was given; another than the last one's is no repetition.
    """
    try:
        before = last.load()
    except UsageFailure as damage:
        if not named:
            raise
        note(f"{damage}: none of its options is repeated")
        return asked, False
    if before is None or (named and asked.target != before.target):
        return asked, False
    family, reference = asked.family or before.family, asked.reference or before.reference
    options = {**before.options, **asked.options}
    return last.CheckRequest(before.target, family, reference, options), True


def _place(word: str | None) -> tuple[int, int] | None:
    parts = word.split(",") if word is not None else []
    if word is not None and (len(parts) != 2 or not all(p.strip().isdigit() for p in parts)):
        raise UsageFailure(f"--at takes BATCH,HEAD, two whole numbers, got {word!r}")
    return (int(parts[0]), int(parts[1])) if parts else None
