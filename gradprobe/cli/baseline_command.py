"""`gradprobe baseline save | diff`: errors beside those kept in a file."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..commands.baseline import entry as kept
from ..commands.baseline.entry import FEWEST, Entry, case_of, measure, ran_on
from ..commands.baseline.growth import changes, compared, growth, refuse_other
from ..commands.suite.outcome import code_of
from ..inputs import history as last
from ..inputs.options import command_line
from ..model.documents import document_of
from ..model.failures import UsageFailure
from ..model.report import failed_report
from ..processes import tell
from ..render.files import unfinished
from ..render.notation import folded
from ..render.terminal import dump, interrupted, print_failure, rendered, show, utf8, width, write_stdout
from . import shared_options as shared
from .error_output import failures_told, report_error
from .own_process import ProgressNote, apart

if TYPE_CHECKING:
    from ..numerics.evidence import Probed

baseline = typer.Typer(
    add_completion=False,
    help="Keep the errors of a right kernel, and fail where one grows while still within its budget.",
)

FileWord = Annotated[str, typer.Option("--file", metavar="FILE", help="Where the errors are kept")]


@baseline.command()
@shared.with_case_options
def save(
    target: shared.Target = None,
    file: FileWord = kept.DEFAULT,
    seeds: Annotated[
        int, typer.Option(help="How many draws of the values, from --seed on; their spread is the noise")
    ] = 5,
    family: shared.Family = None,
    reference: shared.Reference = None,
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Check a target on several draws of its values, and keep its errors in a file."""
    words = {name: word for name, word in options.items() if name != "seed"}
    request = shared.request_of(target, family, words, reference)
    repro_command = replace(request, options=options).command("baseline save", file=file, seeds=seeds)
    with failures_told(None, repro_command, show_traceback):
        _refuse(options, seeds)
        shared.refuse_wrong_words(request)
        first = options.get("seed", 0)
        how = (request, file, range(first, first + seeds))
        raise typer.Exit(apart(_saved, *how, target=request.target, isolate=isolate, show_traceback=show_traceback))


def _saved(request: last.CheckRequest, file: str, seeds: range) -> int:
    """Measures the draws of a target, and keeps their errors in a file; the exit code."""
    from ..pipeline.reported import report_of

    entries = kept.load(file) if Path(file).exists() else ()
    found = measure(request, seeds, told=functools.partial(_tell_draw, request.target))
    if not isinstance(found, Entry):
        show(rendered(report_of(found)))
        write_stdout(f"not saved: seed {found.case.seed} is a mismatch, whose errors are no baseline\n")
        return 1
    kept.save(file, kept.with_entry(entries, found))
    write_stdout(f"saved {found.command_words} in {file}\n")
    show(folded(_extent(found), width()))
    return 0


def _tell_draw(target: str, number: int, total: int) -> None:
    tell(
        ProgressNote(
            f"{target}, draw {number} of {total}", number - 1, total, "draws", "errors are kept of all draws or of none"
        )
    )


def _refuse(options: dict[str, Any], seeds: int) -> None:
    if seeds < FEWEST:
        raise UsageFailure(f"--seeds must be at least {FEWEST}, got {seeds}: the noise is the spread over draws")
    if "inputs" in options:
        raise UsageFailure("--inputs: a file is one draw, and a baseline takes several", "drop it: values are drawn")


def _extent(entry: Entry) -> str:
    """How much was kept, and what growth of it can be told from noise."""
    figures = [(entry.errors[layout][name].rms, f"{name} {layout}") for layout, name in entry.cells]
    noise = [(growth(rms, rms, compared(entry)).noise, at) for rms, at in figures]
    least, most = min(noise), max(noise)
    return (
        f"{len(noise)} errors over draws {entry.seeds[0]} to {entry.seeds[-1]}; growth is told from noise "
        f"beyond {least[0]:.2f}x ({least[1]}) to {most[0]:.3g}x ({most[1]})"
    )


@baseline.command()
def diff(
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help="A target of the file (default: all)")] = None,
    file: FileWord = kept.DEFAULT,
    device: Annotated[
        str | None, typer.Option(help="Device, in place of the one that was saved: auto, cpu, cuda")
    ] = None,
    json_file: shared.JsonFile = None,
    isolate: shared.Isolate = True,
    show_traceback: shared.Traceback = False,
) -> None:
    """Run again what a file holds, on the same draws, and fail where an error grew beyond its noise."""
    repro_command = command_line("baseline diff", target or "", {}, {"file": file, "device": device})
    with failures_told(json_file, repro_command, show_traceback):
        from ..commands.baseline.growth_table import together

        entries = _meant(kept.load(file), target, file)
        comparisons = sum(compared(entry) for entry in entries)
        codes: list[int] = []
        documents: list[dict[str, Any]] = []
        for entry in entries:
            name, how = entry.request.target, (entry, device, comparisons, json_file == "-")
            try:
                code, document = apart(_compared_again, *how, target=name, isolate=isolate)
            except Exception as error:
                failure = report_error(error, show_traceback)
                code, document = failure.exit_code, document_of(failed_report(failure, repro_command, name))
            except KeyboardInterrupt:
                if documents:
                    dump(json_file, unfinished(together(documents)))
                print_failure(interrupted(len(documents), len(entries), "targets"))
                raise
            codes.append(code)
            documents.append(document)
        dump(json_file, together(documents))
        raise typer.Exit(code_of(codes))


def _meant(entries: tuple[Entry, ...], target: str | None, file: str) -> list[Entry]:
    meant = [entry for entry in entries if target in (None, entry.request.target)]
    if not meant:
        known = ", ".join(dict.fromkeys(entry.request.target for entry in entries))
        what = "nothing" if target is None else f"no baseline of {target!r}"
        raise UsageFailure(
            f"--file {file}: it holds {what}", f"it holds {known}" if known else "add one: gradprobe baseline save"
        )
    return meant


def _compared_again(entry: Entry, device: str | None, comparisons: int, quiet: bool) -> tuple[int, dict[str, Any]]:
    """The exit code of one entry, run again and shown, and its document."""
    from ..commands.baseline.growth_table import changes_as_json, render
    from ..pipeline.reported import report_of

    there = {} if device is None else {"device": device}
    request = replace(entry.request, options={**entry.request.options, **there})

    def accept(report: Probed) -> None:
        refuse_other(entry, ran_on(report), case_of(report))

    found = measure(request, entry.seeds, accept, functools.partial(_tell_draw, request.target))
    if not isinstance(found, Entry):
        report = report_of(found)
        show([] if quiet else rendered(report))
        return 1, document_of(report)
    became = changes(entry, found, comparisons)
    show([] if quiet else render(became, width(), utf8=utf8()))
    return int(became.fails), changes_as_json(became)
