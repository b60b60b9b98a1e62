"""`gradprobe run --watch FUNCTION -- COMMAND`: a program's real inputs, checked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from ..commands.suite.outcome import code_of, code_of_report
from ..inputs import history as last
from ..model.assignment import PLAIN
from ..model.failures import UsageFailure
from ..model.layout_run import FAILED
from ..model.report import Report
from ..processes import tell
from ..render.files import keeps_changing, unfinished
from ..render.terminal import dump, note, show
from .command import Call, Command
from .option_rows import DEFAULT, argument, option
from .own_process import ProgressNote
from .report_forms import show_document

if TYPE_CHECKING:
    from ..commands.record.replay import ProgramResult

_COMMAND = "The command that runs the program"
_WATCH = "MODULE:FUNCTION, the attention to watch"
_TARGET = "What to check with the real inputs (default: FUNCTION)"
_ORDER = "Axes of FUNCTION, bhld or blhd; another TARGET takes [B, H, L, D]"


@Command("family reference isolate")
def run(
    call: Call,
    program: Annotated[list[str] | None, argument("-- COMMAND ...", _COMMAND)] = None,
    watch: Annotated[str | None, option("--watch", _WATCH, "FUNCTION")] = None,
    target: Annotated[str | None, option("--target", _TARGET, "TARGET")] = None,
    keep: Annotated[int, option("--keep", "The most sets of inputs to keep")] = 16,
    order: Annotated[str, option("--order", _ORDER)] = PLAIN,
) -> int:
    """Run a program with its attention function watched, and check that with the program's real inputs and dO.

    The program runs unmodified. Of each shape and layout that the function is called with, its tensors are kept once
    and checked as they lay in memory.
    """
    if watch is None:
        raise UsageFailure("run: nothing to watch", "add --watch MODULE:FUNCTION")
    from ..commands.record.capture import FOLDER, CapturePlan
    from ..commands.record.replay import run_watched

    keeping = CapturePlan(FOLDER / watch.replace(":", "."), keep, order)
    call = call.of(replace(call.request, target=target or DEFAULT))
    quiet = call.forms.json == "-"
    ended = run_watched(program or [], watch, keeping, quiet=quiet)
    # The same function takes its tensors as it did when it was watched.
    shapes = {"shapes": order} if target is None and order != PLAIN else {}
    options = {**shapes, **call.request.options}
    call = replace(call, request=replace(call.request, target=target or watch, options=options))
    return call.apart(_check_each_set, ended, call.request, watch, call.forms.json)


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
