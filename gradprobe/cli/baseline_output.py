"""`gradprobe check --baseline FILE`: the errors of a right kernel, kept in a file and compared with it."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..commands import baseline
from ..commands.baseline import DRAWS, Changes, Entry
from ..commands.suite.outcome import code_of
from ..inputs.history import CheckRequest
from ..model.documents import document_of
from ..model.failures import UsageFailure
from ..model.report import failed_report
from ..processes import tell
from ..render.terminal import dump, show, utf8, width, write_stdout
from .command import Call
from .own_process import ProgressNote
from .report_forms import report_error


def check_baseline(call: Call, file: str, *, is_asked: bool) -> int:
    """Compares what a file holds of a target in its case, else keeps it there; all of it where nothing is asked for.

    Returns the exit code. Raises UsageFailure where the file cannot be read.
    """
    if not is_asked:
        return _compared(call, baseline.load(file))
    if "inputs" in call.request.options:
        words = "--inputs: a file is one draw, and a baseline takes several"
        raise UsageFailure(words, "drop it")
    options = dict(call.request.options)
    first = options.pop("seed", 0)
    request = replace(call.request, options=options)
    whole = baseline.load(file) if Path(file).exists() else ()
    entries = tuple(one for one in whole if one.request.command() == request.command())
    if not entries:
        return call.apart(_kept, request, file, whole, range(first, first + DRAWS))
    return _compared(call, entries)


def _kept(request: CheckRequest, file: str, others: tuple[Entry, ...], seeds: range) -> int:
    from ..pipeline.reported import report_of
    from ..render.screen import rendered

    found = baseline.measure(request, seeds, tick=functools.partial(_tell_draw, request.target))
    if not isinstance(found, Entry):
        show(rendered(report_of(found)))
        words = f"not kept: seed {found.case.seed} is a mismatch, whose errors are no baseline"
        write_stdout(f"{words}\n")
        return 1
    baseline.save(file, baseline.with_entry(others, found))
    draws = f"draws {found.seeds[0]} to {found.seeds[-1]}"
    write_stdout(f"kept {found.command_words} in {file}\n")
    write_stdout(f"  {len(found.cells)} errors over {draws}\n")
    return 0


def _tell_draw(target: str, number: int, total: int) -> None:
    words = "errors are kept of all draws or of none"
    tell(ProgressNote(f"{target}, draw {number} of {total}", number - 1, total, "draws", words))


def _compared(call: Call, entries: tuple[Entry, ...]) -> int:
    json_file, codes, documents = call.forms.json, list[int](), list[dict[str, Any]]()
    for entry in entries:
        again = replace(call, request=entry.request)
        try:
            code, document = again.apart(_compared_again, entry, json_file == "-")
        except Exception as error:
            failure, name = report_error(error, call.tracebacks), entry.request.target
            code = failure.exit_code
            document = document_of(failed_report(failure, entry.request.command(), name))
        codes.append(code)
        documents.append(document)
    dump(json_file, baseline.together(documents))
    return code_of(codes)


def _compared_again(entry: Entry, quiet: bool) -> tuple[int, dict[str, Any]]:
    """The exit code of one entry, run again and shown, and its document."""
    from ..pipeline.reported import report_of
    from ..render.screen import rendered

    accept = functools.partial(baseline.refuse_other, entry)
    tick = functools.partial(_tell_draw, entry.request.target)
    found = baseline.measure(entry.request, entry.seeds, accept, tick)
    if not isinstance(found, Entry):
        report = report_of(found)
        show([] if quiet else rendered(report))
        return 1, document_of(report)
    changes = Changes(entry, found)
    show([] if quiet else baseline.render_changes(changes, width(), utf8=utf8()))
    return int(bool(changes.failing)), baseline.changes_as_json(changes)
