"""`gradprobe check --baseline FILE`: the errors of a right kernel, kept in a file and compared with it."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..commands.baseline import entry as kept
from ..commands.baseline.entry import Entry, case_of, measure, ran_on
from ..commands.baseline.growth import changes, compared, growth, refuse_other
from ..commands.suite.outcome import code_of
from ..inputs.history import CheckRequest
from ..model.documents import document_of
from ..model.failures import UsageFailure
from ..model.report import failed_report
from ..processes import tell
from ..render.files import unfinished
from ..render.rows import folded
from ..render.terminal import (
    dump,
    interrupted,
    print_failure,
    rendered,
    show,
    utf8,
    width,
    write_stdout,
)
from .error_output import report_error
from .own_process import ProgressNote, apart

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
    tracebacks: bool,
) -> int:
    """Compares what a file holds of a target in its case, and keeps it there first where it holds none; the exit code.

    Args:
        request: None for all that the file holds.

    Raises:
        UsageFailure: the file holds nothing of the kind, or cannot be read.
    """
    entries = kept.load(file) if request is None or Path(file).exists() else ()
    if request is not None:
        if "inputs" in request.options:
            raise UsageFailure(
                "--inputs: a file is one draw, and a baseline takes several", "drop it"
            )
        first = request.options.get("seed", 0)
        words = {name: word for name, word in request.options.items() if name != "seed"}
        request = replace(request, options=words)
        meant = [entry for entry in entries if entry.request.command() == request.command()]
        if not meant:
            how = (request, file, range(first, first + DRAWS))
            return apart(
                _kept, *how, target=request.target, isolate=isolate, show_traceback=tracebacks
            )
        entries = tuple(meant)
    return _compared(entries, json_file, isolate=isolate, tracebacks=tracebacks)


def _kept(request: CheckRequest, file: str, seeds: range) -> int:
    """Measures the draws of a target, and keeps their errors in a file; the exit code."""
    from ..pipeline.reported import report_of

    entries = kept.load(file) if Path(file).exists() else ()
    found = measure(request, seeds, told=functools.partial(_tell_draw, request.target))
    if not isinstance(found, Entry):
        show(rendered(report_of(found)))
        write_stdout(
            f"not kept: seed {found.case.seed} is a mismatch, whose errors are no baseline\n"
        )
        return 1
    kept.save(file, kept.with_entry(entries, found))
    write_stdout(f"kept {found.command_words} in {file}\n")
    show(folded(_extent(found), width()))
    return 0


def _tell_draw(target: str, number: int, total: int) -> None:
    words = "errors are kept of all draws or of none"
    tell(ProgressNote(f"{target}, draw {number} of {total}", number - 1, total, "draws", words))


def _extent(entry: Entry) -> str:
    """How much was kept, and what growth of it can be told from noise."""
    noise = []
    for layout, name in entry.cells:
        rms = entry.errors[layout][name].rms
        noise.append((growth(rms, rms, compared(entry)).noise, f"{name} {layout}"))
    least, most = min(noise), max(noise)
    return (
        f"{len(noise)} errors over draws {entry.seeds[0]} to {entry.seeds[-1]}; growth is told from noise "
        f"beyond {least[0]:.2f}x ({least[1]}) to {most[0]:.3g}x ({most[1]})"
    )


def _compared(
    entries: tuple[Entry, ...], json_file: str | None, *, isolate: bool, tracebacks: bool
) -> int:
    """Runs entries again on the same draws, and tells which errors grew; the exit code."""
    from ..commands.baseline.growth_table import together

    comparisons = sum(compared(entry) for entry in entries)
    codes: list[int] = []
    documents: list[dict[str, Any]] = []
    for entry in entries:
        name, how = entry.request.target, (entry, comparisons, json_file == "-")
        try:
            code, document = apart(_compared_again, *how, target=name, isolate=isolate)
        except Exception as error:
            failure = report_error(error, tracebacks)
            code, document = (
                failure.exit_code,
                document_of(failed_report(failure, entry.request.command(), name)),
            )
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
    from ..commands.baseline.growth_table import changes_as_json, render
    from ..pipeline.reported import report_of

    def accept(report: ProbeResult) -> None:
        refuse_other(entry, ran_on(report), case_of(report))

    found = measure(
        entry.request, entry.seeds, accept, functools.partial(_tell_draw, entry.request.target)
    )
    if not isinstance(found, Entry):
        report = report_of(found)
        show([] if quiet else rendered(report))
        return 1, document_of(report)
    became = changes(entry, found, comparisons)
    show([] if quiet else render(became, width(), utf8=utf8()))
    return int(became.fails), changes_as_json(became)
