"""`gradprobe run --watch FUNCTION -- COMMAND`: a program's real inputs, checked."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..commands.suite.outcome import code_of, code_of_report
from ..inputs import history as last
from ..model.assignment import PLAIN
from ..model.failures import UsageFailure
from ..model.layout_run import FAILED
from ..model.report import Report
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
        from ..commands.record.replay import run_watched

        keeping = CapturePlan(FOLDER / watch.replace(":", "."), keep, order)
        shared.refuse_wrong_words(replace(request, target=target or shared.DEFAULT))
        ended = run_watched(command or [], watch, keeping, quiet=json_file == "-")
        how = {"isolate": isolate, "show_traceback": show_traceback}
        sets = (ended, request, watch)
        raise typer.Exit(apart(_check_each_set, *sets, json_file, target=request.target, **how))


def _check_each_set(
    ended: ProgramResult, request: last.CheckRequest, watch: str, json_file: str | None
) -> int:
    from ..commands.record.replay import captures_as_json, check_inputs, line_of, summary_line
    from ..render.screen import rendered

    for line in ended.sentences(watch):
        note(line)
    saved = {} if "runs" in request.options else {"layout": ["all=as-saved"]}
    asked = {
        file: replace(request, options={**saved, **request.options, "inputs": file})
        for file in ended.files
    }
    reports, count = dict[str, Report](), len(asked)
    for file, report, layouts in check_inputs(asked):
        reports[file] = report
        number = len(reports)
        if json_file != "-":
            show([line_of(number, file, report, layouts)])
        if json_file is not None and keeps_changing(json_file):
            so_far = captures_as_json(ended, watch, list(reports.values()))
            dump(json_file, unfinished(so_far))
        words = f"set {number} of {count} checked"
        tell(ProgressNote(words, number, count, "sets of real inputs"))
    whole = captures_as_json(ended, watch, list(reports.values()))
    summary = summary_line([report.verdict for report in reports.values()])
    show_document(json_file, whole, [summary])
    ran = [file for file, report in reports.items() if report.verdict != FAILED]
    wrong = [file for file in ran if reports[file].failing]
    if ran:
        last.save(asked[(wrong or ran)[0]])
    if wrong and json_file != "-":
        show(rendered(reports[wrong[0]]))
    return code_of(list(map(code_of_report, reports.values())))
