"""`gradprobe diff NAME`: one intermediate close up."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import structs

from ..commands.suite.checking import Setting
from ..commands.suite.outcome import code_of_report
from ..commands.suite.plan import PlannedCheck
from ..inputs import history as last
from ..model.failures import UsageFailure, did_you_mean
from ..model.intermediates import lookup, names
from ..model.layout_run import CloseUp
from ..render.terminal import note, write_stderr, write_stdout
from .call import Call, command
from .checks import check_one, tell
from .options import argument, option

_AT = "The head to show (default: the first wrong one)"


@command("target", "family", "reference", "details", "isolate")
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
    """The view of an intermediate, of a head where one is asked for."""
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
