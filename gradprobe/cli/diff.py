"""`gradprobe diff NAME`: one intermediate close up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import last
from ..answer import answer
from ..failures import UsageFailure
from ..intermediates import lookup, names
from ..options import command_line
from ..screen import put, show, utf8, width, write_json
from .failing import failures_told
from .words import FamilyWord, JsonFile, ReferenceWord, TargetWord, Traceback, chosen, with_case_options

if TYPE_CHECKING:
    from ..verdict import Report


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
    asked, repeated = like_the_last(target, family, reference, options)
    again = command_line(f"diff {name}", asked.target, asked.options, chosen(asked) | {"at": at})
    with failures_told(json_file, again, show_traceback):
        row = lookup(name)
        if row is None:
            raise UsageFailure(f"diff: no intermediate {name!r}", f"known: {', '.join(names())}")
        place = _parse_at(at)
        if repeated:
            line = f"as in the last check here: {command_line('check', asked.target, asked.options, chosen(asked))}"
            if json_file == "-":
                typer.echo(line, err=True)
            else:
                put(line + "\n")
        report = answer(asked, again)
        _show_close_up(report, row.name, place, json_file)


def like_the_last(
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
    from ..judging.closeup import close_up
    from ..report.closeup import close_up_as_json, render_close_up

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
