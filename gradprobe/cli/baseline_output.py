"""`gradprobe check --baseline FILE`: the errors of a right kernel, kept in a file and compared with it."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..commands import baseline as kept
from ..commands.baseline import Entry, case_of, measure, ran_on
from ..commands.suite.outcome import code_of
from ..inputs.history import CheckRequest
from ..model.documents import document_of
from ..model.failures import UsageFailure
from ..model.report import failed_report
from ..processes import tell
from ..render.files import unfinished
from ..render.terminal import (
    dump,
    interrupted,
    print_failure,
    show,
    utf8,
    width,
    write_stdout,
)
from .own_process import ProgressNote, apart
from .report_forms import report_error

if TYPE_CHECKING:
    from ..numerics.evidence import ProbeResult

DRAWS = 5
"""How many draws of the values are measured, from --seed on; their spread is the noise."""


def check_baseline(
    request: CheckRequest | None,
    file: str,
    json_file: str | None,
    *,
    isolate: bool,
    show_traceback: bool,
) -> int:
    """Compares what a file holds of a target in its case, and keeps it there first where it holds none; the exit code.

    Raises:
        UsageFailure: the file holds nothing of the kind, or cannot be read.
    """
    entries = kept.load(file) if request is None or Path(file).exists() else ()
    if request is not None:
        if "inputs" in request.options:
            words = "--inputs: a file is one draw, and a baseline takes several"
            raise UsageFailure(words, "drop it")
        options = dict(request.options)
        first = options.pop("seed", 0)
        request = replace(request, options=options)
        entries = tuple(one for one in entries if one.request.command() == request.command())
        if not entries:
            how = (request, file, range(first, first + DRAWS))
            run = {"isolate": isolate, "show_traceback": show_traceback}
            return apart(_kept, *how, target=request.target, **run)
    return _compared(entries, json_file, isolate=isolate, show_traceback=show_traceback)


def _kept(request: CheckRequest, file: str, seeds: range) -> int:
    from ..pipeline.reported import report_of
    from ..render.screen import rendered

    entries = kept.load(file) if Path(file).exists() else ()
    found = measure(request, seeds, tick=functools.partial(_tell_draw, request.target))
    if not isinstance(found, Entry):
        show(rendered(report_of(found)))
        words = f"not kept: seed {found.case.seed} is a mismatch, whose errors are no baseline"
        write_stdout(f"{words}\n")
        return 1
    kept.save(file, kept.with_entry(entries, found))
    draws = f"draws {found.seeds[0]} to {found.seeds[-1]}"
    write_stdout(f"kept {found.command_words} in {file}\n")
    write_stdout(f"  {len(found.cells)} errors over {draws}\n")
    return 0


def _tell_draw(target: str, number: int, total: int) -> None:
    words = "errors are kept of all draws or of none"
    tell(ProgressNote(f"{target}, draw {number} of {total}", number - 1, total, "draws", words))


def _compared(
    entries: tuple[Entry, ...], json_file: str | None, *, isolate: bool, show_traceback: bool
) -> int:
    from ..commands.growth import compared, together

    comparisons = sum(compared(entry) for entry in entries)
    codes: list[int] = []
    documents: list[dict[str, Any]] = []
    for entry in entries:
        name, how = entry.request.target, (entry, comparisons, json_file == "-")
        try:
            code, document = apart(_compared_again, *how, target=name, isolate=isolate)
        except Exception as error:
            failure = report_error(error, show_traceback)
            code = failure.exit_code
            document = document_of(failed_report(failure, entry.request.command(), name))
        except KeyboardInterrupt:
            if documents:
                dump(json_file, unfinished(together(documents)))
            print_failure(interrupted(len(documents), len(entries), "targets"))
            raise
        codes.append(code)
        documents.append(document)
    dump(json_file, together(documents))
    return code_of(codes)


def _compared_again(entry: Entry, comparisons: int, quiet: bool) -> tuple[int, dict[str, Any]]:
    """The exit code of one entry, run again and shown, and its document."""
    from ..commands.growth import changes, changes_as_json, refuse_other, render_changes
    from ..pipeline.reported import report_of
    from ..render.screen import rendered

    def accept(report: ProbeResult) -> None:
        refuse_other(entry, ran_on(report), case_of(report))

    tick = functools.partial(_tell_draw, entry.request.target)
    found = measure(entry.request, entry.seeds, accept, tick)
    if not isinstance(found, Entry):
        report = report_of(found)
        show([] if quiet else rendered(report))
        return 1, document_of(report)
    became = changes(entry, found, comparisons)
    show([] if quiet else render_changes(became, width(), utf8=utf8()))
    return int(became.fails), changes_as_json(became)
