"""The command line: options -> probe -> report -> exit code. The only file that imports typer."""

from __future__ import annotations

import contextlib
import inspect
import io
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import last
from .answer import answer
from .failures import Failure, UsageFailure, as_failure
from .intermediates import lookup, names
from .options import OPTIONS, command_line, parse
from .screen import dump, put, rendered, say, show, utf8, width, write_json
from .targets.scaffold import DEFAULT, FAMILIES, write_adapter

if TYPE_CHECKING:
    from .recording.replay import Ended
    from .verdict import Report

app = typer.Typer(
    name="gradprobe",
    help="Runs an attention backward kernel beside a float64 reference, and points at the first wrong number.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TargetWord = Annotated[
    str | None,
    typer.Argument(metavar="TARGET", help="Built-in name, FILE.py:FUNCTION or MODULE:FUNCTION (default: lazy)"),
]
FamilyWord = Annotated[str | None, typer.Option(help="softmax or lazy (default: lazy where the target takes tau)")]
ReferenceWord = Annotated[
    str | None, typer.Option(metavar="FILE.py:FUNCTION", help="A reference of your own, audited first")
]
JsonFile = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON; - for stdout")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show where a failure was raised")]


def with_case_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command every case option; it receives those given as `options`, by name."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())

    def run(**words: Any) -> None:
        options = {option.name: words.pop(option.name) for option in OPTIONS}
        given = {name: word for name, word in options.items() if word is not None and word != []}
        command(**words, options=given)

    added = [
        inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(option))
        for option in OPTIONS
    ]
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own if parameter.name != "options"
    ]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *added)}
    vars(run)["__signature__"] = inspect.Signature([*parameters, *added])
    return run


def _annotation(option: Any) -> Any:
    flags = f"{option.flag}/--no-{option.flag[2:]}" if option.kind is bool else option.flag
    kind = list[str] if option.kind is list else option.kind
    # Square brackets in a help text are markup to rich.
    described = typer.Option(
        flags, help=option.help.replace("[", r"\["), metavar=option.metavar, rich_help_panel="Case", show_default=False
    )
    return Annotated[kind | None, described]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Versions and device, in one line")] = False) -> None:
    if version:
        from .probing.receipt import environment

        found = environment("cuda" if _has_cuda() else "cpu")
        typer.echo(" ".join(f"{name} {value}" for name, value in found.items()))
        raise typer.Exit


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@app.command()
@with_case_options
def check(
    target: TargetWord = None,
    family: FamilyWord = None,
    reference: ReferenceWord = None,
    json_file: JsonFile = None,
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a kernel beside the reference, diff every intermediate, and point at the first mismatch."""
    asked = last.Asked(target or "lazy", family, reference, options)
    again = command_line("check", asked.target, options, _chosen(asked))
    with _failures_told(json_file, again, show_traceback):
        report = answer(asked, again)
        last.save(asked)
        write_json(json_file, report)
        if json_file != "-":
            show(rendered(report))
        raise typer.Exit(1 if report.failing else 0)


@app.command()
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
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Show one intermediate close up: its error map over tiles and its wrong rows, actual beside expected."""
    asked, repeated = _like_the_last(target, family, reference, options)
    again = command_line(f"diff {name}", asked.target, asked.options, _chosen(asked) | {"at": at})
    with _failures_told(json_file, again, show_traceback):
        row = lookup(name)
        if row is None:
            raise UsageFailure(f"diff: no intermediate {name!r}", f"known: {', '.join(names())}")
        place = _parse_at(at)
        if repeated:
            line = f"as in the last check here: {command_line('check', asked.target, asked.options, _chosen(asked))}"
            if json_file == "-":
                typer.echo(line, err=True)
            else:
                put(line + "\n")
        report = answer(asked, again)
        _show_close_up(report, row.name, place, json_file)


@app.command("run")
@with_case_options
def run_(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND ...", help="Run as it stands")] = None,
    watch: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="The attention function to watch")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="TARGET", help="What to check with the real inputs (default: the same)")
    ] = None,
    keep: Annotated[int, typer.Option(help="Sets of inputs to keep at most")] = 16,
    order: Annotated[
        str, typer.Option(help="The watched function's axes, bhld or blhd; what is checked takes [B, H, L, D]")
    ] = "bhld",
    folder: Annotated[str | None, typer.Option(help="For the sets (default: .gradprobe/captures/FUNCTION)")] = None,
    family: FamilyWord = None,
    reference: ReferenceWord = None,
    json_file: JsonFile = None,
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Run a program with its attention function watched, and check that with the program's real inputs and dO.

    The program runs unmodified. Of each shape and layout that the function is called with, its tensors are kept once
    and checked as they lay in memory.
    """
    asked = last.Asked(target or watch or "", family, reference, options)
    words = {"watch": watch, "target": target, "keep": keep, "order": order, "folder": folder}
    again = f"{command_line('run', '', options, words | _chosen(asked))} -- {shlex.join(command or [])}"
    with _failures_told(json_file, again, show_traceback):
        if watch is None:
            raise UsageFailure("run: nothing to watch", "add --watch MODULE:FUNCTION")
        parse(options)
        from .recording.replay import FOLDER, look_where_it_looked, run_watched
        from .recording.watch import Keeping

        how = Keeping(Path(folder) if folder else FOLDER / watch.replace(":", "."), keep, order)
        ended = run_watched(command or [], watch, how, quiet=json_file == "-")
        look_where_it_looked(ended)
        raise typer.Exit(_tell_each(ended, asked, watch, json_file))


def _tell_each(ended: Ended, asked: last.Asked, watch: str, json_file: str | None) -> int:
    """Checks every set that was kept, and prints or writes what came of each; the exit code."""
    from .recording.replay import check_each, exit_code
    from .report.captures import as_document, captures_as_json, line_of, summary_line

    typer.echo("\n".join(f"gradprobe: {line}" for line in ended.sentences(watch)), err=True)

    def of(file: str) -> last.Asked:
        return replace(asked, options={"layout": ["all=as-saved"], **asked.options, "inputs": file})

    def again(file: str) -> str:
        return command_line("check", asked.target, of(file).options, _chosen(asked))

    codes, documents, shown = [], [], None
    for number, checked in enumerate(check_each(ended.files, lambda file: answer(of(file), again(file))), 1):
        codes.append(checked.code)
        documents.append(as_document(checked, again(checked.file)))
        if json_file != "-":
            show([line_of(number, checked)])
        if checked.report is not None and (shown is None or (checked.code and not shown.code)):
            shown = checked
    if json_file is not None:
        dump(json_file, captures_as_json(ended, watch, documents))
    if json_file != "-":
        show([summary_line([document["verdict"] for document in documents])])
    if shown is not None and shown.report is not None:
        last.save(of(shown.file))
        if json_file != "-" and shown.code:
            show(rendered(shown.report))
    return exit_code(codes)


@app.command()
def targets(
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write as JSON; - for stdout")] = None,
    show_traceback: Traceback = False,
) -> None:
    """List what can be checked here, with what each takes and exposes, and why something cannot."""
    with _failures_told(None, "gradprobe targets", show_traceback):
        from .report.targets import as_json, render
        from .targets.catalogue import catalogue

        entries = catalogue()
        if json_file is not None:
            dump(json_file, as_json(entries))
        if json_file != "-":
            show(render(entries, width()))


@app.command()
def init(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file to write")] = DEFAULT,
    family: Annotated[str, typer.Option(help=f"Of your kernel: {' or '.join(FAMILIES)}")] = FAMILIES[0],
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there")] = False,
    show_traceback: Traceback = False,
) -> None:
    """Write a commented adapter for a kernel of your own, which runs and matches as it is."""
    with _failures_told(None, "gradprobe init", show_traceback):
        write_adapter(Path(path), family, force=force)
        put(f"wrote {path}\nnext: {shlex.join(['gradprobe', 'check', f'{path}:backward'])}\n")


def _chosen(asked: last.Asked) -> dict[str, Any]:
    return {"family": asked.family, "reference": asked.reference}


def _like_the_last(
    target: str | None, family: str | None, reference: str | None, options: dict[str, Any]
) -> tuple[last.Asked, bool]:
    """What to run: the last check of this folder where its target is meant, under the options given now."""
    before = last.load()
    if before is None or (target is not None and target != before.target):
        return last.Asked(target or "lazy", family, reference, options), False
    merged = {**before.options, **options}
    return last.Asked(before.target, family or before.family, reference or before.reference, merged), True


def _parse_at(word: str | None) -> tuple[int, int] | None:
    if word is None:
        return None
    parts = word.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise UsageFailure(f"--at takes BATCH,HEAD, two whole numbers, got {word!r}")
    return int(parts[0]), int(parts[1])


def _show_close_up(report: Report, name: str, at: tuple[int, int] | None, json_file: str | None) -> None:
    from .judging.closeup import close_up
    from .report.closeup import close_up_as_json, render_close_up

    having = [(run, found) for run, found in report.measured if name in found.comparison.findings]
    wrong = [(run, found) for run, found in having if found.comparison.findings[name].mismatched]
    run, shown = (wrong or having or report.measured)[0]
    measured = run.holding(name) or shown
    view = close_up(report.case, measured, name, at)
    write_json(json_file, report, {"close_up": {"layout": run.layout} | close_up_as_json(view)})
    if json_file != "-":
        from rich.text import Text

        show([Text(f"layout {run.layout}", "dim"), *render_close_up(view, width(), utf8=utf8())])
    raise typer.Exit(1 if report.failing else 0)


@contextlib.contextmanager
def _failures_told(json_file: str | None, again: str, show_traceback: bool) -> Iterator[None]:
    """Turns failures into messages on stderr, an error report where JSON was asked for, and the exit code."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        failure = as_failure(error)
        if show_traceback:
            traceback.print_exc()
        say(failure)
        if json_file is not None:
            _write_error_report(json_file, failure, again)
        raise typer.Exit(failure.exit_code) from None


def _write_error_report(json_file: str, failure: Failure, again: str) -> None:
    from .report.as_json import failure_as_json

    try:
        dump(json_file, failure_as_json(failure, again))
    except UsageFailure as unwritable:
        if str(unwritable) != str(failure):
            say(unwritable)


def main() -> None:
    """The `gradprobe` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may hold what the terminal's encoding does not
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="gradprobe")
