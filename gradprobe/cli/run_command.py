"""`gradprobe run --watch FUNCTION -- COMMAND`: a program's real inputs, checked."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..commands.suite.outcome import code_of
from ..inputs import history as last
from ..model.assignment import PLAIN
from ..model.failures import UsageFailure
from ..pipeline.run_check import run_check
from ..processes import tell
from ..render.files import keeps_changing, unfinished
from ..render.terminal import dump, note, show
from . import shared_options as shared
from .own_process import ProgressNote, apart
from .report_forms import failures_told, show_document

if TYPE_CHECKING:
    from ..commands.record.replay import ProgramResult

_COMMAND = "The command that runs the program"
_TARGET = typer.Option(
    "--target", metavar="TARGET", help="What to check with the real inputs (default: FUNCTION)"
)


@shared.with_case_options
def run(
    command: Annotated[list[str] | None, shared.argument("-- COMMAND ...", _COMMAND)] = None,
    watch: Annotated[str | None, shared.option("--watch")] = None,
    target: Annotated[str | None, _TARGET] = None,
    keep: Annotated[int, shared.option("--keep")] = 16,
    order: Annotated[str, shared.option("--order")] = "bhld",
    family: shared.Family = None,
    reference: shared.Reference = None,
    json_file: shared.JsonFile = None,
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a program with its attention function watched, and check that with the program's real inputs and dO.

    The program runs unmodified. Of each shape and layout that the function is called with, its tensors are kept once
    and checked as they lay in memory.
    """
    # The same function takes its tensors as it did when it was watched.
    shapes = {"shapes": order} if target is None and order != PLAIN else {}
    request = last.CheckRequest(target or watch or "", family, reference, shapes | options)
    words = {"watch": watch, "target": target, "keep": keep, "order": order}
    own = last.CheckRequest("", family, reference, options).command("run", **words)
    repro_command = f"{own} -- {shlex.join(command or [])}"
    with failures_told(json_file, repro_command, show_traceback):
        if watch is None:
            raise UsageFailure("run: nothing to watch", "add --watch MODULE:FUNCTION")
        from ..commands.record.capture import FOLDER, CapturePlan
        from ..commands.record.replay import look_where_it_looked, run_watched

        keeping = CapturePlan(FOLDER / watch.replace(":", "."), keep, order)
        shared.refuse_wrong_words(replace(request, target=target or shared.DEFAULT))
        ended = run_watched(command or [], watch, keeping, quiet=json_file == "-")
        look_where_it_looked(ended)
        how = {"isolate": isolate, "show_traceback": show_traceback}
        sets = (ended, request, watch, json_file)
        raise typer.Exit(apart(_check_each_set, *sets, target=request.target, **how))


def _check_each_set(
    ended: ProgramResult, request: last.CheckRequest, watch: str, json_file: str | None
) -> int:
    """Checks each set of inputs and tells of it; the exit code of all."""
    from ..commands.record import replay
    from ..pipeline.reported import report_of
    from ..render.screen import rendered

    for line in ended.sentences(watch):
        note(line)
    saved = {} if "runs" in request.options else {"layout": ["all=as-saved"]}
    asked = {
        file: replace(request, options={**saved, **request.options, "inputs": file})
        for file in ended.files
    }
    codes, documents, shown, count = list[int](), list[dict[str, Any]](), None, len(ended.files)
    sets = replay.check_inputs(
        ended.files, lambda file: run_check(asked[file], asked[file].command())
    )
    for number, checked in enumerate(sets, 1):
        codes.append(checked.code)
        documents.append(replay.as_document(checked, asked[checked.file].command()))
        if json_file != "-":
            show([replay.line_of(number, checked)])
        if json_file is not None and keeps_changing(json_file):
            dump(json_file, unfinished(replay.captures_as_json(ended, watch, documents)))
        words = f"set {number} of {count} checked"
        tell(ProgressNote(words, number, count, "sets of real inputs"))
        if checked.report is not None and (shown is None or (checked.code and not shown.code)):
            shown = checked
    summary = replay.summary_line([document["verdict"] for document in documents])
    show_document(json_file, replay.captures_as_json(ended, watch, documents), [summary])
    if shown is not None and shown.report is not None:
        last.save(asked[shown.file])
        if json_file != "-" and shown.code:
            show(rendered(report_of(shown.report)))
    return code_of(codes)
